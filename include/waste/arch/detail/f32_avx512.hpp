// f32 vocabulary of the AVX-512 tiers.
#pragma once

#include <immintrin.h>

#include "waste/arch/detail/f32_avx2.hpp"

namespace waste::arch::detail {

template <class Arch>
struct f32_ops_avx512 {
  using F = f32x16<Arch>;
  using f32 = xsimd::batch<float, typename Arch::xsimd_arch>;
  using f64 = xsimd::batch<double, typename Arch::xsimd_arch>;

  static WASTE_INLINE f32 fma(const f32& a, const f32& b, const f32& c) noexcept {
    return _mm512_fmadd_ps(a, b, c);
  }
  static WASTE_INLINE f64 fma(const f64& a, const f64& b, const f64& c) noexcept {
    return _mm512_fmadd_pd(a, b, c);
  }
  static WASTE_INLINE float sum_tree(const F& x) noexcept {
    return f32_ops<avx2>::sum8(
        _mm256_add_ps(_mm512_castps512_ps256(x.v[0]), _mm512_extractf32x8_ps(x.v[0], 1)));
  }
  static WASTE_INLINE float load_one_f16(const std::uint8_t* from) noexcept {
    return _cvtsh_ss(load_le<std::uint16_t>(from));
  }
  static WASTE_INLINE F load_f16(const std::uint8_t* from) noexcept {
    return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))}};
  }
  static WASTE_INLINE __m128i load16(const std::uint8_t* from) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static WASTE_INLINE F load_i8(const std::uint8_t* from) noexcept {
    return {{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(from)))}};
  }
  // vpermps reads only the low four bits of an index: one instruction decodes sixteen codes.
  static WASTE_INLINE void load_nibbles(const std::uint8_t* from, F& low, F& high) noexcept {
    const __m512 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i bytes = _mm512_cvtepu8_epi32(load16(from));
    low.v[0] = _mm512_permutexvar_ps(bytes, codes);
    high.v[0] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), codes);
  }
  // The index's bit 3 belongs to the next code, so the table repeats after eight entries.
  static WASTE_INLINE F load_3bit(const std::uint8_t* from) noexcept {
    const __m512 codes = _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);
    const __m512i shifts =
        _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 0, 3, 6, 9, 12, 15, 18, 21);
    const __m512i first = _mm512_set1_epi32(load_le<std::int32_t>(from));
    const __m512i words = _mm512_mask_set1_epi32(first, 0xff00, load_le<std::int32_t>(from + 3));
    return {{_mm512_permutexvar_ps(_mm512_srlv_epi32(words, shifts), codes)}};
  }
  static WASTE_INLINE void load_e2m1(const std::uint8_t* from, F& first, F& second) noexcept {
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                         -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    const __m128i bytes = load16(from), high = _mm_srli_epi16(bytes, 4);
    first.v[0] =
        _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, high)), values);
    second.v[0] =
        _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpackhi_epi8(bytes, high)), values);
  }
  static WASTE_INLINE void deinterleave(const F& a, const F& b, F& even, F& odd) noexcept {
    const __m512i evens =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    even.v[0] = _mm512_permutex2var_ps(a.v[0], evens, b.v[0]);
    odd.v[0] = _mm512_permutex2var_ps(a.v[0], odds, b.v[0]);
  }
  static WASTE_INLINE void load_transposed8(const float* from, f32 (&out)[8]) noexcept {
    __m256 low[8], high[8];
    f32_ops<avx2>::transpose8(from, low);
    f32_ops<avx2>::transpose8(from + 64, high);
    for (int d = 0; d < 8; ++d) {
      out[d] = _mm512_insertf32x8(_mm512_castps256_ps512(low[d]), high[d], 1);
    }
  }
};

template <>
struct f32_ops<avx512bw> : f32_ops_avx512<avx512bw> {};
template <>
struct f32_ops<icelake> : f32_ops_avx512<icelake> {};

}  // namespace waste::arch::detail
