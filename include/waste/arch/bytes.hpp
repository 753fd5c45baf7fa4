// The byte vocabulary of the table-lookup kernels: one row of a block of 64 a lane.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/u8_generic.hpp"
#include "waste/arch/ops.hpp"
#if defined(__AVX2__)
#include "waste/arch/detail/u8_avx2.hpp"
#endif
#if defined(__AVX512BW__)
#include "waste/arch/detail/u8_avx512.hpp"
#endif
#if defined(__aarch64__)
#include "waste/arch/detail/u8_neon64.hpp"
#endif

namespace waste::arch {

/// How many byte lanes a tier works on at once: 64, or 32 (half a block of rows).
template <class Arch>
inline constexpr std::size_t byte_lanes = detail::u8_ops<Arch>::lanes;
/// byte_lanes bytes, one row each. Which lane holds which row is the tier's own (row_of_sum undoes
/// it); it is the same for all planes that one deinterleave wrote.
template <class Arch>
using u8_lanes = typename detail::u8_ops<Arch>::vec;
/// As many sums of bytes, 16 bits each: at most 257 accumulations.
template <class Arch>
using u16_sums = typename detail::u8_ops<Arch>::sums;

/// How many groups of byte_lanes rows share one load of a table of `entries` without running out of
/// registers.
template <class Arch>
constexpr std::size_t groups_at_once(std::size_t entries) noexcept {
  return detail::u8_ops<Arch>::groups(entries);
}

/// planes[s] lane l = from[Run * row(l) + s] for byte_lanes rows of Run = 1..8 bytes. May read (and
/// ignore) up to deinterleave_overread bytes past the byte_lanes * Run that it uses.
template <class Arch, std::size_t Run>
WASTE_INLINE void deinterleave(const std::uint8_t* from, u8_lanes<Arch> (&planes)[Run]) noexcept {
  detail::u8_ops<Arch>::template deinterleave<Run>(from, planes);
}
inline constexpr std::size_t deinterleave_overread = 8;

/// Four 6-bit fields of 24-bit little-endian words, given as three byte planes. Bits 6 and 7 of a
/// result are unspecified; lookup64 ignores them.
template <class Arch>
WASTE_INLINE void unpack6(const u8_lanes<Arch> (&bytes)[3], u8_lanes<Arch> (&fields)[4]) noexcept {
  detail::u8_ops<Arch>::unpack6(bytes, fields);
}

/// out[i] = table[index[i] & 63] lane by lane, of a table written by prepare_table, 64-byte
/// aligned.
template <class Arch, std::size_t N>
WASTE_INLINE void lookup64(const std::uint8_t* table, const u8_lanes<Arch> (&index)[N],
                           u8_lanes<Arch> (&out)[N]) noexcept {
  detail::u8_ops<Arch>::lookup64(table, index, out);
}
/// The same for 256 entries and whole bytes.
template <class Arch, std::size_t N>
WASTE_INLINE void lookup256(const std::uint8_t* table, const u8_lanes<Arch> (&index)[N],
                            u8_lanes<Arch> (&out)[N]) noexcept {
  detail::u8_ops<Arch>::lookup256(table, index, out);
}
/// Brings 64 (or each 64 of 256) table entries, in order, into the form this tier looks up in.
template <class Arch>
WASTE_INLINE void prepare_table(std::uint8_t* table, std::size_t entries) noexcept {
  for (std::size_t e = 0; e < entries; e += 64) detail::u8_ops<Arch>::prepare_table64(table + e);
}

/// Whether this tier looks f32 up faster as four planes of bytes than one by one. Such a tier has
/// 64 lanes, and its deinterleave reads nothing past what it uses.
template <class Arch>
inline constexpr bool looks_up_f32 = detail::u8_ops<Arch>::looks_up_f32;
/// Byte p of 64 f32, in order, to the 64 bytes at planes + p * stride, both aligned to 64: tables
/// for lookup64 and lookup256.
template <class Arch>
WASTE_INLINE void split_f32(const float* from, std::uint8_t* planes, std::size_t stride) noexcept {
  detail::u8_ops<Arch>::split_f32(from, planes, stride);
}
/// The f32 whose bytes p are bytes[p], for all lanes: number i of the four registers is that of row
/// row_of_joined<Arch, Run>(i).
template <class Arch>
WASTE_INLINE void join_f32(const u8_lanes<Arch> (&bytes)[4], f32x16<Arch> (&out)[4]) noexcept {
  detail::u8_ops<Arch>::join_f32(bytes, out);
}
template <class Arch, std::size_t Run>
constexpr std::size_t row_of_joined(std::size_t i) noexcept {
  return detail::u8_ops<Arch>::template row_of_lane<Run>(detail::u8_ops<Arch>::lane_of_joined(i));
}

/// a + b modulo 256.
template <class Arch>
WASTE_INLINE u8_lanes<Arch> add_u8(const u8_lanes<Arch>& a, const u8_lanes<Arch>& b) noexcept {
  return detail::u8_ops<Arch>::add(a, b);
}
template <class Arch>
WASTE_INLINE void clear(u16_sums<Arch>& sums) noexcept {
  detail::u8_ops<Arch>::clear(sums);
}
/// sums += x.
template <class Arch>
WASTE_INLINE void accumulate(u16_sums<Arch>& sums, const u8_lanes<Arch>& x) noexcept {
  detail::u8_ops<Arch>::accumulate(sums, x);
}
/// total[i] = total[i] + fma(step0, sum0, fma(step1, sum1, bias)) for all rows, total[i] being
/// row row_of_sum<Arch, Run>(i).
template <class Arch>
WASTE_INLINE void fold(const u16_sums<Arch>& sum0, const u16_sums<Arch>& sum1, float step0,
                       float step1, float bias, float* total) noexcept {
  detail::u8_ops<Arch>::fold(sum0, sum1, [&](std::size_t at, const auto& s0, const auto& s1) {
    using batch = f32_batch<Arch>;
    const batch part = fma<Arch>(batch(step0), s0, fma<Arch>(batch(step1), s1, batch(bias)));
    (batch::load_unaligned(total + at) + part).store_unaligned(total + at);
  });
}
template <class Arch, std::size_t Run>
constexpr std::size_t row_of_sum(std::size_t i) noexcept {
  return detail::u8_ops<Arch>::template row_of_lane<Run>(detail::u8_ops<Arch>::lane_of_sum(i));
}

/// Sixteen numbers in [0, 255] rounded to nearest even.
template <class Arch>
WASTE_INLINE void store_u8(std::uint8_t* to, const f32x16<Arch>& x) noexcept {
  detail::u8_ops<Arch>::store_u8(to, x);
}
/// Sixteen numbers in [0, 65535] rounded to nearest even, as q >> Shift and q & (2^Shift - 1).
template <class Arch, int Shift>
WASTE_INLINE void store_high_low(std::uint8_t* high, std::uint8_t* low,
                                 const f32x16<Arch>& x) noexcept {
  detail::u8_ops<Arch>::template store_high_low<Shift>(high, low, x);
}

}  // namespace waste::arch
