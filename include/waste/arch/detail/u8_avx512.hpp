// Byte vocabulary of the AVX-512 tiers: vpshufb and differences, or VBMI's whole-register lookups.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "waste/arch/detail/f32_avx512.hpp"
#include "waste/arch/detail/interleave.hpp"
#include "waste/arch/detail/u8_avx2.hpp"

namespace waste::arch::detail {

template <class Arch>
struct u8_ops_avx512 {
  struct vec {
    __m512i v;
  };
  /// As in u8_ops<avx2>.
  struct sums {
    __m512i all, odd;
  };
  static constexpr std::size_t lanes = 64;
  // A table of 256 entries is four registers to load, a chunk of such tables nearly all of the
  // nearest cache: the fewer times it is gone through, the better.
  static constexpr std::size_t groups(std::size_t entries) noexcept { return entries > 64 ? 4 : 2; }

  template <std::size_t Run>
  static constexpr __mmask64 lanes_of(std::size_t residue) noexcept {
    __mmask64 out = 0;
    for (std::size_t lane = residue; lane < 64; lane += Run) out |= __mmask64{1} << lane;
    return out;
  }
  // Masked loads do not fault on the bytes that they leave out.
  template <std::size_t Run, std::size_t... R>
  static WASTE_INLINE __m512i plane(const std::uint8_t* from,
                                    std::index_sequence<0, R...>) noexcept {
    __m512i out = sizeof...(R) == 0 ? _mm512_loadu_si512(from)
                                    : _mm512_maskz_loadu_epi8(lanes_of<Run>(0), from);
    ((out = _mm512_mask_loadu_epi8(out, lanes_of<Run>(R), from + interleave<64, Run>::off(R))),
     ...);
    return out;
  }
  template <std::size_t Run>
  static WASTE_INLINE void deinterleave(const std::uint8_t* from, vec (&planes)[Run]) noexcept {
    if constexpr (Run == 2) {
      const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
      constexpr __mmask64 odd = lanes_of<2>(1);
      planes[0].v = _mm512_mask_blend_epi8(odd, a, _mm512_slli_epi16(b, 8));
      planes[1].v = _mm512_mask_blend_epi8(odd, _mm512_srli_epi16(a, 8), b);
    } else {
      for (std::size_t s = 0; s < Run; ++s) {
        planes[s].v = plane<Run>(from + s, std::make_index_sequence<Run>());
      }
    }
  }
  template <std::size_t Run>
  static constexpr std::size_t row_of_lane(std::size_t lane) noexcept {
    return interleave<64, Run>::row_of_lane(lane);
  }
  /// Sums come out as the 32 even lanes, then the 32 odd ones.
  static constexpr std::size_t lane_of_sum(std::size_t i) noexcept { return 2 * (i % 32) + i / 32; }

  // 0xca is "a ? b : c" bit by bit.
  static WASTE_INLINE void unpack6(const vec (&b)[3], vec (&f)[4]) noexcept {
    f[0] = b[0];
    f[1].v = _mm512_ternarylogic_epi64(_mm512_set1_epi8(3), _mm512_srli_epi16(b[0].v, 6),
                                       _mm512_slli_epi16(b[1].v, 2), 0xca);
    f[2].v = _mm512_ternarylogic_epi64(_mm512_set1_epi8(15), _mm512_srli_epi16(b[1].v, 4),
                                       _mm512_slli_epi16(b[2].v, 4), 0xca);
    f[3].v = _mm512_srli_epi16(b[2].v, 2);
  }

  static WASTE_INLINE vec add(const vec& a, const vec& b) noexcept {
    return {_mm512_add_epi8(a.v, b.v)};
  }
  static WASTE_INLINE void clear(sums& s) noexcept { s.all = s.odd = _mm512_setzero_si512(); }
  static WASTE_INLINE void accumulate(sums& s, const vec& x) noexcept {
    s.all = _mm512_add_epi16(s.all, x.v);
    s.odd = _mm512_add_epi16(s.odd, _mm512_srli_epi16(x.v, 8));
  }
  template <class F>
  static WASTE_INLINE void fold(const sums& s0, const sums& s1, const F& f) noexcept {
    for (std::size_t parity = 0; parity < 2; ++parity) {
      const __m512i a = parity ? s0.odd : even(s0.all, s0.odd);
      const __m512i b = parity ? s1.odd : even(s1.all, s1.odd);
      f(32 * parity, to_f32(_mm512_castsi512_si256(a)), to_f32(_mm512_castsi512_si256(b)));
      f(32 * parity + 16, to_f32(_mm512_extracti64x4_epi64(a, 1)),
        to_f32(_mm512_extracti64x4_epi64(b, 1)));
    }
  }
  static WASTE_INLINE __m512i even(__m512i all, __m512i odd) noexcept {
    return _mm512_sub_epi16(all, _mm512_slli_epi16(odd, 8));
  }
  static WASTE_INLINE f32_batch<Arch> to_f32(__m256i u16) noexcept {
    return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(u16));
  }

