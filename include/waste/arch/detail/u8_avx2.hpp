// Byte vocabulary of AVX2: pshufb looks sixteen entries up, differences join four of them to 64.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "waste/arch/detail/interleave.hpp"
#include "waste/arch/detail/u8_generic.hpp"

namespace waste::arch::detail {

template <>
struct u8_ops<avx2> {
  struct vec {
    __m256i v;
  };
  /// As 16-bit lanes: `all` sums whole lanes (even byte + 256 odd byte, modulo 2^16), `odd` their
  /// high bytes.
  struct sums {
    __m256i all, odd;
  };
  static constexpr std::size_t lanes = 32;
  static constexpr std::size_t groups(std::size_t) noexcept { return 1; }
  static constexpr bool looks_up_f32 = false;

  template <std::size_t Run, std::size_t R, std::size_t... Lane>
  static WASTE_INLINE __m256i lanes_of(std::index_sequence<Lane...>) noexcept {
    return _mm256_setr_epi8((Lane % Run == R ? -1 : 0)...);
  }
  template <std::size_t Run, std::size_t... R>
  static WASTE_INLINE __m256i plane(const std::uint8_t* from,
                                    std::index_sequence<0, R...>) noexcept {
    __m256i out = load(from);
    ((out = _mm256_blendv_epi8(out, load(from + interleave<32, Run>::off(R)),
                               lanes_of<Run, R>(std::make_index_sequence<32>()))),
     ...);
    return out;
  }
  template <std::size_t Run>
  static WASTE_INLINE void deinterleave(const std::uint8_t* from, vec (&planes)[Run]) noexcept {
    for (std::size_t s = 0; s < Run; ++s) {
      planes[s].v = plane<Run>(from + s, std::make_index_sequence<Run>());
    }
  }
  template <std::size_t Run>
  static constexpr std::size_t row_of_lane(std::size_t lane) noexcept {
    return interleave<32, Run>::row_of_lane(lane);
  }
  /// Sums come out as the 16 even lanes, then the 16 odd ones.
  static constexpr std::size_t lane_of_sum(std::size_t i) noexcept { return 2 * (i % 16) + i / 16; }

  static WASTE_INLINE void unpack6(const vec (&b)[3], vec (&f)[4]) noexcept {
    f[0] = b[0];
    f[1].v = merge(_mm256_srli_epi16(b[0].v, 6), _mm256_slli_epi16(b[1].v, 2), 3);
    f[2].v = merge(_mm256_srli_epi16(b[1].v, 4), _mm256_slli_epi16(b[2].v, 4), 15);
    f[3].v = _mm256_srli_epi16(b[2].v, 2);
  }
  static WASTE_INLINE __m256i merge(__m256i a, __m256i b, char low) noexcept {
    const __m256i mask = _mm256_set1_epi8(low);
    return _mm256_or_si256(_mm256_and_si256(a, mask), _mm256_andnot_si256(mask, b));
  }

