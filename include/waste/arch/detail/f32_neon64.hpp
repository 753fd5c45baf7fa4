// f32 vocabulary of AArch64 NEON.
#pragma once

#include <arm_neon.h>

#include "waste/arch/detail/f32_generic.hpp"

namespace waste::arch::detail {

template <class Arch>
struct f32_ops_neon64 {
  using F = f32x16<Arch>;
  using f32 = xsimd::batch<float, typename Arch::xsimd_arch>;
  using f64 = xsimd::batch<double, typename Arch::xsimd_arch>;

  static WASTE_INLINE f32 fma(const f32& a, const f32& b, const f32& c) noexcept {
    return vfmaq_f32(c, a, b);
  }
  static WASTE_INLINE f64 fma(const f64& a, const f64& b, const f64& c) noexcept {
    return vfmaq_f64(c, a, b);
  }
  static WASTE_INLINE float sum_tree(const F& x) noexcept {
    const float32x4_t t4 = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t t2 = vadd_f32(vget_low_f32(t4), vget_high_f32(t4));
    return vget_lane_f32(t2, 0) + vget_lane_f32(t2, 1);
  }
  static WASTE_INLINE float load_one_f16(const std::uint8_t* from) noexcept {
    const uint16x4_t bits = vdup_n_u16(load_le<std::uint16_t>(from));
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(bits)), 0);
  }
  static WASTE_INLINE F load_f16(const std::uint8_t* from) noexcept {
    F out;
    for (int i = 0; i < 4; ++i) {
      out.v[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from + 8 * i)));
    }
    return out;
  }
  static WASTE_INLINE F from_i8(int8x16_t bytes) noexcept {
    const int16x8_t lo = vmovl_s8(vget_low_s8(bytes)), hi = vmovl_high_s8(bytes);
    F out;
    out.v[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
    out.v[1] = vcvtq_f32_s32(vmovl_high_s16(lo));
    out.v[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
    out.v[3] = vcvtq_f32_s32(vmovl_high_s16(hi));
    return out;
  }
  static WASTE_INLINE F load_i8(const std::uint8_t* from) noexcept {
    return from_i8(vreinterpretq_s8_u8(vld1q_u8(from)));
  }
  static WASTE_INLINE void load_nibbles(const std::uint8_t* from, F& low, F& high) noexcept {
    const uint8x16_t bytes = vld1q_u8(from);
    const int8x16_t bias = vdupq_n_s8(8);
    low = from_i8(vsubq_s8(vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), bias));
    high = from_i8(vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)), bias));
  }
  static WASTE_INLINE F load_3bit(const std::uint8_t* from) noexcept {
    static const std::int32_t shifts[2][4] = {{0, -3, -6, -9}, {-12, -15, -18, -21}};
    F out;
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t word = vdupq_n_u32(load_le<std::uint32_t>(from + 3 * (i / 2)));
      const uint32x4_t code = vandq_u32(vshlq_u32(word, vld1q_s32(shifts[i % 2])), vdupq_n_u32(7));
      out.v[i] = vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(code), vdupq_n_s32(4)));
    }
    return out;
  }
  // The numbers' upper 16 bits hold them whole: two tables of bytes give those.
  static WASTE_INLINE void load_e2m1(const std::uint8_t* from, F& first, F& second) noexcept {
    static const std::uint8_t tops[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                          0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    static const std::uint8_t nexts[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                           0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
    const uint8x16_t bytes = vld1q_u8(from);
    const uint8x16_t low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
    const uint8x16_t nibbles[2] = {vzip1q_u8(low, high), vzip2q_u8(low, high)};
    F* const out[2] = {&first, &second};
    for (int i = 0; i < 2; ++i) {
      const uint8x16_t t = vqtbl1q_u8(vld1q_u8(tops), nibbles[i]);
      const uint8x16_t n = vqtbl1q_u8(vld1q_u8(nexts), nibbles[i]);
      const uint16x8_t words[2] = {vreinterpretq_u16_u8(vzip1q_u8(n, t)),
                                   vreinterpretq_u16_u8(vzip2q_u8(n, t))};
      for (int h = 0; h < 2; ++h) {
        out[i]->v[2 * h] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words[h]), 16));
        out[i]->v[2 * h + 1] = vreinterpretq_f32_u32(vshll_high_n_u16(words[h], 16));
      }
    }
  }
  static WASTE_INLINE void deinterleave(const F& a, const F& b, F& even, F& odd) noexcept {
    for (int i = 0; i < 2; ++i) {
      even.v[i] = vuzp1q_f32(a.v[2 * i], a.v[2 * i + 1]);
      odd.v[i] = vuzp2q_f32(a.v[2 * i], a.v[2 * i + 1]);
      even.v[2 + i] = vuzp1q_f32(b.v[2 * i], b.v[2 * i + 1]);
      odd.v[2 + i] = vuzp2q_f32(b.v[2 * i], b.v[2 * i + 1]);
    }
  }
  static WASTE_INLINE void load_transposed8(const float* from, f32 (&out)[8]) noexcept {
    for (int h = 0; h < 2; ++h) {
      const float32x4_t r0 = vld1q_f32(from + 4 * h), r1 = vld1q_f32(from + 8 + 4 * h);
      const float32x4_t r2 = vld1q_f32(from + 16 + 4 * h), r3 = vld1q_f32(from + 24 + 4 * h);
      const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1));
      const float64x2_t b = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
      const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3));
      const float64x2_t d = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
      out[4 * h] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
      out[4 * h + 1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
      out[4 * h + 2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
      out[4 * h + 3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
    }
  }
};

template <>
struct f32_ops<baseline> : f32_ops_neon64<baseline> {};
template <>
struct f32_ops<neon64> : f32_ops_neon64<neon64> {};

}  // namespace waste::arch::detail
