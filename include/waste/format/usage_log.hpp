// usage.waste: which experts past runs used; every field a hint from an untrusted file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/model_config.hpp"

namespace waste::format {

inline constexpr std::uint32_t usage_version = 1;
inline constexpr std::size_t usage_header_bytes = 16;  ///< u32 magic, u32 version, u64 clock
inline constexpr std::size_t usage_entry_bytes = 16;

/// One entry, little-endian, packed.
struct UsageEntry {
  std::uint16_t layer = 0;
  std::uint16_t expert = 0;
  std::uint32_t hits = 0;
  std::uint32_t last_seen = 0;       ///< clock of the last use, low 32 bits
  std::uint32_t next_layer_top = 0;  ///< specified for cross-layer prefetch, used by nobody
  bool operator==(const UsageEntry&) const = default;
};
static_assert(sizeof(UsageEntry) == usage_entry_bytes);

struct UsageLog {
  std::uint64_t clock = 0;
  std::vector<UsageEntry> entries;
  std::uint64_t ignored = 0;  ///< entries dropped by parse_usage
};

/// The most bytes a log of this model may have: sixteen entries an expert.
std::uint64_t usage_limit_bytes(const ModelConfig& model) noexcept;

/// Reads a log. Faults: truncated (no whole header), bad_magic, bad_version, out_of_range (longer
/// than usage_limit_bytes). Entries for layers or experts the model has not are dropped and
/// counted; entries of one expert are joined (hits added up to 2^32 - 1, the latest last_seen
/// kept), the first keeping its place; bytes after the last whole entry are dropped, as an append
/// cut short leaves them. On a fault `out` is empty.
Fault parse_usage(std::span<const std::uint8_t> bytes, const ModelConfig& model, UsageLog& out);

/// The bytes of a log.
std::vector<std::uint8_t> dump_usage(const UsageLog& log);

}  // namespace waste::format
