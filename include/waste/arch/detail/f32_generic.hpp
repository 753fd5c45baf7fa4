// f32 vocabulary without instructions of its own: the baseline, and the plan of the others.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/inline.hpp"
#include "waste/arch/f32x16.hpp"
#include "waste/core/half.hpp"

namespace waste::arch::detail {

template <class Arch>
struct f32_ops {
  using F = f32x16<Arch>;
  template <class T>
  using batch = xsimd::batch<T, typename Arch::xsimd_arch>;

  template <class T>
  static WASTE_INLINE batch<T> fma(const batch<T>& a, const batch<T>& b,
                                   const batch<T>& c) noexcept {
    return a * b + c;
  }

  static WASTE_INLINE F from_array(const float* lanes) noexcept {
    F out;
    for (std::size_t i = 0; i < F::count; ++i) {
      out.v[i] = F::batch::load_unaligned(lanes + i * F::batch::size);
    }
    return out;
  }

  static WASTE_INLINE float sum_tree(const F& x) noexcept {
    float t[16];
    for (std::size_t i = 0; i < F::count; ++i) x.v[i].store_unaligned(t + i * F::batch::size);
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t j = 0; j < half; ++j) t[j] += t[j + half];
    }
    return t[0];
  }

  /// Branch-free, so that loops over it vectorise: subnormals come right by the multiplication.
  static WASTE_INLINE float decode_f16(std::uint32_t h) noexcept {
    const std::uint32_t magnitude = (h & 0x7fffu) << 13;
    const std::uint32_t finite =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    return std::bit_cast<float>(finite | special | (h & 0x8000u) << 16);
  }
  static WASTE_INLINE float load_one_f16(const std::uint8_t* from) noexcept {
    return decode_f16(load_le<std::uint16_t>(from));
  }
  static WASTE_INLINE F load_f16(const std::uint8_t* from) noexcept {
    std::uint16_t half[16];
    __builtin_memcpy(half, from, sizeof half);
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = decode_f16(half[i]);
    return from_array(lanes);
  }

  static WASTE_INLINE F load_i8(const std::uint8_t* from) noexcept {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>(static_cast<std::int8_t>(from[i]));
    return from_array(lanes);
  }
  static WASTE_INLINE void load_nibbles(const std::uint8_t* from, F& low, F& high) noexcept {
    float lo[16], hi[16];
    for (int i = 0; i < 16; ++i) {
      lo[i] = static_cast<float>(static_cast<int>(from[i] & 15u) - 8);
      hi[i] = static_cast<float>(static_cast<int>(from[i] >> 4) - 8);
    }
    low = from_array(lo);
    high = from_array(hi);
  }
  static WASTE_INLINE F load_3bit(const std::uint8_t* from) noexcept {
    const std::uint32_t words[2] = {load_le<std::uint32_t>(from), load_le<std::uint32_t>(from + 3)};
    float lanes[16];
    for (int i = 0; i < 16; ++i) {
      lanes[i] = static_cast<float>(static_cast<int>(words[i / 8] >> 3 * (i % 8) & 7u) - 4);
    }
    return from_array(lanes);
  }
  /// Magnitude bits e1 e0 m at the top of f32's exponent and mantissa: 2^e (1 + m/2), which is
  /// twice the value, and 1 more than it where e is 0. (Scaling a subnormal instead would be
  /// shorter and, on some CPUs, a hundred times slower.)
  static WASTE_INLINE float e2m1(std::uint32_t nibble) noexcept {
    const std::uint32_t magnitude = nibble & 7u;
    const float f = std::bit_cast<float>((magnitude << 22) + 0x3f800000u);
    const float value = magnitude < 2 ? f - 1.0f : 0.5f * f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | (nibble & 8u) << 28);
  }
  static WASTE_INLINE void load_e2m1(const std::uint8_t* from, F& first, F& second) noexcept {
    float lanes[32];
    for (int i = 0; i < 16; ++i) {
      lanes[2 * i] = e2m1(from[i]);
      lanes[2 * i + 1] = e2m1(static_cast<std::uint32_t>(from[i]) >> 4);
    }
    first = from_array(lanes);
    second = from_array(lanes + 16);
  }
  static WASTE_INLINE void deinterleave(const F& a, const F& b, F& even, F& odd) noexcept {
    float in[32], out[32];
    for (std::size_t i = 0; i < F::count; ++i) {
      a.v[i].store_unaligned(in + i * F::batch::size);
      b.v[i].store_unaligned(in + 16 + i * F::batch::size);
    }
    for (int i = 0; i < 16; ++i) {
      out[i] = in[2 * i];
      out[16 + i] = in[2 * i + 1];
    }
    even = from_array(out);
    odd = from_array(out + 16);
  }
  static WASTE_INLINE void load_transposed8(const float* from,
                                            typename F::batch (&out)[8]) noexcept {
    constexpr std::size_t lanes = F::batch::size;
    for (std::size_t d = 0; d < 8; ++d) {
      float column[lanes];
      for (std::size_t i = 0; i < lanes; ++i) column[i] = from[8 * i + d];
      out[d] = F::batch::load_unaligned(column);
    }
  }
};

}  // namespace waste::arch::detail
