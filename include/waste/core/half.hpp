// IEEE binary16 and bfloat16, to and from binary32, exact to the last subnormal.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace waste {

/// The value of a binary16 bit pattern. Subnormals, infinities and NaN payloads are kept.
constexpr float f16_to_f32(std::uint16_t h) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fu;
  std::uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(mantissa) - 21;  // brings the leading bit to bit 10
  mantissa = (mantissa << shift) & 0x3ffu;
  return std::bit_cast<float>(sign | (static_cast<std::uint32_t>(113 - shift) << 23) |
                              (mantissa << 13));
}

/// The nearest binary16 pattern, ties to even; too large becomes infinity, NaN stays NaN.
constexpr std::uint16_t f32_to_f16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 2^16
  if (magnitude >= 0x38800000u) {  // normal; a carry out of the mantissa moves the exponent
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude < 0x33000000u) return sign;  // below half of the smallest subnormal
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t shift = 126 - exponent;  // 14 .. 24
  const std::uint32_t half = 1u << (shift - 1);
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  const std::uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
  return static_cast<std::uint16_t>(sign | (kept + up));
}

constexpr bool f16_is_finite(std::uint16_t h) noexcept { return (h & 0x7c00u) != 0x7c00u; }

/// The value of a bfloat16 bit pattern.
constexpr float bf16_to_f32(std::uint16_t b) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16);
}

/// The nearest bfloat16 pattern, ties to even; NaN stays (quiet) NaN.
constexpr std::uint16_t f32_to_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Loads a little-endian value of type T from any address.
template <class T>
T load_le(const void* from) noexcept {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Stores a little-endian value of type T at any address.
template <class T>
void store_le(void* to, T value) noexcept {
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(to, &value, sizeof value);
}

}  // namespace waste
