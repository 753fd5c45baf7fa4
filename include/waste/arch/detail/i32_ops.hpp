// Integer vocabulary of every tier: 16-bit dot products and minima on 32-bit lanes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/inline.hpp"
#include "waste/arch/tags.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace waste::arch::detail {

/// Each lane of a and b is two int16; dot(acc, a, b) = acc + a0 b0 + a1 b1 (modulo 2^32).
/// float_bits is the bit pattern of the lane converted to f32, rounded to nearest even. least is
/// the smallest lane, equal_lanes has bit i set where lane i of both is the same.
template <class Arch>
struct i32_ops {
  using batch = xsimd::batch<std::int32_t, typename Arch::xsimd_arch>;

#if defined(__x86_64__)
  static WASTE_INLINE batch dot(const batch& acc, const batch& a, const batch& b) noexcept {
    return _mm_add_epi32(acc, _mm_madd_epi16(a, b));
  }
  static WASTE_INLINE batch float_bits(const batch& x) noexcept {
    return _mm_castps_si128(_mm_cvtepi32_ps(x));
  }
  static WASTE_INLINE std::int32_t least(const batch& x) noexcept {
    const batch two = xsimd::min(x, batch(_mm_shuffle_epi32(x, 0x4e)));
    return _mm_cvtsi128_si32(xsimd::min(two, batch(_mm_shuffle_epi32(two, 0xb1))));
  }
  static WASTE_INLINE std::uint32_t equal_lanes(const batch& a, const batch& b) noexcept {
    return static_cast<std::uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(a, b))));
  }
#elif defined(__aarch64__)
  static WASTE_INLINE batch dot(const batch& acc, const batch& a, const batch& b) noexcept {
    const int16x8_t u = vreinterpretq_s16_s32(a), v = vreinterpretq_s16_s32(b);
    return vaddq_s32(acc,
                     vpaddq_s32(vmull_s16(vget_low_s16(u), vget_low_s16(v)), vmull_high_s16(u, v)));
  }
  static WASTE_INLINE batch float_bits(const batch& x) noexcept {
    return vreinterpretq_s32_f32(vcvtq_f32_s32(x));
  }
  static WASTE_INLINE std::int32_t least(const batch& x) noexcept { return vminvq_s32(x); }
  static WASTE_INLINE std::uint32_t equal_lanes(const batch& a, const batch& b) noexcept {
    const std::uint32_t bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vceqq_s32(a, b), vld1q_u32(bits)));
  }
#endif
};

/// Eight int16 in one register of any tier.
struct i16x8 {
  typedef std::int16_t lanes __attribute__((vector_size(16)));
  static WASTE_INLINE void subtract(const std::int16_t* a, const std::int16_t* b,
                                    std::int16_t* out) noexcept {
    lanes x, y;
    __builtin_memcpy(&x, a, sizeof x);
    __builtin_memcpy(&y, b, sizeof y);
    x -= y;
    __builtin_memcpy(out, &x, sizeof x);
  }
};

#if defined(__AVX2__)
template <>
struct i32_ops<avx2> {
  using batch = xsimd::batch<std::int32_t, avx2::xsimd_arch>;
  static WASTE_INLINE batch dot(const batch& acc, const batch& a, const batch& b) noexcept {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
  }
  static WASTE_INLINE batch float_bits(const batch& x) noexcept {
    return _mm256_castps_si256(_mm256_cvtepi32_ps(x));
  }
  static WASTE_INLINE std::int32_t least(const batch& x) noexcept {
    const __m128i four = _mm_min_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i two = _mm_min_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_min_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  static WASTE_INLINE std::uint32_t equal_lanes(const batch& a, const batch& b) noexcept {
    const __m256i same = _mm256_cmpeq_epi32(a, b);
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same)));
  }
};
#endif

#if defined(__AVX512BW__)
template <class Arch>
struct i32_ops_avx512 {
  using batch = xsimd::batch<std::int32_t, typename Arch::xsimd_arch>;
  static WASTE_INLINE batch dot(const batch& acc, const batch& a, const batch& b) noexcept {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(acc, a, b);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
  }
  static WASTE_INLINE batch float_bits(const batch& x) noexcept {
    return _mm512_castps_si512(_mm512_cvtepi32_ps(x));
  }
  static WASTE_INLINE std::int32_t least(const batch& x) noexcept {
    return _mm512_reduce_min_epi32(x);
  }
  static WASTE_INLINE std::uint32_t equal_lanes(const batch& a, const batch& b) noexcept {
    return _mm512_cmpeq_epi32_mask(a, b);
  }
};
template <>
struct i32_ops<avx512bw> : i32_ops_avx512<avx512bw> {};
template <>
struct i32_ops<icelake> : i32_ops_avx512<icelake> {};
#endif

}  // namespace waste::arch::detail