  static WASTE_INLINE void store_u8(std::uint8_t* to, const f32x16<Arch>& x) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x.v[0])));
  }
  template <int Shift>
  static WASTE_INLINE void store_high_low(std::uint8_t* high, std::uint8_t* low,
                                          const f32x16<Arch>& x) noexcept {
    const __m512i q = _mm512_cvtps_epi32(x.v[0]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high),
                     _mm512_cvtusepi32_epi8(_mm512_srli_epi32(q, Shift)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(_mm512_and_si512(
                                                          q, _mm512_set1_epi32((1 << Shift) - 1))));
  }
};

template <>
struct u8_ops<avx512bw> : u8_ops_avx512<avx512bw> {
  static constexpr bool looks_up_f32 = false;
  template <std::size_t N>
  static WASTE_INLINE void lookup64(const std::uint8_t* table, const vec (&index)[N],
                                    vec (&out)[N]) noexcept {
    __m512i x[N];
    for (std::size_t i = 0; i < N; ++i) {
      x[i] = _mm512_and_si512(index[i].v, _mm512_set1_epi8(63));
    }
    telescope(table, x, out);
  }
  template <std::size_t N>
  static WASTE_INLINE void lookup256(const std::uint8_t* table, const vec (&index)[N],
                                     vec (&out)[N]) noexcept {
    __m512i x[N];
    vec part[4][N];
    for (std::size_t i = 0; i < N; ++i) {
      x[i] = _mm512_and_si512(index[i].v, _mm512_set1_epi8(63));
    }
    for (int p = 0; p < 4; ++p) telescope(table + 64 * p, x, part[p]);
    for (std::size_t i = 0; i < N; ++i) {
      const __mmask64 bit6 = _mm512_test_epi8_mask(index[i].v, _mm512_set1_epi8(64));
      out[i].v = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index[i].v),
                                        _mm512_mask_blend_epi8(bit6, part[0][i].v, part[1][i].v),
                                        _mm512_mask_blend_epi8(bit6, part[2][i].v, part[3][i].v));
    }
  }
  // As in u8_ops<avx2>; 0x96 is the exclusive or of three.
  template <std::size_t N>
  static WASTE_INLINE void telescope(const std::uint8_t* table, const __m512i (&x)[N],
                                     vec (&out)[N]) noexcept {
    __m512i t[4];
    for (int q = 0; q < 4; ++q) {
      t[q] =
          _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table + 16 * q)));
    }
    for (std::size_t i = 0; i < N; ++i) {
      __m512i entry[4];
      for (int q = 0; q < 4; ++q) {
        const __m512i less = _mm512_sub_epi8(x[i], _mm512_set1_epi8(static_cast<char>(16 * q)));
        entry[q] = _mm512_shuffle_epi8(t[q], less);
      }
      out[i].v =
          _mm512_xor_si512(_mm512_ternarylogic_epi64(entry[0], entry[1], entry[2], 0x96), entry[3]);
    }
  }
  static WASTE_INLINE void prepare_table64(std::uint8_t* table) noexcept {
    u8_ops<avx2>::prepare_table64(table);
  }
};

