// What processes on this machine mean to use: an advisory list, so that no two plan for the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <utility>

namespace waste::io {

/// Where reservations are looked for; for tests.
struct ReservationPlace {
  std::filesystem::path directory = {};  ///< of the file; empty: as MemoryReservation says
  std::filesystem::path root = "/";      ///< of proc
};

/// One process's line in a small file that all of a user's processes share, `waste-memory` in
/// XDG_RUNTIME_DIR, else `waste-memory-UID` in /dev/shm: pid, start time of the process, bytes.
/// Held until destruction; lines of processes that are gone do not count and are swept. Advisory:
/// where the file cannot be locked (within a second), read or written, there are no others and
/// nothing is noted. Move-only.
class MemoryReservation {
 public:
  MemoryReservation() = default;
  /// Calls decide(others), once, and notes the bytes that it returns (0: nothing). `others` is what
  /// was reserved and is not in use yet: for each process that reserved, its lines less its
  /// resident set. No other process can reserve between the two. Throws what `decide` throws.
  explicit MemoryReservation(const std::function<std::uint64_t(std::uint64_t others)>& decide,
                             const ReservationPlace& place = {});
  MemoryReservation(MemoryReservation&& other) noexcept { *this = std::move(other); }
  MemoryReservation& operator=(MemoryReservation&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(bytes_, other.bytes_);
    std::swap(place_, other.place_);
    return *this;
  }
  ~MemoryReservation();

  /// What is noted; 0 where nothing is.
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// What decide would be called with now.
  static std::uint64_t others(const ReservationPlace& place = {}) noexcept;

 private:
  std::filesystem::path file_;
  std::uint64_t bytes_ = 0;
  ReservationPlace place_;
};

}  // namespace waste::io
