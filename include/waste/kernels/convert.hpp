// Arrays of narrow floats as f32: binary16, bfloat16, MXFP4.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"

namespace waste::kernels {

/// to[i] = binary16 number i of `from`, exactly; subnormals, infinities and NaN are kept.
struct f16_array {
  template <class Arch>
  WASTE_KERNEL static void run(const std::uint8_t* from, std::size_t n, float* to) noexcept {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) arch::store_f32(to + i, arch::load_f16<Arch>(from + 2 * i));
    for (; i < n; ++i) to[i] = arch::load_one_f16<Arch>(from + 2 * i);
  }
  template <class Arch>
  void operator()(Arch, const std::uint8_t* from, std::size_t n, float* to) const noexcept {
    run<Arch>(from, n, to);
  }
};

/// to[i] = bfloat16 number i of `from`, exactly. A shift, which the compiler vectorises.
struct bf16_array {
  template <class Arch>
  WASTE_KERNEL static void run(const std::uint8_t* from, std::size_t n, float* to) noexcept {
    for (std::size_t i = 0; i < n; ++i) {
      std::uint16_t bits;
      __builtin_memcpy(&bits, from + 2 * i, 2);
      to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
  }
  template <class Arch>
  void operator()(Arch, const std::uint8_t* from, std::size_t n, float* to) const noexcept {
    run<Arch>(from, n, to);
  }
};

/// One row of MXFP4: to[c] = value(nibble c) 2^(scale[c / 32] - 127), exactly; cols is a multiple
/// of 32, no scale is 255.
struct mxfp4_row {
  /// Magnitude bits e1 e0 m at the top of f32's exponent and mantissa: 2^e (1 + m/2), which is
  /// twice the value, and 1 more than it where e is 0. (Scaling a subnormal instead would be
  /// shorter and, on some CPUs, a hundred times slower.)
  static WASTE_INLINE float value(std::uint32_t magnitude) noexcept {
    const float f = std::bit_cast<float>((magnitude << 22) + 0x3f800000u);
    return magnitude < 2 ? f - 1.0f : 0.5f * f;
  }
  static WASTE_INLINE float with_sign(float x, std::uint32_t sign_bit) noexcept {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | sign_bit);
  }

  template <class Arch>
  WASTE_KERNEL static void run(const std::uint8_t* packed, const std::uint8_t* scale,
                               std::size_t cols, float* to) noexcept {
    for (std::size_t g = 0; g < cols / 32; ++g, packed += 16, to += 32) {
      const float factor = std::bit_cast<float>(static_cast<std::uint32_t>(scale[g]) << 23);
      for (std::size_t i = 0; i < 16; ++i) {
        const std::uint32_t b = packed[i];
        to[2 * i] = with_sign(value(b & 7u) * factor, (b & 8u) << 28);
        to[2 * i + 1] = with_sign(value(b >> 4 & 7u) * factor, (b & 0x80u) << 24);
      }
    }
  }
  template <class Arch>
  void operator()(Arch, const std::uint8_t* packed, const std::uint8_t* scale, std::size_t cols,
                  float* to) const noexcept {
    run<Arch>(packed, scale, cols, to);
  }
};

}  // namespace waste::kernels
