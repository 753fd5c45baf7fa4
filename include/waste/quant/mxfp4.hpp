// MXFP4 as released checkpoints store it: E2M1 nibbles with one E8M0 scale per 32 columns.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"

namespace waste::quant {

inline constexpr std::size_t mxfp4_group = 32;  ///< columns that share one scale

/// Value of a nibble: bit 3 the sign, bits 0..2 the magnitude. Nibble 8 is -0.
inline constexpr float mxfp4_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// 2^(e - 127); e = 0 stands for 0.0 here. e = 255 is invalid and never passed.
constexpr float e8m0_to_f32(std::uint8_t e) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(e) << 23);
}

/// out[r][c] = value(nibble of column c) * 2^(scale[r][c / 32] - 127), exact.
/// `packed` [rows][cols / 2], the even column in the low nibble; `scale` [rows][cols / 32]; out
/// [rows][cols], cols a multiple of 32 (shape otherwise). A scale byte 255 is refused
/// (bad_field); a product beyond f32 (6 * 2^127) too (out_of_range).
/// Layout: compressed-tensors "mxfp4-pack-quantized"; values: OCP Microscaling Formats 1.0.
inline Fault decode_mxfp4(const std::uint8_t* packed, const std::uint8_t* scale,
                          const MatrixView<float>& out) noexcept {
  if (out.cols % mxfp4_group != 0) {
    return fault(Errc::shape, "mxfp4 columns", out.cols, out.cols / mxfp4_group * mxfp4_group);
  }
  const std::size_t groups = out.cols / mxfp4_group;
  for (std::size_t r = 0; r < out.rows; ++r) {
    float* to = out.data + r * out.stride;
    for (std::size_t g = 0; g < groups; ++g) {
      const std::uint8_t e = scale[r * groups + g];
      if (e == 255) return fault(Errc::bad_field, "weight_scale", 255, 254);
      const float factor = e8m0_to_f32(e);
      const std::uint8_t* from = packed + (r * groups + g) * (mxfp4_group / 2);
      for (std::size_t i = 0; i < mxfp4_group / 2; ++i) {
        to[2 * i] = mxfp4_values[from[i] & 15] * factor;
        to[2 * i + 1] = mxfp4_values[from[i] >> 4] * factor;
        if (e >= 253 &&
            !((to[2 * i] - to[2 * i] == 0.0f) && (to[2 * i + 1] - to[2 * i + 1] == 0.0f))) {
          return fault(Errc::out_of_range, "weight_scale", e, 252);
        }
      }
      to += mxfp4_group;
    }
  }
  return {};
}

}  // namespace waste::quant
