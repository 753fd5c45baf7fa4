// Products of one trunk matrix with several inputs: each code is decoded once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/kernels/group_matvec.hpp"

namespace waste::kernels {

namespace trunk {

inline constexpr std::size_t tokens_at_once = 16;

/// Rows row .. row + Rows - 1 for up to tokens_at_once inputs. Lane by lane the sums of
/// matvec_rows, in the same order.
template <format::Fmt Format, class Arch, std::size_t Rows>
WASTE_INLINE void matmul_rows(const TrunkMatrix& w, const float* x, std::size_t ldx,
                              std::size_t tokens, float* y, std::size_t ldy,
                              std::size_t row) noexcept {
  using C = codec<Format, Arch>;
  const std::size_t row_bytes = format::trunk_row_bytes(Format, w.n_cols);
  F<Arch> acc[tokens_at_once][Rows];
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t r = 0; r < Rows; ++r) acc[t][r] = arch::broadcast16<Arch>(0.0f);
  }
  for (std::size_t g = 0; g < w.groups(); ++g) {
    const std::size_t left = w.n_cols - g * format::group;
    const bool whole = left >= format::group;
    tail_group<Format, Arch> tail;
    F<Arch> q[Rows][2 * group_pairs];
    float scale[Rows];
    for (std::size_t r = 0; r < Rows; ++r) {
      const std::uint8_t* from = w.payload + (row + r) * row_bytes + g * C::group_bytes;
      if (!whole) from = tail.padded(from, left);
      for (std::size_t k = 0; k < group_pairs; ++k) {
        C::load(from + k * C::pair_bytes, q[r][2 * k], q[r][2 * k + 1]);
      }
      scale[r] = 1.0f;
      if constexpr (C::grouped) {
        scale[r] = arch::load_one_f16<Arch>(w.scales + 2 * ((row + r) * w.groups() + g));
      }
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      const float* xg = x + t * ldx + g * format::group;
      if (!whole) {
        tail.set_x(xg, left);
        xg = tail.x;
      }
      F<Arch> p[Rows];
      for (std::size_t k = 0; k < group_pairs; ++k) {
        F<Arch> x0, x1;
        C::load_x(xg + 32 * k, x0, x1);
        for (std::size_t r = 0; r < Rows; ++r) {
          p[r] = k == 0 ? q[r][0] * x0 : arch::fma(q[r][2 * k], x0, p[r]);
          p[r] = arch::fma(q[r][2 * k + 1], x1, p[r]);
        }
      }
      for (std::size_t r = 0; r < Rows; ++r) {
        acc[t][r] = C::grouped ? arch::fma(arch::broadcast16<Arch>(scale[r]), p[r], acc[t][r])
                               : acc[t][r] + p[r];
      }
    }
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t r = 0; r < Rows; ++r) y[t * ldy + row + r] = arch::sum_tree(acc[t][r]);
  }
}

}  // namespace trunk

/// y[t][r] = sum over c of W[r][c] x[t][c] for `tokens` inputs x + t * ldx; bit for bit what
/// trunk_matvec gives for each. See MatrixKernels.
struct trunk_matmul {
  template <format::Fmt Format, class Arch>
  WASTE_KERNEL static void rows(const TrunkMatrix& w, const float* x, std::size_t ldx,
                                std::size_t tokens, float* y, std::size_t ldy,
                                std::size_t row_begin, std::size_t row_end) noexcept {
    for (std::size_t t = 0; t < tokens; t += trunk::tokens_at_once) {
      const std::size_t left = tokens - t;
      const std::size_t n = left < trunk::tokens_at_once ? left : trunk::tokens_at_once;
      const float* xt = x + t * ldx;
      float* yt = y + t * ldy;
      std::size_t r = row_begin;
      for (; r + 4 <= row_end; r += 4) {
        trunk::matmul_rows<Format, Arch, 4>(w, xt, ldx, n, yt, ldy, r);
      }
      for (; r < row_end; ++r) trunk::matmul_rows<Format, Arch, 1>(w, xt, ldx, n, yt, ldy, r);
    }
  }

  template <class Arch>
  void operator()(Arch, const TrunkMatrix& w, const float* x, std::size_t ldx, std::size_t tokens,
                  float* y, std::size_t ldy, std::size_t row_begin,
                  std::size_t row_end) const noexcept {
    switch (w.fmt) {
      case format::Fmt::f32:
        return rows<format::Fmt::f32, Arch>(w, x, ldx, tokens, y, ldy, row_begin, row_end);
      case format::Fmt::f16:
        return rows<format::Fmt::f16, Arch>(w, x, ldx, tokens, y, ldy, row_begin, row_end);
      case format::Fmt::q8g:
        return rows<format::Fmt::q8g, Arch>(w, x, ldx, tokens, y, ldy, row_begin, row_end);
      case format::Fmt::q4g:
        return rows<format::Fmt::q4g, Arch>(w, x, ldx, tokens, y, ldy, row_begin, row_end);
      case format::Fmt::q3g:
        return rows<format::Fmt::q3g, Arch>(w, x, ldx, tokens, y, ldy, row_begin, row_end);
      default:
        return;
    }
  }
};

}  // namespace waste::kernels
