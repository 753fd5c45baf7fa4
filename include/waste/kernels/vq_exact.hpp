// The exact VQ product: an f32 table, gathered.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/bytes.hpp"
#include "waste/arch/ops.hpp"
#include "waste/kernels/vq_exact_planes.hpp"
#include "waste/kernels/vq_table.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// The sum that every tier computes, in f32:
///     t[v] = LUT[v][0][i0] + LUT[v][1][i1] + ..            in stage order
///     c[k] = t[32k] + t[32k+1] + ..                        from 0, in position order
///     y    = scale (c[0] + c[1] + ..)                      from 0, in chunk order
/// Additions only, so the bits agree wherever the table's do. Bound: S + 32 + cols / 256 roundings
/// of partial sums.
struct vq_exact {
  template <class Traits>
  static WASTE_INLINE float lookup(const float* lut, const std::uint8_t* run) noexcept {
    if constexpr (Traits::index_bits == 6) {
      const std::uint32_t word = run[0] | static_cast<std::uint32_t>(run[1]) << 8 |
                                 static_cast<std::uint32_t>(run[2]) << 16;
      float t = lut[word & 63u];
      t += lut[64 + (word >> 6 & 63u)];
      t += lut[128 + (word >> 12 & 63u)];
      return t + lut[192 + (word >> 18)];
    } else {
      float t = lut[run[0]];
      for (std::size_t s = 1; s < Traits::stages; ++s) t += lut[256 * s + run[s]];
      return t;
    }
  }

  /// Chunk by chunk over all rows of the range, so that the table's part stays in cache.
  template <class Traits, class Arch>
  WASTE_KERNEL static void rows(const VqMatrix& w, const float* lut, float* y,
                                std::size_t row_begin, std::size_t row_end) noexcept {
    constexpr std::size_t position_floats = Traits::stages * Traits::entries;
    const std::size_t positions = w.n_cols / Traits::vec_dim;
    const bool blocked = w.quant.index_block != 0;
    if constexpr (arch::looks_up_f32<Arch>) {
      using by_planes = vq_exact_planes<Traits, Arch>;
      if (blocked && row_end - row_begin >= by_planes::least_rows) {
        return by_planes::rows(w, lut, y, row_begin, row_end);
      }
    }
    const std::size_t row_stride = blocked ? Traits::run : positions * Traits::run;
    const std::size_t position_stride = blocked ? 64 * Traits::run : Traits::run;
    for (std::size_t r = row_begin; r < row_end; ++r) y[r] = 0.0f;
    for (std::size_t v0 = 0; v0 < positions; v0 += chunk_positions) {
      const std::size_t v1 = v0 + chunk_positions < positions ? v0 + chunk_positions : positions;
      for (std::size_t r0 = row_begin; r0 < row_end; r0 += 64) {
        const std::size_t n = row_end - r0 < 64 ? row_end - r0 : 64;
        const std::uint8_t* block = w.indices + r0 * positions * Traits::run;
        float sum[64] = {};
        for (std::size_t v = v0; v < v1; ++v) {
          const float* at = lut + v * position_floats;
          const std::uint8_t* run = block + v * position_stride;
          for (std::size_t r = 0; r < n; ++r) sum[r] += lookup<Traits>(at, run + r * row_stride);
        }
        for (std::size_t r = 0; r < n; ++r) y[r0 + r] += sum[r];
      }
    }
    for (std::size_t r = row_begin; r < row_end; ++r) {
      y[r] = arch::load_one_f16<Arch>(w.scales + 2 * r) * y[r];
    }
  }
};

}  // namespace waste::kernels
