// Products of one VQ matrix with many inputs: rows are decoded once and multiplied in f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// y[t][r] = sum over c of W[r][c] x[t][c] for `tokens` inputs x + t * ldx. See MatrixKernels.
///
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
  static constexpr std::size_t group = 128, lanes = 16, steps = group / lanes;
  static constexpr std::size_t tokens_at_once = 64, rows_at_once = 32;
  template <class Arch>
  using F = arch::f32x16<Arch>;

  /// Where the positions of a row lie.
  template <class Traits>
  struct Indices {
    const std::uint8_t* first;
    std::size_t block_rows, block_bytes, position_stride;

    explicit WASTE_INLINE Indices(const VqMatrix& w) noexcept
        : first(w.indices),
          block_rows(w.quant.index_block != 0 ? 64 : 1),
          block_bytes(block_rows * (w.n_cols / Traits::vec_dim) * Traits::run),
          position_stride(block_rows * Traits::run) {}
    WASTE_INLINE const std::uint8_t* at(std::size_t row, std::size_t position) const noexcept {
      return first + row / block_rows * block_bytes + row % block_rows * Traits::run +
             position * position_stride;
    }
  };

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

  /// acc[t][row + r] of T inputs x[t] and R decoded rows q[r], one group on. Lanes do not meet, so
  /// that they can be taken in halves or quarters: 4 rows and 3 inputs keep twelve partial sums,
  /// three inputs and one row in the 16 registers that AVX2 has.
  template <class Arch, std::size_t T, std::size_t R>
  static WASTE_INLINE void tile(const float (*x)[group], const float (*q)[group],
                                F<Arch> (*acc)[rows_at_once], std::size_t row) noexcept {
    using Batch = arch::f32_batch<Arch>;
    WASTE_UNROLL
    for (std::size_t part = 0; part < F<Arch>::count; ++part) {
      Batch p[T][R];
      WASTE_UNROLL
      for (std::size_t k = 0; k < steps; ++k) {
        const std::size_t at = lanes * k + part * Batch::size;
        Batch xk[T];
        WASTE_UNROLL
        for (std::size_t t = 0; t < T; ++t) xk[t] = Batch::load_unaligned(x[t] + at);
        WASTE_UNROLL
        for (std::size_t r = 0; r < R; ++r) {
          const Batch qk = Batch::load_unaligned(q[r] + at);
          WASTE_UNROLL
          for (std::size_t t = 0; t < T; ++t) {
            p[t][r] = k == 0 ? qk * xk[t] : arch::fma<Arch>(qk, xk[t], p[t][r]);
          }
        }
      }
      WASTE_UNROLL
      for (std::size_t r = 0; r < R; ++r) {
        WASTE_UNROLL
        for (std::size_t t = 0; t < T; ++t) {
          Batch& a = acc[t][row + r].v[part];
          a = a + p[t][r];
        }
      }
    }
  }
  template <class Arch, std::size_t R>
  static WASTE_INLINE void tiles(const float (*x)[group], std::size_t tokens,
                                 const float (*q)[group], F<Arch> (*acc)[rows_at_once],
                                 std::size_t row) noexcept {
    std::size_t t = 0;
    for (; t + 3 <= tokens; t += 3) tile<Arch, 3, R>(x + t, q, acc + t, row);
    if (tokens - t == 2) tile<Arch, 2, R>(x + t, q, acc + t, row);
    if (tokens - t == 1) tile<Arch, 1, R>(x + t, q, acc + t, row);
  }

  /// Rows row .. row + m - 1 for n inputs, m up to rows_at_once, n up to tokens_at_once. The inputs
  /// are copied, as rows of a power of two bytes would fall on each other in the cache.
  template <class Traits, class Arch>
  static WASTE_INLINE void block(const VqMatrix& w, const float* x, std::size_t ldx, std::size_t n,
                                 float* y, std::size_t ldy, std::size_t row,
                                 std::size_t m) noexcept {
    const Indices<Traits> indices(w);
    F<Arch> acc[tokens_at_once][rows_at_once];
    for (std::size_t t = 0; t < n; ++t) {
      for (std::size_t r = 0; r < m; ++r) acc[t][r] = arch::broadcast16<Arch>(0.0f);
    }
    for (std::size_t c = 0; c < w.n_cols; c += group) {
      const std::size_t left = w.n_cols - c, cols = left < group ? left : group;
      alignas(64) float xg[tokens_at_once][group], q[4][group];
      for (std::size_t t = 0; t < n; ++t) {
        __builtin_memcpy(xg[t], x + t * ldx + c, cols * sizeof(float));
        if (cols < group) __builtin_memset(xg[t] + cols, 0, (group - cols) * sizeof(float));
      }
      const auto decode_row = [&](std::size_t r, float* to) {
        decode<Traits>(w.codebooks, indices.at(row + r, c / 8), indices.position_stride, cols / 8,
                       to);
      };
      std::size_t r = 0;
      for (; r + 4 <= m; r += 4) {
        for (std::size_t i = 0; i < 4; ++i) decode_row(r + i, q[i]);
        tiles<Arch, 4>(xg, n, q, acc, r);
      }
      for (; r < m; ++r) {
        decode_row(r, q[0]);
        tiles<Arch, 1>(xg, n, q, acc, r);
      }
    }
    for (std::size_t r = 0; r < m; ++r) {
      const float scale = arch::load_one_f16<Arch>(w.scales + 2 * (row + r));
      for (std::size_t t = 0; t < n; ++t) {
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
      for (std::size_t r = row_begin; r < row_end; r += rows_at_once) {
        const std::size_t m = row_end - r < rows_at_once ? row_end - r : rows_at_once;
        block<Traits, Arch>(w, x + t * ldx, ldx, n, y + t * ldy, ldy, r, m);
      }
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
