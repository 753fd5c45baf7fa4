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
  template <class Arch>
  WASTE_KERNEL static void run(const std::uint8_t* packed, const std::uint8_t* scale,
                               std::size_t cols, float* to) noexcept {
    for (std::size_t g = 0; g < cols / 32; ++g, packed += 16, to += 32) {
      const auto factor =
          arch::broadcast16<Arch>(std::bit_cast<float>(static_cast<std::uint32_t>(scale[g]) << 23));
      arch::f32x16<Arch> first, second;
      arch::load_e2m1<Arch>(packed, first, second);
      arch::store_f32(to, first * factor);
      arch::store_f32(to + 16, second * factor);
    }
  }
  template <class Arch>
  void operator()(Arch, const std::uint8_t* packed, const std::uint8_t* scale, std::size_t cols,
                  float* to) const noexcept {
    run<Arch>(packed, scale, cols, to);
  }
};

}  // namespace waste::kernels
