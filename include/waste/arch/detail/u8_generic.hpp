// Byte vocabulary without byte shuffles: arrays. The baseline of x86, and the plan of the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/f32_generic.hpp"

namespace waste::arch::detail {

template <class Arch>
struct u8_ops {
  struct vec {
    std::uint8_t v[64];
  };
  struct sums {
    std::uint16_t v[64];
  };
  static constexpr std::size_t lanes = 64;
  static constexpr std::size_t groups(std::size_t) noexcept { return 1; }
  static constexpr bool looks_up_f32 = false;

  template <std::size_t Run>
  static WASTE_INLINE void deinterleave(const std::uint8_t* from, vec (&planes)[Run]) noexcept {
    for (std::size_t r = 0; r < 64; ++r) {
      for (std::size_t s = 0; s < Run; ++s) planes[s].v[r] = from[Run * r + s];
    }
  }
  template <std::size_t Run>
  static constexpr std::size_t row_of_lane(std::size_t lane) noexcept {
    return lane;
  }
  static constexpr std::size_t lane_of_sum(std::size_t i) noexcept { return i; }

  static WASTE_INLINE void unpack6(const vec (&b)[3], vec (&f)[4]) noexcept {
    for (std::size_t r = 0; r < 64; ++r) {
      f[0].v[r] = b[0].v[r];
      f[1].v[r] = static_cast<std::uint8_t>(b[0].v[r] >> 6 | b[1].v[r] << 2);
      f[2].v[r] = static_cast<std::uint8_t>(b[1].v[r] >> 4 | b[2].v[r] << 4);
      f[3].v[r] = b[2].v[r] >> 2;
    }
  }
  template <std::size_t N>
  static WASTE_INLINE void lookup64(const std::uint8_t* table, const vec (&index)[N],
                                    vec (&out)[N]) noexcept {
    for (std::size_t i = 0; i < N; ++i) {
      for (std::size_t r = 0; r < 64; ++r) out[i].v[r] = table[index[i].v[r] & 63];
    }
  }
  template <std::size_t N>
  static WASTE_INLINE void lookup256(const std::uint8_t* table, const vec (&index)[N],
                                     vec (&out)[N]) noexcept {
    for (std::size_t i = 0; i < N; ++i) {
      for (std::size_t r = 0; r < 64; ++r) out[i].v[r] = table[index[i].v[r]];
    }
  }
  static WASTE_INLINE void prepare_table64(std::uint8_t*) noexcept {}

  static WASTE_INLINE vec add(const vec& a, const vec& b) noexcept {
    vec out;
    for (std::size_t r = 0; r < 64; ++r) out.v[r] = static_cast<std::uint8_t>(a.v[r] + b.v[r]);
    return out;
  }
  static WASTE_INLINE void clear(sums& s) noexcept { s = {}; }
  static WASTE_INLINE void accumulate(sums& s, const vec& x) noexcept {
    for (std::size_t r = 0; r < 64; ++r) s.v[r] = static_cast<std::uint16_t>(s.v[r] + x.v[r]);
  }
  template <class F>
  static WASTE_INLINE void fold(const sums& s0, const sums& s1, const F& f) noexcept {
    using batch = f32_batch<Arch>;
    float a[64], b[64];
    for (std::size_t r = 0; r < 64; ++r) {
      a[r] = s0.v[r];
      b[r] = s1.v[r];
    }
    for (std::size_t r = 0; r < 64; r += batch::size) {
      f(r, batch::load_unaligned(a + r), batch::load_unaligned(b + r));
    }
  }

  /// Nearest even: at 2^23 the last place is one, so the sum's rounding is the one wanted.
  static WASTE_INLINE std::uint32_t round(float x) noexcept {
    return std::bit_cast<std::uint32_t>(x + 0x1p23f) & 0xffffu;
  }
  static WASTE_INLINE void store_u8(std::uint8_t* to, const f32x16<Arch>& x) noexcept {
    float lanes[16];
    for (std::size_t i = 0; i < x.count; ++i) x.v[i].store_unaligned(lanes + i * x.v[i].size);
    for (std::size_t i = 0; i < 16; ++i) to[i] = static_cast<std::uint8_t>(round(lanes[i]));
  }
  template <int Shift>
  static WASTE_INLINE void store_high_low(std::uint8_t* high, std::uint8_t* low,
                                          const f32x16<Arch>& x) noexcept {
    float lanes[16];
    for (std::size_t i = 0; i < x.count; ++i) x.v[i].store_unaligned(lanes + i * x.v[i].size);
    for (std::size_t i = 0; i < 16; ++i) {
      const std::uint32_t q = round(lanes[i]);
      high[i] = static_cast<std::uint8_t>(q >> Shift);
      low[i] = static_cast<std::uint8_t>(q & ((1u << Shift) - 1));
    }
  }
};

}  // namespace waste::arch::detail
