// The 48-byte header of an expert record.
#pragma once

#include <cstdint>
#include <cstring>

#include "waste/core/half.hpp"
#include "waste/format/constants.hpp"

namespace waste::format {

/// Header of a record, little-endian, packed, at the record's first byte. Offsets count from
/// there. The crc32 covers [48, chan_corr_off + 2 * (rows of gate + up + down)).
struct ExpertRecordHeader {
  std::uint32_t magic = record_magic;
  std::uint16_t layer = 0;
  std::uint16_t expert_id = 0;
  std::uint8_t fmt = 0;
  std::uint8_t flags = 0;
  std::uint16_t codebook_id = 0;
  std::uint16_t lowrank_id = 0;
  std::uint16_t reserved0 = 0;
  std::uint32_t rec_4k_blocks = 0;
  std::uint32_t gate_off = 0;
  std::uint32_t up_off = 0;
  std::uint32_t down_off = 0;
  std::uint32_t chan_corr_off = 0;
  std::uint32_t crc32 = 0;
  std::uint32_t reserved1[2] = {0, 0};
};
static_assert(sizeof(ExpertRecordHeader) == record_header_bytes);

/// Bits of ExpertRecordHeader::flags.
namespace record_flags {
inline constexpr std::uint8_t bf16_payload = 1;
inline constexpr std::uint8_t has_substitute = 2;
inline constexpr std::uint8_t hot_hint = 4;
}  // namespace record_flags

/// Reads the header from 48 bytes at any address.
inline ExpertRecordHeader load_record_header(const std::uint8_t* bytes) noexcept {
  return load_le<ExpertRecordHeader>(bytes);
}
/// Writes the header to 48 bytes at any address.
inline void store_record_header(std::uint8_t* bytes, const ExpertRecordHeader& header) noexcept {
  store_le(bytes, header);
}

}  // namespace waste::format
