// Attention over a cache of rows shared by all heads (MLA's latent cache), and mixtures of rows.
#pragma once

#include <cstddef>

#include "waste/kernels/lanes.hpp"

namespace waste::kernels {

/// scores[h][s] = scale * (sum over j < width of q[h][j] cache[s][j]), s < positions, h < heads:
/// sixteen partial sums and the tree for each pair. Rows are ldq, ldc and lds floats apart.
struct attention_scores {
  template <class Arch>
  void operator()(Arch, const float* q, std::size_t ldq, std::size_t heads, const float* cache,
                  std::size_t ldc, std::size_t width, std::size_t positions, float scale,
                  float* scores, std::size_t lds) const noexcept {
    std::size_t h = 0;
    for (; h + 4 <= heads; h += 4) {
      some<Arch, 4>(q + h * ldq, ldq, cache, ldc, width, positions, scale, scores + h * lds, lds);
    }
    for (; h < heads; ++h) {
      some<Arch, 1>(q + h * ldq, ldq, cache, ldc, width, positions, scale, scores + h * lds, lds);
    }
  }

 private:
  template <class Arch, std::size_t H>
  static void some(const float* q, std::size_t ldq, const float* cache, std::size_t ldc,
                   std::size_t width, std::size_t positions, float scale, float* scores,
                   std::size_t lds) noexcept {
    using L = Lanes<Arch>;
    const std::size_t whole = width / L::size * L::size;
    for (std::size_t s = 0; s < positions; ++s) {
      const float* row = cache + s * ldc;
      L acc[H];
      for (std::size_t h = 0; h < H; ++h) acc[h] = L::splat(0.0f);
      for (std::size_t j = 0; j < whole; j += L::size) {
        const L c = L::load(row + j);
        for (std::size_t h = 0; h < H; ++h) acc[h] = fma(L::load(q + h * ldq + j), c, acc[h]);
      }
      if (whole < width) {
        const L c = L::load(row + whole, width - whole);
        for (std::size_t h = 0; h < H; ++h) {
          acc[h] = fma(L::load(q + h * ldq + whole, width - whole), c, acc[h]);
        }
      }
      for (std::size_t h = 0; h < H; ++h) scores[h * lds + s] = sum(acc[h]) * scale;
    }
  }
};

/// out[h][j] = sum over s < positions, in that order, of p[h][s] cache[s][j], j < width, h < heads.
struct attention_mix {
  template <class Arch>
  void operator()(Arch, const float* p, std::size_t ldp, std::size_t heads, const float* cache,
                  std::size_t ldc, std::size_t width, std::size_t positions, float* out,
                  std::size_t ldo) const noexcept {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t j = 0; j < width; ++j) out[h * ldo + j] = 0.0f;
    }
    // A block of positions stays in the second-level cache while every head reads it.
    constexpr std::size_t block = 32;
    for (std::size_t s = 0; s < positions; s += block) {
      const std::size_t n = positions - s < block ? positions - s : block;
      const float* rows = cache + s * ldc;
      std::size_t h = 0;
      for (; h + 4 <= heads; h += 4) {
        some<Arch, 4>(p + h * ldp + s, ldp, rows, ldc, width, n, out + h * ldo, ldo);
      }
      for (; h < heads; ++h) {
        some<Arch, 1>(p + h * ldp + s, ldp, rows, ldc, width, n, out + h * ldo, ldo);
      }
    }
  }

 private:
  template <class Arch, std::size_t H>
  static void some(const float* p, std::size_t ldp, const float* rows, std::size_t ldc,
                   std::size_t width, std::size_t n, float* out, std::size_t ldo) noexcept {
    using L = Lanes<Arch>;
    for (std::size_t j = 0; j < width; j += L::size) {
      const std::size_t lanes = width - j;
      L acc[H];
      for (std::size_t h = 0; h < H; ++h) acc[h] = L::load(out + h * ldo + j, lanes);
      for (std::size_t s = 0; s < n; ++s) {
        const L c = L::load(rows + s * ldc + j, lanes);
        for (std::size_t h = 0; h < H; ++h) acc[h] = fma(L::splat(p[h * ldp + s]), c, acc[h]);
      }
      for (std::size_t h = 0; h < H; ++h) acc[h].store(out + h * ldo + j, lanes);
    }
  }
};

/// out_j = sum over i < count, in that order, of p[i] rows[i][j], j < n. out may be any of the
/// rows.
struct mix_rows {
  template <class Arch>
  void operator()(Arch, const float* const* rows, const float* p, std::size_t count, std::size_t n,
                  float* out) const noexcept {
    using L = Lanes<Arch>;
    for (std::size_t j = 0; j < n; j += L::size) {
      L acc = L::splat(0.0f);
      for (std::size_t i = 0; i < count; ++i) {
        acc = fma(L::splat(p[i]), L::load(rows[i] + j, n - j), acc);
      }
      acc.store(out + j, n - j);
    }
  }
};

}  // namespace waste::kernels
