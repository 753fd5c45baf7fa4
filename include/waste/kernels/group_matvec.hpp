// Products of trunk matrices in every trunk format, f32 activations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"
#include "waste/format/trunk_view.hpp"

namespace waste::kernels {

/// The sum that every tier computes. Columns come in groups of 128, each in eight steps of sixteen
/// columns, one column a lane. With q the stored number (a code; the value itself for F32 and
/// F16), lane j of group g and row r holds
///     p[j] = q x summed over the steps in order: a product, then fused multiply-adds;
///     a[j] = fma(scale[r][g], p[j], a[j])      (F32 and F16: a[j] + p[j])
/// and y[r] is the sum tree of a. Step k of F32, F16, Q8G and Q3G takes columns 16k .. 16k+15.
/// Q4G's steps 2k and 2k+1 take the even and the odd columns of 32k .. 32k+31, which are the low
/// and high nibbles of sixteen bytes. Columns past the last count as x = 0.
///
/// Bound: a group's chain has 8 terms and a row's 1 + ceil(cols / 128), so the error stays below
/// (10 + cols / 128) 2^-24 sum |w x|.
namespace trunk {

inline constexpr std::size_t group_pairs = 4;  ///< pairs of steps: 32 columns each

template <class Arch>
using F = arch::f32x16<Arch>;

/// How each format's rows yield 32 columns as two lanes-of-sixteen, and how x must be arranged.
template <format::Fmt Format, class Arch>
struct codec {
  static constexpr bool grouped = format::is_grouped(Format);
  static constexpr bool nibbles = Format == format::Fmt::q4g;
  static constexpr std::size_t pair_bytes = Format == format::Fmt::f32   ? 128
                                            : Format == format::Fmt::f16 ? 64
                                            : Format == format::Fmt::q8g ? 32
                                            : Format == format::Fmt::q4g ? 16
                                                                         : 12;
  static constexpr std::size_t group_bytes = group_pairs * pair_bytes;

  static WASTE_INLINE void load(const std::uint8_t* from, F<Arch>& first,
                                F<Arch>& second) noexcept {
    if constexpr (Format == format::Fmt::f32) {
      first = arch::load_f32<Arch>(from);
      second = arch::load_f32<Arch>(from + 64);
    } else if constexpr (Format == format::Fmt::f16) {
      first = arch::load_f16<Arch>(from);
      second = arch::load_f16<Arch>(from + 32);
    } else if constexpr (Format == format::Fmt::q8g) {
      first = arch::load_i8<Arch>(from);
      second = arch::load_i8<Arch>(from + 16);
    } else if constexpr (nibbles) {
      arch::load_nibbles<Arch>(from, first, second);
    } else {
      first = arch::load_3bit<Arch>(from);
      second = arch::load_3bit<Arch>(from + 6);
    }
  }
  static WASTE_INLINE void load_x(const float* x, F<Arch>& first, F<Arch>& second) noexcept {
    first = arch::load_f32<Arch>(x);
    second = arch::load_f32<Arch>(x + 16);
    if constexpr (nibbles) {
      const F<Arch> a = first, b = second;
      arch::deinterleave(a, b, first, second);
    }
  }
};

/// The last columns of a row where cols is no multiple of 128, padded to a whole group. The payload
/// of a grouped format is padded already.
template <format::Fmt Format, class Arch>
struct tail_group {
  using C = codec<Format, Arch>;
  float x[format::group];
  alignas(64) std::uint8_t weights[C::grouped ? 1 : C::group_bytes];

