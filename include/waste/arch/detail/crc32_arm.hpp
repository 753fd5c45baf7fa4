// crc32 by the ARMv8 CRC instructions.
#pragma once

#include <arm_acle.h>

#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/crc32_poly.hpp"
#include "waste/core/half.hpp"

namespace waste::arch::detail {

inline constexpr std::size_t crc_arm_lane = 4096;  ///< bytes of one of the three chains
inline constexpr std::size_t crc_arm_step = 3 * crc_arm_lane;

/// Continues `crc` (complemented already) over `bytes` bytes. Three interleaved chains of
/// crc_arm_lane bytes, since the instruction takes two or three cycles and one can start in each;
/// a chain is joined to the next by a multiplication with x^(8 crc_arm_lane).
__attribute__((target("+crc"))) inline std::uint32_t crc_arm(std::uint32_t crc,
                                                             const std::uint8_t* data,
                                                             std::size_t bytes) noexcept {
  constexpr std::uint32_t shift = crc_x_to(8 * crc_arm_lane);
  for (; bytes >= crc_arm_step; data += crc_arm_step, bytes -= crc_arm_step) {
    std::uint32_t b = 0, c = 0;
    for (std::size_t i = 0; i < crc_arm_lane; i += 8) {
      crc = __crc32d(crc, load_le<std::uint64_t>(data + i));
      b = __crc32d(b, load_le<std::uint64_t>(data + crc_arm_lane + i));
      c = __crc32d(c, load_le<std::uint64_t>(data + 2 * crc_arm_lane + i));
    }
    crc = crc_times(crc_times(crc, shift) ^ b, shift) ^ c;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) crc = __crc32d(crc, load_le<std::uint64_t>(data));
  for (; bytes > 0; ++data, --bytes) crc = __crc32b(crc, *data);
  return crc;
}

}  // namespace waste::arch::detail
