// Byte vocabulary of AArch64 NEON: tbl looks 64 entries up at once.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/f32_neon64.hpp"
#include "waste/arch/detail/u8_generic.hpp"

namespace waste::arch::detail {

template <class Arch>
struct u8_ops_neon64 {
  struct vec {
    uint8x16_t v[4];
  };
  struct sums {
    uint16x8_t v[8];
  };
  static constexpr std::size_t lanes = 64;
  static constexpr std::size_t groups(std::size_t) noexcept { return 1; }
  static constexpr bool looks_up_f32 = false;

  template <std::size_t Run>
  static WASTE_INLINE void deinterleave(const std::uint8_t* from, vec (&planes)[Run]) noexcept {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint8_t* at = from + 16 * Run * i;
      if constexpr (Run == 1) {
        planes[0].v[i] = vld1q_u8(at);
      } else if constexpr (Run == 2) {
        const uint8x16x2_t x = vld2q_u8(at);
        for (std::size_t s = 0; s < Run; ++s) planes[s].v[i] = x.val[s];
      } else if constexpr (Run == 3) {
        const uint8x16x3_t x = vld3q_u8(at);
        for (std::size_t s = 0; s < Run; ++s) planes[s].v[i] = x.val[s];
      } else if constexpr (Run == 4) {
        const uint8x16x4_t x = vld4q_u8(at);
        for (std::size_t s = 0; s < Run; ++s) planes[s].v[i] = x.val[s];
      } else {
        std::uint8_t bytes[Run][16];
        for (std::size_t r = 0; r < 16; ++r) {
          for (std::size_t s = 0; s < Run; ++s) bytes[s][r] = at[Run * r + s];
        }
        for (std::size_t s = 0; s < Run; ++s) planes[s].v[i] = vld1q_u8(bytes[s]);
      }
    }
  }
  template <std::size_t Run>
  static constexpr std::size_t row_of_lane(std::size_t lane) noexcept {
    return lane;
  }
  static constexpr std::size_t lane_of_sum(std::size_t i) noexcept { return i; }

  static WASTE_INLINE void unpack6(const vec (&b)[3], vec (&f)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      f[0].v[i] = b[0].v[i];
      f[1].v[i] = vsliq_n_u8(vshrq_n_u8(b[0].v[i], 6), b[1].v[i], 2);
      f[2].v[i] = vsliq_n_u8(vshrq_n_u8(b[1].v[i], 4), b[2].v[i], 4);
      f[3].v[i] = vshrq_n_u8(b[2].v[i], 2);
    }
  }
  template <std::size_t N>
  static WASTE_INLINE void lookup64(const std::uint8_t* table, const vec (&index)[N],
                                    vec (&out)[N]) noexcept {
    const uint8x16x4_t t = vld1q_u8_x4(table);
    for (std::size_t n = 0; n < N; ++n) {
      for (int i = 0; i < 4; ++i) {
        out[n].v[i] = vqtbl4q_u8(t, vandq_u8(index[n].v[i], vdupq_n_u8(63)));
      }
    }
  }
  // tbx leaves a lane alone where its index is out of the table's 64.
  template <std::size_t N>
  static WASTE_INLINE void lookup256(const std::uint8_t* table, const vec (&index)[N],
                                     vec (&out)[N]) noexcept {
    for (int q = 0; q < 4; ++q) {
      const uint8x16x4_t t = vld1q_u8_x4(table + 64 * q);
      const uint8x16_t below = vdupq_n_u8(static_cast<std::uint8_t>(64 * q));
      for (std::size_t n = 0; n < N; ++n) {
        for (int i = 0; i < 4; ++i) {
          const uint8x16_t x = vsubq_u8(index[n].v[i], below);
          out[n].v[i] = q == 0 ? vqtbl4q_u8(t, x) : vqtbx4q_u8(out[n].v[i], t, x);
        }
      }
    }
  }
  static WASTE_INLINE void prepare_table64(std::uint8_t*) noexcept {}

  static WASTE_INLINE vec add(const vec& a, const vec& b) noexcept {
    vec out;
    for (int i = 0; i < 4; ++i) out.v[i] = vaddq_u8(a.v[i], b.v[i]);
    return out;
  }
  static WASTE_INLINE void clear(sums& s) noexcept {
    for (auto& v : s.v) v = vdupq_n_u16(0);
  }
  static WASTE_INLINE void accumulate(sums& s, const vec& x) noexcept {
    for (int i = 0; i < 4; ++i) {
      s.v[2 * i] = vaddw_u8(s.v[2 * i], vget_low_u8(x.v[i]));
      s.v[2 * i + 1] = vaddw_high_u8(s.v[2 * i + 1], x.v[i]);
    }
  }
  template <class F>
  static WASTE_INLINE void fold(const sums& s0, const sums& s1, const F& f) noexcept {
    using batch = f32_batch<Arch>;
    for (std::size_t i = 0; i < 8; ++i) {
      f(8 * i, batch(vcvtq_f32_u32(vmovl_u16(vget_low_u16(s0.v[i])))),
        batch(vcvtq_f32_u32(vmovl_u16(vget_low_u16(s1.v[i])))));
      f(8 * i + 4, batch(vcvtq_f32_u32(vmovl_high_u16(s0.v[i]))),
        batch(vcvtq_f32_u32(vmovl_high_u16(s1.v[i]))));
    }
  }

  static WASTE_INLINE void round_u16(const f32x16<Arch>& x, uint16x8_t (&q)[2]) noexcept {
    for (int i = 0; i < 2; ++i) {
      q[i] = vcombine_u16(vqmovn_u32(vcvtnq_u32_f32(x.v[2 * i])),
                          vqmovn_u32(vcvtnq_u32_f32(x.v[2 * i + 1])));
    }
  }
  static WASTE_INLINE void store_u8(std::uint8_t* to, const f32x16<Arch>& x) noexcept {
    uint16x8_t q[2];
    round_u16(x, q);
    vst1q_u8(to, vcombine_u8(vqmovn_u16(q[0]), vqmovn_u16(q[1])));
  }
  template <int Shift>
  static WASTE_INLINE void store_high_low(std::uint8_t* high, std::uint8_t* low,
                                          const f32x16<Arch>& x) noexcept {
    uint16x8_t q[2];
    round_u16(x, q);
    const uint16x8_t mask = vdupq_n_u16((1 << Shift) - 1);
    vst1q_u8(high, vcombine_u8(vshrn_n_u16(q[0], Shift), vshrn_n_u16(q[1], Shift)));
    vst1q_u8(low, vcombine_u8(vmovn_u16(vandq_u16(q[0], mask)), vmovn_u16(vandq_u16(q[1], mask))));
  }
};

template <>
struct u8_ops<baseline> : u8_ops_neon64<baseline> {};
template <>
struct u8_ops<neon64> : u8_ops_neon64<neon64> {};

}  // namespace waste::arch::detail