  WASTE_INLINE void set_x(const float* from, std::size_t cols) noexcept {
    __builtin_memset(x, 0, sizeof x);
    __builtin_memcpy(x, from, cols * sizeof(float));
  }
  WASTE_INLINE const std::uint8_t* padded(const std::uint8_t* from, std::size_t cols) noexcept {
    if constexpr (C::grouped) {
      return from;
    } else {
      constexpr std::size_t element_bytes = C::group_bytes / format::group;
      __builtin_memset(weights, 0, sizeof weights);
      __builtin_memcpy(weights, from, cols * element_bytes);
      return weights;
    }
  }
};

template <format::Fmt Format, class Arch, std::size_t Rows>
WASTE_INLINE void add_group(const std::uint8_t* const (&codes)[Rows], const float (&scale)[Rows],
                            const float* x, F<Arch> (&acc)[Rows]) noexcept {
  using C = codec<Format, Arch>;
  F<Arch> p[Rows];
  for (std::size_t k = 0; k < group_pairs; ++k) {
    F<Arch> x0, x1;
    C::load_x(x + 32 * k, x0, x1);
    for (std::size_t r = 0; r < Rows; ++r) {
      F<Arch> q0, q1;
      C::load(codes[r] + k * C::pair_bytes, q0, q1);
      p[r] = k == 0 ? q0 * x0 : arch::fma(q0, x0, p[r]);
      p[r] = arch::fma(q1, x1, p[r]);
    }
  }
  for (std::size_t r = 0; r < Rows; ++r) {
    acc[r] =
        C::grouped ? arch::fma(arch::broadcast16<Arch>(scale[r]), p[r], acc[r]) : acc[r] + p[r];
  }
}

/// Rows row .. row + Rows - 1 of a product with one input.
template <format::Fmt Format, class Arch, std::size_t Rows>
WASTE_INLINE void matvec_rows(const TrunkMatrix& w, const float* x, float* y,
                              std::size_t row) noexcept {
  using C = codec<Format, Arch>;
  const std::size_t row_bytes = format::trunk_row_bytes(Format, w.n_cols);
  const std::size_t groups = w.groups(), whole = w.n_cols / format::group;
  const std::uint8_t* codes[Rows];
  const std::uint8_t* scales[Rows];
  float scale[Rows];
  F<Arch> acc[Rows];
  for (std::size_t r = 0; r < Rows; ++r) {
    codes[r] = w.payload + (row + r) * row_bytes;
    scales[r] = C::grouped ? w.scales + 2 * (row + r) * groups : nullptr;
    acc[r] = arch::broadcast16<Arch>(0.0f);
    scale[r] = 1.0f;
  }
  for (std::size_t g = 0; g < whole; ++g) {
    if constexpr (C::grouped) {
      for (std::size_t r = 0; r < Rows; ++r) {
        scale[r] = arch::load_one_f16<Arch>(scales[r] + 2 * g);
      }
    }
    // Rows end before the processor's own prefetcher has caught up with them: fetch the next ones'
    // bytes, into the second cache as in vq_bytes. Past the matrix this does nothing.
    for (std::size_t r = 0; r < Rows; ++r) {
      for (std::size_t line = 0; line < C::group_bytes; line += 64) {
        __builtin_prefetch(codes[r] + Rows * row_bytes + line, 0, 2);
      }
    }
    add_group<Format, Arch, Rows>(codes, scale, x + g * format::group, acc);
    for (std::size_t r = 0; r < Rows; ++r) codes[r] += C::group_bytes;
  }
  if (const std::size_t rest = w.n_cols % format::group; rest != 0) {
    tail_group<Format, Arch> tail;
    tail.set_x(x + whole * format::group, rest);
    for (std::size_t r = 0; r < Rows; ++r) {
      if constexpr (C::grouped) scale[r] = arch::load_one_f16<Arch>(scales[r] + 2 * whole);
      const std::uint8_t* const one_codes[1] = {tail.padded(codes[r], rest)};
      const float one_scale[1] = {scale[r]};
      F<Arch> one_acc[1] = {acc[r]};
      add_group<Format, Arch, 1>(one_codes, one_scale, tail.x, one_acc);
      acc[r] = one_acc[0];
    }
  }
  for (std::size_t r = 0; r < Rows; ++r) y[row + r] = arch::sum_tree(acc[r]);
}

}  // namespace trunk

/// y[r] = sum over c of W[r][c] x[c] for rows [row_begin, row_end); see MatrixKernels.
struct trunk_matvec {
  template <format::Fmt Format, class Arch>
  WASTE_KERNEL static void rows(const TrunkMatrix& w, const float* x, float* y,
                                std::size_t row_begin, std::size_t row_end) noexcept {
    std::size_t r = row_begin;
    for (; r + 4 <= row_end; r += 4) trunk::matvec_rows<Format, Arch, 4>(w, x, y, r);
    for (; r < row_end; ++r) trunk::matvec_rows<Format, Arch, 1>(w, x, y, r);
  }

