#include "waste/format/usage_log.hpp"

#include <algorithm>
#include <unordered_map>

#include "waste/core/half.hpp"

namespace waste::format {

std::uint64_t usage_limit_bytes(const ModelConfig& model) noexcept {
  return usage_header_bytes +
         16 * usage_entry_bytes * std::uint64_t{model.moe_layers()} * model.num_experts;
}

Fault parse_usage(std::span<const std::uint8_t> bytes, const ModelConfig& model, UsageLog& out) {
  out = {};
  if (bytes.size() < usage_header_bytes) {
    return fault(Errc::truncated, "usage header", bytes.size(), usage_header_bytes);
  }
  const auto magic = load_le<std::uint32_t>(bytes.data());
  if (magic != usage_magic) return fault(Errc::bad_magic, "usage magic", magic, usage_magic);
  const auto version = load_le<std::uint32_t>(bytes.data() + 4);
  if (version != usage_version) {
    return fault(Errc::bad_version, "usage version", version, usage_version);
  }
  if (bytes.size() > usage_limit_bytes(model)) {
    return fault(Errc::out_of_range, "usage size", bytes.size(), usage_limit_bytes(model));
  }
  out.clock = load_le<std::uint64_t>(bytes.data() + 8);
  std::unordered_map<std::uint32_t, std::size_t> seen;
  for (std::size_t at = usage_header_bytes; at + usage_entry_bytes <= bytes.size();
       at += usage_entry_bytes) {
    const auto entry = load_le<UsageEntry>(bytes.data() + at);
    const bool known = entry.layer < model.num_hidden_layers && model.is_moe(entry.layer) &&
                       entry.expert < model.num_experts;
    if (!known) {
      ++out.ignored;
      continue;
    }
    const auto key = static_cast<std::uint32_t>(entry.layer) << 16 | entry.expert;
    const auto [it, first] = seen.emplace(key, out.entries.size());
    if (first) {
      out.entries.push_back(entry);
      continue;
    }
    UsageEntry& sum = out.entries[it->second];
    const std::uint64_t hits = std::uint64_t{sum.hits} + entry.hits;
    sum.hits = static_cast<std::uint32_t>(std::min<std::uint64_t>(hits, 0xffffffffu));
    sum.last_seen = std::max(sum.last_seen, entry.last_seen);
  }
  return {};
}

std::vector<std::uint8_t> dump_usage(const UsageLog& log) {
  std::vector<std::uint8_t> out(usage_header_bytes + usage_entry_bytes * log.entries.size());
  store_le(out.data(), usage_magic);
  store_le(out.data() + 4, usage_version);
  store_le(out.data() + 8, log.clock);
  for (std::size_t i = 0; i < log.entries.size(); ++i) {
    store_le(out.data() + usage_header_bytes + i * usage_entry_bytes, log.entries[i]);
  }
  return out;
}

}  // namespace waste::format
