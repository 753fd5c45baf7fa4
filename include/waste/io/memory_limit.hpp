// How much memory this process may use: physical memory and the cgroup's limits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace waste::io {

struct MemoryLimit {
  std::uint64_t physical_bytes = 0;   ///< MemTotal; 0 where it cannot be read
  std::uint64_t available_bytes = 0;  ///< MemAvailable: to be had now without swapping; 0: unknown
  std::optional<std::uint64_t> cgroup_bytes;  ///< the smallest limit on the way to the root

  /// What may still be had, if `others` are about to take so much: the smaller of usable_bytes()
  /// and what of the available memory they leave.
  std::uint64_t free_bytes(std::uint64_t others = 0) const noexcept {
    const std::uint64_t most = usable_bytes();
    const std::uint64_t now = available_bytes != 0 ? available_bytes : most;
    return std::min(most, now - std::min(now, others));
  }
  /// The smaller of physical memory and the cgroup's limit.
  std::uint64_t usable_bytes() const noexcept {
    return cgroup_bytes && (physical_bytes == 0 || *cgroup_bytes < physical_bytes) ? *cgroup_bytes
                                                                                   : physical_bytes;
  }
};

/// Reads the limits: /proc/meminfo, and for each level of this process's cgroup v2 path the smaller
/// of memory.max and memory.high (cgroup v1: memory.limit_in_bytes). `root` replaces "/" in tests.
/// Never throws; what cannot be read counts as no limit.
MemoryLimit memory_limit(const std::filesystem::path& root = "/") noexcept;

}  // namespace waste::io