  template <class Arch>
  void operator()(Arch, const TrunkMatrix& w, const float* x, float* y, std::size_t row_begin,
                  std::size_t row_end) const noexcept {
    switch (w.fmt) {
      case format::Fmt::f32:
        return rows<format::Fmt::f32, Arch>(w, x, y, row_begin, row_end);
      case format::Fmt::f16:
        return rows<format::Fmt::f16, Arch>(w, x, y, row_begin, row_end);
      case format::Fmt::q8g:
        return rows<format::Fmt::q8g, Arch>(w, x, y, row_begin, row_end);
      case format::Fmt::q4g:
        return rows<format::Fmt::q4g, Arch>(w, x, y, row_begin, row_end);
      case format::Fmt::q3g:
        return rows<format::Fmt::q3g, Arch>(w, x, y, row_begin, row_end);
      default:
        return;
    }
  }
};

/// Row `row` dequantized into out[0 .. cols): f32(scale) * code, rounded once.
struct trunk_row {
  template <format::Fmt Format, class Arch>
  WASTE_KERNEL static void decode(const TrunkMatrix& w, std::size_t row, float* out) noexcept {
    using C = trunk::codec<Format, Arch>;
    const std::uint8_t* codes = w.payload + row * format::trunk_row_bytes(Format, w.n_cols);
    for (std::size_t g = 0; g < w.groups(); ++g) {
      const std::size_t left = w.n_cols - g * format::group;
      const std::size_t cols = left < format::group ? left : format::group;
      trunk::tail_group<Format, Arch> tail;
      const std::uint8_t* from = cols < format::group ? tail.padded(codes, cols) : codes;
      float scale = 1.0f;
      if constexpr (C::grouped) {
        scale = arch::load_one_f16<Arch>(w.scales + 2 * (row * w.groups() + g));
      }
      float values[format::group];
      for (std::size_t k = 0; k < trunk::group_pairs; ++k) {
        trunk::F<Arch> first, second;
        C::load(from + k * C::pair_bytes, first, second);
        if constexpr (C::grouped) {
          first = first * arch::broadcast16<Arch>(scale);
          second = second * arch::broadcast16<Arch>(scale);
        }
        float* to = values + 32 * k;
        if constexpr (C::nibbles) {
          float lanes[32];
          arch::store_f32(lanes, first);
          arch::store_f32(lanes + 16, second);
          for (std::size_t i = 0; i < 16; ++i) {
            to[2 * i] = lanes[i];
            to[2 * i + 1] = lanes[16 + i];
          }
        } else {
          arch::store_f32(to, first);
          arch::store_f32(to + 16, second);
        }
      }
      __builtin_memcpy(out + g * format::group, values, cols * sizeof(float));
      codes += C::group_bytes;
    }
  }

  template <class Arch>
  void operator()(Arch, const TrunkMatrix& w, std::size_t row, float* out) const noexcept {
    switch (w.fmt) {
      case format::Fmt::f32:
        return decode<format::Fmt::f32, Arch>(w, row, out);
      case format::Fmt::f16:
        return decode<format::Fmt::f16, Arch>(w, row, out);
      case format::Fmt::q8g:
        return decode<format::Fmt::q8g, Arch>(w, row, out);
      case format::Fmt::q4g:
        return decode<format::Fmt::q4g, Arch>(w, row, out);
      case format::Fmt::q3g:
        return decode<format::Fmt::q3g, Arch>(w, row, out);
      default:
        return;
    }
  }
};

}  // namespace waste::kernels
