// The vector vocabulary of the kernels: sixteen f32 lanes on every tier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/f32_generic.hpp"
#include "waste/arch/detail/inline.hpp"
#include "waste/arch/f32x16.hpp"
#if defined(__AVX2__)
#include "waste/arch/detail/f32_avx2.hpp"
#endif
#if defined(__AVX512BW__)
#include "waste/arch/detail/f32_avx512.hpp"
#endif
#if defined(__aarch64__)
#include "waste/arch/detail/f32_neon64.hpp"
#endif

/// Kernels are written once on these functions and on xsimd::batch. A function that takes a batch
/// or pointers names its tier, `fma<Arch>(a, b, c)`; with f32x16 arguments the tier is deduced.
/// Everything is exact or correctly rounded, so that lanes hold the same bits on every tier with
/// fused multiply-add.
namespace waste::arch {

/// a * b + c, rounded once where Arch::has_fma, else twice. xsimd::fma is not a substitute: 8.1
/// has no fused version for AVX-512.
template <class Arch, class T>
WASTE_INLINE xsimd::batch<T, typename Arch::xsimd_arch> fma(
    const xsimd::batch<T, typename Arch::xsimd_arch>& a,
    const xsimd::batch<T, typename Arch::xsimd_arch>& b,
    const xsimd::batch<T, typename Arch::xsimd_arch>& c) noexcept {
  return detail::f32_ops<Arch>::fma(a, b, c);
}
/// The same for one number, for tails beside vector code.
template <class Arch>
WASTE_INLINE float fma(float a, float b, float c) noexcept {
  if constexpr (Arch::has_fma) {
    return __builtin_fmaf(a, b, c);
  } else {
    return a * b + c;
  }
}

template <class Arch>
WASTE_INLINE f32x16<Arch> fma(const f32x16<Arch>& a, const f32x16<Arch>& b,
                              const f32x16<Arch>& c) noexcept {
  f32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = fma<Arch>(a.v[i], b.v[i], c.v[i]);
  return out;
}
template <class Arch>
WASTE_INLINE f32x16<Arch> operator+(const f32x16<Arch>& a, const f32x16<Arch>& b) noexcept {
  f32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = a.v[i] + b.v[i];
  return out;
}
template <class Arch>
WASTE_INLINE f32x16<Arch> operator-(const f32x16<Arch>& a, const f32x16<Arch>& b) noexcept {
  f32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = a.v[i] - b.v[i];
  return out;
}
template <class Arch>
WASTE_INLINE f32x16<Arch> operator*(const f32x16<Arch>& a, const f32x16<Arch>& b) noexcept {
  f32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = a.v[i] * b.v[i];
  return out;
}

template <class Arch>
WASTE_INLINE f32x16<Arch> broadcast16(float value) noexcept {
  f32x16<Arch> out;
  for (auto& v : out.v) v = typename f32x16<Arch>::batch(value);
  return out;
}
/// Sixteen f32 at any address.
template <class Arch>
WASTE_INLINE f32x16<Arch> load_f32(const void* from) noexcept {
  f32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) {
    out.v[i] = f32x16<Arch>::batch::load_unaligned(static_cast<const float*>(from) +
                                                   i * f32x16<Arch>::batch::size);
  }
  return out;
}
template <class Arch>
WASTE_INLINE void store_f32(float* to, const f32x16<Arch>& x) noexcept {
  for (std::size_t i = 0; i < x.count; ++i)
    x.v[i].store_unaligned(to + i * f32x16<Arch>::batch::size);
}
/// The sum of the lanes: t[j] = x[j] + x[j+8], then t[j] + t[j+4], t[j] + t[j+2], t[0] + t[1].
template <class Arch>
WASTE_INLINE float sum_tree(const f32x16<Arch>& x) noexcept {
  return detail::f32_ops<Arch>::sum_tree(x);
}

/// Sixteen IEEE binary16 at any address; subnormals, infinities and NaN are kept.
template <class Arch>
WASTE_INLINE f32x16<Arch> load_f16(const std::uint8_t* from) noexcept {
  return detail::f32_ops<Arch>::load_f16(from);
}
/// One IEEE binary16 at any address.
template <class Arch>
WASTE_INLINE float load_one_f16(const std::uint8_t* from) noexcept {
  return detail::f32_ops<Arch>::load_one_f16(from);
}
/// Sixteen int8 as numbers.
template <class Arch>
WASTE_INLINE f32x16<Arch> load_i8(const std::uint8_t* from) noexcept {
  return detail::f32_ops<Arch>::load_i8(from);
}
/// Sixteen bytes of nibbles: `low` holds (byte & 15) - 8, `high` (byte >> 4) - 8.
template <class Arch>
WASTE_INLINE void load_nibbles(const std::uint8_t* from, f32x16<Arch>& low,
                               f32x16<Arch>& high) noexcept {
  detail::f32_ops<Arch>::load_nibbles(from, low, high);
}
/// Sixteen 3-bit fields, LSB first in six bytes, less 4. Reads seven bytes.
template <class Arch>
WASTE_INLINE f32x16<Arch> load_3bit(const std::uint8_t* from) noexcept {
  return detail::f32_ops<Arch>::load_3bit(from);
}
/// Sixteen bytes of E2M1 nibbles (bit 3 the sign; magnitudes 0, 1/2, 1, 3/2, 2, 3, 4, 6), the even
/// column in the low one: columns 0 .. 15 and 16 .. 31. -0 keeps its sign.
template <class Arch>
WASTE_INLINE void load_e2m1(const std::uint8_t* from, f32x16<Arch>& first,
                            f32x16<Arch>& second) noexcept {
  detail::f32_ops<Arch>::load_e2m1(from, first, second);
}
/// Lanes 0, 2, 4, .. and 1, 3, 5, .. of the 32 numbers a, b.
template <class Arch>
WASTE_INLINE void deinterleave(const f32x16<Arch>& a, const f32x16<Arch>& b, f32x16<Arch>& even,
                               f32x16<Arch>& odd) noexcept {
  detail::f32_ops<Arch>::deinterleave(a, b, even, odd);
}

/// batch::size rows of eight f32, transposed: lane i of out[d] is from[8 i + d].
template <class Arch>
WASTE_INLINE void load_transposed8(const float* from, f32_batch<Arch> (&out)[8]) noexcept {
  detail::f32_ops<Arch>::load_transposed8(from, out);
}

}  // namespace waste::arch
