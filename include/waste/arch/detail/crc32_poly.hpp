// Arithmetic modulo the crc32 polynomial, as folding and combining need it.
#pragma once

#include <cstdint>

namespace waste::arch::detail {

/// Polynomials of degree below 32 modulo P = x^32 + .. with the bits reflected: bit 31 is the
/// coefficient of 1, bit 0 that of x^31.
inline constexpr std::uint32_t crc_poly = 0xedb88320u;

constexpr std::uint32_t crc_times_x(std::uint32_t a) noexcept {
  return a >> 1 ^ ((a & 1u) != 0 ? crc_poly : 0u);
}
/// a b mod P.
constexpr std::uint32_t crc_times(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = crc_times_x(b);
  }
  return product;
}
/// x^n mod P, by squaring.
constexpr std::uint32_t crc_x_to(std::uint64_t n) noexcept {
  std::uint32_t power = 0x80000000u, square = 0x40000000u;
  for (; n != 0; n >>= 1, square = crc_times(square, square)) {
    if ((n & 1u) != 0) power = crc_times(power, square);
  }
  return power;
}
/// What `bits` zero bits appended to a message do to its remainder; the order of x divides
/// 2^32 - 1, so any length works.
constexpr std::uint32_t crc_shift(std::uint32_t remainder, std::uint64_t bits) noexcept {
  return crc_times(remainder, crc_x_to(bits));
}

/// Carry-less multipliers that move a 128-bit block `bits` bits down the message (Gopal et al.,
/// Fast CRC Computation for Generic Polynomials Using PCLMULQDQ, 2009): the low 64 bits times
/// x^(bits + 32), the high ones times x^(bits - 32), both shifted by one because the product of two
/// reflected operands comes out one bit short.
struct CrcFold {
  std::uint64_t low, high;
};
constexpr CrcFold crc_fold(std::uint64_t bits) noexcept {
  return {std::uint64_t{crc_x_to(bits + 32)} << 1, std::uint64_t{crc_x_to(bits - 32)} << 1};
}
/// The same, computed by the compiler.
template <std::uint64_t Bits>
inline constexpr CrcFold crc_fold_by = crc_fold(Bits);
static_assert(crc_fold(512).low == 0x154442bd4 && crc_fold(512).high == 0x1c6e41596 &&
                  crc_fold(128).low == 0x1751997d0 && crc_fold(128).high == 0x0ccaa009e,
              "the constants printed in the paper");

}  // namespace waste::arch::detail
