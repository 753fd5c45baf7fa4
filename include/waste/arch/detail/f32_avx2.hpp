// f32 vocabulary of AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include "waste/arch/detail/f32_generic.hpp"

namespace waste::arch::detail {

template <>
struct f32_ops<avx2> {
  using F = f32x16<avx2>;
  using f32 = xsimd::batch<float, avx2::xsimd_arch>;
  using f64 = xsimd::batch<double, avx2::xsimd_arch>;

  static WASTE_INLINE f32 fma(const f32& a, const f32& b, const f32& c) noexcept {
    return _mm256_fmadd_ps(a, b, c);
  }
  static WASTE_INLINE f64 fma(const f64& a, const f64& b, const f64& c) noexcept {
    return _mm256_fmadd_pd(a, b, c);
  }

  static WASTE_INLINE float sum8(__m256 t8) noexcept {
    const __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
  }
  static WASTE_INLINE float sum_tree(const F& x) noexcept {
    return sum8(_mm256_add_ps(x.v[0], x.v[1]));
  }

  static WASTE_INLINE float load_one_f16(const std::uint8_t* from) noexcept {
    return _cvtsh_ss(load_le<std::uint16_t>(from));
  }
  static WASTE_INLINE F load_f16(const std::uint8_t* from) noexcept {
    F out;
    out.v[0] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    out.v[1] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)));
    return out;
  }
  static WASTE_INLINE __m128i load8(const std::uint8_t* from) noexcept {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  }
  static WASTE_INLINE F load_i8(const std::uint8_t* from) noexcept {
    F out;
    out.v[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(from)));
    out.v[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(from + 8)));
    return out;
  }
  static WASTE_INLINE void load_nibbles(const std::uint8_t* from, F& low, F& high) noexcept {
    const __m256i bias = _mm256_set1_epi32(8);
    for (int i = 0; i < 2; ++i) {
      const __m256i bytes = _mm256_cvtepu8_epi32(load8(from + 8 * i));
      const __m256i lo = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
      const __m256i hi = _mm256_srli_epi32(bytes, 4);
      low.v[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(lo, bias));
      high.v[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(hi, bias));
    }
  }
  static WASTE_INLINE F load_3bit(const std::uint8_t* from) noexcept {
    const __m256i shifts = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    F out;
    for (int i = 0; i < 2; ++i) {
      const __m256i word = _mm256_set1_epi32(load_le<std::int32_t>(from + 3 * i));
      const __m256i code = _mm256_and_si256(_mm256_srlv_epi32(word, shifts), _mm256_set1_epi32(7));
      out.v[i] = _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(4)));
    }
    return out;
  }
  // The numbers' upper 16 bits hold them whole: two tables of bytes give those.
  static WASTE_INLINE void load_e2m1(const std::uint8_t* from, F& first, F& second) noexcept {
    const __m128i top = _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41,
                                      -0x41, -0x41, -0x40, -0x40, -0x40, -0x40);
    const __m128i next = _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80,
                                       -0x40, 0, 0x40, -0x80, -0x40);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    const __m128i nibbles[2] = {_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)};
    F* const out[2] = {&first, &second};
    for (int i = 0; i < 2; ++i) {
      const __m128i t = _mm_shuffle_epi8(top, nibbles[i]), n = _mm_shuffle_epi8(next, nibbles[i]);
      const __m128i words[2] = {_mm_unpacklo_epi8(n, t), _mm_unpackhi_epi8(n, t)};
      for (int h = 0; h < 2; ++h) {
        out[i]->v[h] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words[h]), 16));
      }
    }
  }
  static WASTE_INLINE void deinterleave(const F& a, const F& b, F& even, F& odd) noexcept {
    const F* const in[2] = {&a, &b};
    for (int i = 0; i < 2; ++i) {
      const __m256 x = in[i]->v[0], y = in[i]->v[1];
      even.v[i] = in_order(_mm256_shuffle_ps(x, y, 0x88));
      odd.v[i] = in_order(_mm256_shuffle_ps(x, y, 0xdd));
    }
  }
  // The shuffle works within 128-bit halves and leaves the quarters as 0, 2, 1, 3.
  static WASTE_INLINE __m256 in_order(__m256 x) noexcept {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
  }

  static WASTE_INLINE void transpose8(const float* from, __m256 (&out)[8]) noexcept {
    __m256 r[8], t[8];
    for (int i = 0; i < 4; ++i) {  // rows i and i + 4 side by side
      r[i] = pair(from + 8 * i, from + 8 * i + 32);
      r[i + 4] = pair(from + 8 * i + 4, from + 8 * i + 36);
    }
    for (int h = 0; h < 8; h += 4) {
      t[h] = _mm256_unpacklo_ps(r[h], r[h + 1]);
      t[h + 1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
      t[h + 2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]);
      t[h + 3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
      out[h] = _mm256_shuffle_ps(t[h], t[h + 2], 0x44);
      out[h + 1] = _mm256_shuffle_ps(t[h], t[h + 2], 0xee);
      out[h + 2] = _mm256_shuffle_ps(t[h + 1], t[h + 3], 0x44);
      out[h + 3] = _mm256_shuffle_ps(t[h + 1], t[h + 3], 0xee);
    }
  }
  static WASTE_INLINE __m256 pair(const float* low, const float* high) noexcept {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
  }
  static WASTE_INLINE void load_transposed8(const float* from, f32 (&out)[8]) noexcept {
    __m256 t[8];
    transpose8(from, t);
    for (int d = 0; d < 8; ++d) out[d] = t[d];
  }
};

}  // namespace waste::arch::detail
