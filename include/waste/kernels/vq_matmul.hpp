// Products of one VQ matrix with many inputs: tiles are decoded once and multiplied in f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// The sum that every tier computes, in f32. Columns come in groups of 128, each in eight steps of
/// sixteen columns, one column a lane. With q = C_0[i0][d] + C_1[i1][d] + .. in stage order, lane j
/// of group g holds
///     p[j] = q x over the steps in order: a product, then fused multiply-adds;   a[j] = a[j] +
///     p[j]
/// and y is scale * sum tree of a. Columns past the last count as q = x = 0.
///
/// A table costs entries * stages * 8 multiply-adds a position and a row one lookup a stage; from a
/// few inputs on, decoding (a load and an addition a stage for eight weights) and multiplying is
/// cheaper than as many tables.
struct vq_matmul {
  static constexpr std::size_t group = 128, steps = 8, tokens_at_once = 32;

  /// 16 positions (or the last `n`) of one row as f32.
  template <class Traits>
  static WASTE_INLINE void decode(const float* codebooks, const std::uint8_t* from,
                                  std::size_t position_stride, std::size_t n, float* q) noexcept {
    for (std::size_t v = 0; v < n; ++v, from += position_stride, q += 8) {
      std::uint32_t index[Traits::stages];
      if constexpr (Traits::index_bits == 6) {
        const std::uint32_t word = from[0] | static_cast<std::uint32_t>(from[1]) << 8 |
                                   static_cast<std::uint32_t>(from[2]) << 16;
        for (std::size_t s = 0; s < 4; ++s) index[s] = word >> 6 * s & 63u;
      } else {
        for (std::size_t s = 0; s < Traits::stages; ++s) index[s] = from[s];
      }
      const float* entry = codebooks + std::size_t{8} * index[0];
      float sum[8];
      for (std::size_t d = 0; d < 8; ++d) sum[d] = entry[d];
      for (std::size_t s = 1; s < Traits::stages; ++s) {
        entry = codebooks + 8 * (s * Traits::entries + index[s]);
        for (std::size_t d = 0; d < 8; ++d) sum[d] += entry[d];
      }
      for (std::size_t d = 0; d < 8; ++d) q[d] = sum[d];
    }
    for (std::size_t i = 8 * n; i < group; ++i) *q++ = 0.0f;
  }

  /// Rows row .. row + Rows - 1 (within one block of 64) for up to tokens_at_once inputs.
  template <class Traits, class Arch, std::size_t Rows>
  static WASTE_INLINE void tile(const VqMatrix& w, const float* x, std::size_t ldx,
                                std::size_t tokens, float* y, std::size_t ldy,
                                std::size_t row) noexcept {
    using F = arch::f32x16<Arch>;
    const std::size_t positions = w.n_cols / Traits::vec_dim;
    const bool blocked = w.quant.index_block != 0;
    const std::size_t row_stride = blocked ? Traits::run : positions * Traits::run;
    const std::size_t position_stride = blocked ? 64 * Traits::run : Traits::run;
    const std::size_t first_row = blocked ? row / 64 * 64 : row;
    const std::uint8_t* const block = w.indices + first_row * positions * Traits::run;
    F acc[tokens_at_once][Rows];
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t r = 0; r < Rows; ++r) acc[t][r] = arch::broadcast16<Arch>(0.0f);
    }
    for (std::size_t c = 0; c < w.n_cols; c += group) {
      const std::size_t left = w.n_cols - c, cols = left < group ? left : group;
      alignas(64) float q[Rows][group];
      for (std::size_t r = 0; r < Rows; ++r) {
        decode<Traits>(w.codebooks,
                       block + (row - first_row + r) * row_stride + c / 8 * position_stride,
                       position_stride, cols / 8, q[r]);
      }
      for (std::size_t t = 0; t < tokens; ++t) {
        const float* xg = x + t * ldx + c;
        float padded[group];
        if (cols < group) {
          __builtin_memset(padded, 0, sizeof padded);
          __builtin_memcpy(padded, xg, cols * sizeof(float));
          xg = padded;
        }
        F p[Rows];
        for (std::size_t k = 0; k < steps; ++k) {
          const F xk = arch::load_f32<Arch>(xg + 16 * k);
          for (std::size_t r = 0; r < Rows; ++r) {
            const F qk = arch::load_f32<Arch>(q[r] + 16 * k);
            p[r] = k == 0 ? qk * xk : arch::fma(qk, xk, p[r]);
          }
        }
        for (std::size_t r = 0; r < Rows; ++r) acc[t][r] = acc[t][r] + p[r];
      }
    }
    for (std::size_t r = 0; r < Rows; ++r) {
      const float scale = arch::load_one_f16<Arch>(w.scales + 2 * (row + r));
      for (std::size_t t = 0; t < tokens; ++t) {
        y[t * ldy + row + r] = scale * arch::sum_tree(acc[t][r]);
      }
    }
  }

  template <class Traits, class Arch>
  WASTE_KERNEL static void rows(const VqMatrix& w, const float* x, std::size_t ldx,
                                std::size_t tokens, float* y, std::size_t ldy,
                                std::size_t row_begin, std::size_t row_end) noexcept {
    for (std::size_t t = 0; t < tokens; t += tokens_at_once) {
      const std::size_t left = tokens - t, n = left < tokens_at_once ? left : tokens_at_once;
      std::size_t r = row_begin;
      for (; r + 4 <= row_end; r += 4) {
        tile<Traits, Arch, 4>(w, x + t * ldx, ldx, n, y + t * ldy, ldy, r);
      }
      for (; r < row_end; ++r) tile<Traits, Arch, 1>(w, x + t * ldx, ldx, n, y + t * ldy, ldy, r);
    }
  }

  template <class Arch>
  void operator()(Arch, const VqMatrix& w, const float* x, std::size_t ldx, std::size_t tokens,
                  float* y, std::size_t ldy, std::size_t row_begin,
                  std::size_t row_end) const noexcept {
    quant::with_traits(w.quant, [&](auto traits) {
      rows<decltype(traits), Arch>(w, x, ldx, tokens, y, ldy, row_begin, row_end);
    });
  }
};

}  // namespace waste::kernels
