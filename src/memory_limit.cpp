#include "waste/io/memory_limit.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>

namespace waste::io {
namespace {

namespace fs = std::filesystem;

/// At most 64 KiB of a small kernel file; empty where it cannot be read.
std::string small_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(65536, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text;
}

std::optional<std::uint64_t> leading_number(std::string_view text) {
  const auto start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data() + start, text.data() + text.size(), n);
  // "max" or no file; version 1 says no limit with the largest number of pages.
  if (error != std::errc() || n >= std::uint64_t{1} << 60) return std::nullopt;
  return n;
}

void lower(std::optional<std::uint64_t>& limit, std::optional<std::uint64_t> other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

/// Lowers `limit` by `files` of `group` and of every folder above it, down to `mount`.
void walk_up(const fs::path& mount, const fs::path& group, std::optional<std::uint64_t>& limit,
             std::initializer_list<const char*> files) {
  fs::path at = group.relative_path();
  for (int level = 0; level < 64; ++level) {
    for (const char* file : files) lower(limit, leading_number(small_file(mount / at / file)));
    if (at.empty()) return;
    at = at.parent_path();
  }
}

MemoryLimit read_limits(const fs::path& root) {
  MemoryLimit out;
  const std::string meminfo = small_file(root / "proc/meminfo");
  const auto bytes_of = [&](std::string_view field) {
    const auto at = meminfo.find(field);
    if (at == std::string::npos) return std::uint64_t{0};
    const auto kib = leading_number(std::string_view(meminfo).substr(at + field.size()));
    return kib && *kib < (std::uint64_t{1} << 53) ? *kib * 1024 : 0;
  };
  out.physical_bytes = bytes_of("MemTotal:");
  out.available_bytes = bytes_of("MemAvailable:");
  const fs::path mount = root / "sys/fs/cgroup";
  const std::string groups = small_file(root / "proc/self/cgroup");
  for (std::size_t at = 0; at < groups.size();) {
    const std::size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string_view line = std::string_view(groups).substr(at, end - at);
    at = end + 1;
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const fs::path group(line.substr(second + 1));
    if (controllers.empty()) {
      walk_up(mount, group, out.cgroup_bytes, {"memory.max", "memory.high"});
    } else if (controllers == "memory") {
      walk_up(mount / "memory", group, out.cgroup_bytes, {"memory.limit_in_bytes"});
    }
  }
  return out;
}

}  // namespace

MemoryLimit memory_limit(const fs::path& root) noexcept {
  try {
    return read_limits(root);
  } catch (...) {
    return {};
  }
}

}  // namespace waste::io