template <>
struct u8_ops<icelake> : u8_ops_avx512<icelake> {
#if defined(__AVX512VBMI__)
  // Where Run is odd, each lane finds byte s of some row in one of the Run registers that hold the
  // rows: plane s, its rows s lanes further than in plane 0, and turned back. Whole lines are
  // loaded once, which counts on processors with one load of a register a cycle.
  template <std::size_t Run>
  static WASTE_INLINE void deinterleave(const std::uint8_t* from, vec (&planes)[Run]) noexcept {
    if constexpr (turns<Run>) {
      __m512i line[Run];
      for (std::size_t i = 0; i < Run; ++i) line[i] = _mm512_loadu_si512(from + 64 * i);
      turn_planes<Run>(line, planes, std::make_index_sequence<Run>());
    } else {
      u8_ops_avx512<icelake>::deinterleave<Run>(from, planes);
    }
  }
  template <std::size_t Run>
  static constexpr bool turns = Run > 1 && Run % 2 == 1;
  template <std::size_t Run, std::size_t... S>
  static WASTE_INLINE void turn_planes(const __m512i (&line)[Run], vec (&planes)[Run],
                                       std::index_sequence<S...>) noexcept {
    ((planes[S].v = turned<S>(merged<Run, S>(line, std::make_index_sequence<Run>()))), ...);
  }
  /// In each lane the byte, of those that the lines have there, whose place modulo Run is S.
  template <std::size_t Run, std::size_t S, std::size_t... I>
  static WASTE_INLINE __m512i merged(const __m512i (&line)[Run],
                                     std::index_sequence<0, I...>) noexcept {
    __m512i out = line[0];
    ((out = _mm512_mask_mov_epi8(out, lanes_of<Run>((S + 64 * (Run - I)) % Run), line[I])), ...);
    return out;
  }
  /// Lane i of the result is lane i + S, modulo 64.
  template <std::size_t S>
  static WASTE_INLINE __m512i turned(__m512i x) noexcept {
    if constexpr (S == 0) {
      return x;
    } else {
      alignas(64) static constexpr auto from = [] {
        std::array<std::uint8_t, 64> lane{};
        for (std::size_t i = 0; i < 64; ++i) lane[i] = static_cast<std::uint8_t>((i + S) % 64);
        return lane;
      }();
      return _mm512_permutexvar_epi8(_mm512_load_si512(from.data()), x);
    }
  }
  template <std::size_t Run>
  static constexpr std::size_t row_of_lane(std::size_t lane) noexcept {
    if constexpr (turns<Run>) {
      while (lane % Run != 0) lane += 64;
      return lane / Run;
    } else {
      return u8_ops_avx512<icelake>::row_of_lane<Run>(lane);
    }
  }
  // vpermb reads six bits of an index, vpermi2b seven.
  template <std::size_t N>
  static WASTE_INLINE void lookup64(const std::uint8_t* table, const vec (&index)[N],
                                    vec (&out)[N]) noexcept {
    const __m512i t = _mm512_load_si512(table);
    for (std::size_t i = 0; i < N; ++i) out[i].v = _mm512_permutexvar_epi8(index[i].v, t);
  }
  template <std::size_t N>
  static WASTE_INLINE void lookup256(const std::uint8_t* table, const vec (&index)[N],
                                     vec (&out)[N]) noexcept {
    __m512i t[4];
    for (int q = 0; q < 4; ++q) t[q] = _mm512_load_si512(table + 64 * q);
    for (std::size_t i = 0; i < N; ++i) {
      const __m512i low = _mm512_permutex2var_epi8(t[0], index[i].v, t[1]);
      const __m512i high = _mm512_permutex2var_epi8(t[2], index[i].v, t[3]);
      out[i].v = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index[i].v), low, high);
    }
  }
  static constexpr bool looks_up_f32 = true;
  static WASTE_INLINE void split_f32(const float* from, std::uint8_t* planes,
                                     std::size_t stride) noexcept {
    // Byte p of sixteen numbers to quarter p of a register, then quarter p of four to register p.
    alignas(64) static constexpr auto order = [] {
      std::array<std::uint8_t, 64> lane{};
      for (std::size_t i = 0; i < 64; ++i) lane[i] = static_cast<std::uint8_t>(i % 16 * 4 + i / 16);
      return lane;
    }();
    __m512i x[4];
    for (std::size_t i = 0; i < 4; ++i) {
      x[i] = _mm512_permutexvar_epi8(_mm512_load_si512(order.data()),
                                     _mm512_loadu_si512(from + 16 * i));
    }
    const __m512i even01 = _mm512_shuffle_i32x4(x[0], x[1], 0x88);
    const __m512i even23 = _mm512_shuffle_i32x4(x[2], x[3], 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(x[0], x[1], 0xdd);
    const __m512i odd23 = _mm512_shuffle_i32x4(x[2], x[3], 0xdd);
    _mm512_store_si512(planes, _mm512_shuffle_i32x4(even01, even23, 0x88));
    _mm512_store_si512(planes + stride, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
    _mm512_store_si512(planes + 2 * stride, _mm512_shuffle_i32x4(even01, even23, 0xdd));
    _mm512_store_si512(planes + 3 * stride, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
  }
  static WASTE_INLINE void join_f32(const vec (&bytes)[4], f32x16<icelake> (&out)[4]) noexcept {
    const __m512i low01 = _mm512_unpacklo_epi8(bytes[0].v, bytes[1].v);
    const __m512i low23 = _mm512_unpacklo_epi8(bytes[2].v, bytes[3].v);
    const __m512i high01 = _mm512_unpackhi_epi8(bytes[0].v, bytes[1].v);
    const __m512i high23 = _mm512_unpackhi_epi8(bytes[2].v, bytes[3].v);
    out[0].v[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low01, low23));
    out[1].v[0] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low01, low23));
    out[2].v[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(high01, high23));
    out[3].v[0] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(high01, high23));
  }
  /// Register q has four lanes from 4 q on of each quarter.
  static constexpr std::size_t lane_of_joined(std::size_t i) noexcept {
    return i % 16 / 4 * 16 + i / 16 * 4 + i % 4;
  }
#else
  static constexpr bool looks_up_f32 = false;
#endif
  static WASTE_INLINE void prepare_table64(std::uint8_t*) noexcept {}
};

}  // namespace waste::arch::detail
