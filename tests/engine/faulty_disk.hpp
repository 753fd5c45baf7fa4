// A disk that fails on request: replaces pread in the test program, below the library's files, and
// what io_uring's rings hand to the kernel.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>

namespace waste::test {

/// Reads of at least a page at page-aligned offsets are offered to the fault first: what expert
/// records are read with, and little else.
struct DiskRead {
  int fd;
  void* to;
  std::size_t bytes;
  off_t offset;
  /// Of a read in a ring, which is faulted on a thread of its own: ends it with this result.
  std::function<void(int)> ring_end;
  /// The real read.
  ssize_t pass(std::size_t at_most) const;
  ssize_t pass() const { return pass(bytes); }
  /// Ends the thread that reads where it stands, as if the system had killed it; of a read in a
  /// ring, the thread that would have fetched its result.
  [[noreturn]] void die() const;
};

/// While true, no thread can be started: pthread_create answers EAGAIN.
extern std::atomic<bool> refuse_threads;
/// While true, no ring can be set up.
extern std::atomic<bool> refuse_rings;

/// While it lives, every read goes through `fault` (from any thread, several at once).
class FaultyDisk {
 public:
  using Fault = std::function<ssize_t(const DiskRead&)>;
  explicit FaultyDisk(Fault fault);
  ~FaultyDisk();  ///< waits until no read is in the fault
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;
};

/// Holds reads until opened.
class Gate {
 public:
  void open() {
    open_ = true;
    open_.notify_all();
  }
  void pass() const { open_.wait(false); }

 private:
  std::atomic<bool> open_{false};
};

}  // namespace waste::test