  // The table holds T0, T0^T1, T1^T2, T2^T3 of its quarters of sixteen entries. pshufb gives 0 for
  // an index with bit 7 set, which index - 16 q has where the index lies below quarter q: the
  // exclusive or of the four telescopes to the entry.
  template <std::size_t N>
  static WASTE_INLINE void lookup64(const std::uint8_t* table, const vec (&index)[N],
                                    vec (&out)[N]) noexcept {
    quarters<N> x;
    x.set(index);
    telescope(table, x, out);
  }
  template <std::size_t N>
  static WASTE_INLINE void lookup256(const std::uint8_t* table, const vec (&index)[N],
                                     vec (&out)[N]) noexcept {
    quarters<N> x;
    x.set(index);
    vec part[4][N];
    for (int p = 0; p < 4; ++p) telescope(table + 64 * p, x, part[p]);
    for (std::size_t i = 0; i < N; ++i) {
      const __m256i bit6 = _mm256_add_epi8(index[i].v, index[i].v);
      out[i].v =
          _mm256_blendv_epi8(_mm256_blendv_epi8(part[0][i].v, part[1][i].v, bit6),
                             _mm256_blendv_epi8(part[2][i].v, part[3][i].v, bit6), index[i].v);
    }
  }
  /// index & 63, less 16 q.
  template <std::size_t N>
  struct quarters {
    __m256i less[4][N];
    WASTE_INLINE void set(const vec (&index)[N]) noexcept {
      for (std::size_t i = 0; i < N; ++i) {
        less[0][i] = _mm256_and_si256(index[i].v, _mm256_set1_epi8(63));
        for (int q = 1; q < 4; ++q) {
          less[q][i] = _mm256_sub_epi8(less[q - 1][i], _mm256_set1_epi8(16));
        }
      }
    }
  };
  template <std::size_t N>
  static WASTE_INLINE void telescope(const std::uint8_t* table, const quarters<N>& x,
                                     vec (&out)[N]) noexcept {
    for (int q = 0; q < 4; ++q) {
      const __m256i t = broadcast(table + 16 * q);
      for (std::size_t i = 0; i < N; ++i) {
        const __m256i entry = _mm256_shuffle_epi8(t, x.less[q][i]);
        out[i].v = q == 0 ? entry : _mm256_xor_si256(out[i].v, entry);
      }
    }
  }
  static WASTE_INLINE void prepare_table64(std::uint8_t* table) noexcept {
    __m128i* const t = reinterpret_cast<__m128i*>(table);
    for (int q = 3; q > 0; --q) _mm_store_si128(t + q, _mm_xor_si128(t[q], t[q - 1]));
  }

  static WASTE_INLINE vec add(const vec& a, const vec& b) noexcept {
    return {_mm256_add_epi8(a.v, b.v)};
  }
  static WASTE_INLINE void clear(sums& s) noexcept { s.all = s.odd = _mm256_setzero_si256(); }
  static WASTE_INLINE void accumulate(sums& s, const vec& x) noexcept {
    s.all = _mm256_add_epi16(s.all, x.v);
    s.odd = _mm256_add_epi16(s.odd, _mm256_srli_epi16(x.v, 8));
  }
  template <class F>
  static WASTE_INLINE void fold(const sums& s0, const sums& s1, const F& f) noexcept {
    for (std::size_t parity = 0; parity < 2; ++parity) {
      const __m256i a = parity ? s0.odd : even(s0);
      const __m256i b = parity ? s1.odd : even(s1);
      f(16 * parity, to_f32(_mm256_castsi256_si128(a)), to_f32(_mm256_castsi256_si128(b)));
      f(16 * parity + 8, to_f32(_mm256_extracti128_si256(a, 1)),
        to_f32(_mm256_extracti128_si256(b, 1)));
    }
  }
  static WASTE_INLINE __m256i even(const sums& s) noexcept {
    return _mm256_sub_epi16(s.all, _mm256_slli_epi16(s.odd, 8));
  }
  static WASTE_INLINE f32_batch<avx2> to_f32(__m128i u16) noexcept {
    return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(u16));
  }

  // packus works within 128-bit halves: the permutation brings the quarters back in order.
  static WASTE_INLINE __m256i round_u16(const f32x16<avx2>& x) noexcept {
    return _mm256_permute4x64_epi64(
        _mm256_packus_epi32(_mm256_cvtps_epi32(x.v[0]), _mm256_cvtps_epi32(x.v[1])), 0xd8);
  }
  static WASTE_INLINE void store_u8(std::uint8_t* to, const f32x16<avx2>& x) noexcept {
    const __m256i q = round_u16(x);
    const __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  }
  template <int Shift>
  static WASTE_INLINE void store_high_low(std::uint8_t* high, std::uint8_t* low,
                                          const f32x16<avx2>& x) noexcept {
    const __m256i q = round_u16(x);
    const __m256i both = _mm256_permute4x64_epi64(
        _mm256_packus_epi16(_mm256_srli_epi16(q, Shift),
                            _mm256_and_si256(q, _mm256_set1_epi16((1 << Shift) - 1))),
        0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm256_castsi256_si128(both));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm256_extracti128_si256(both, 1));
  }

  static WASTE_INLINE __m256i load(const std::uint8_t* from) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static WASTE_INLINE __m256i broadcast(const std::uint8_t* from) noexcept {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  }
};

}  // namespace waste::arch::detail
