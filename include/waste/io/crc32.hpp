// crc32 as zlib computes it, as fast as this CPU can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace waste::io {

/// crc32 (polynomial 0xEDB88320, reflected, initial and final complement) of `bytes` appended to
/// data whose crc32 is `crc`; crc32(b, crc32(a)) == crc32(a b). Any length and alignment.
std::uint32_t crc32(std::span<const std::uint8_t> bytes, std::uint32_t crc = 0) noexcept;

/// crc32 of a followed by b from their crcs and the length of b in bytes, in O(log) time.
/// (zlib.h may define crc32_combine as a macro, hence the other order of words.)
std::uint32_t combine_crc32(std::uint32_t crc_a, std::uint32_t crc_b,
                            std::uint64_t bytes_b) noexcept;

/// One implementation of crc32, for tests and measurements.
struct Crc32Kernel {
  const char* name;  ///< "slice8", "pclmul", "vpclmul", "avx512", "arm"
  std::uint32_t (*update)(std::span<const std::uint8_t> bytes, std::uint32_t crc) noexcept;
};

/// Those that run on this CPU; the last is the one that crc32 uses.
std::span<const Crc32Kernel> crc32_kernels() noexcept;

}  // namespace waste::io
