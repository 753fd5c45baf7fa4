// Many positional reads in flight from one thread, through the kernel's io_uring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "waste/core/error.hpp"
#include "waste/io/file.hpp"

namespace waste::io {

/// A ring of reads. Owned by one thread at a time, which starts reads and collects their ends; only
/// wake() may be called from others. Reads mean what File::try_pread means: whole or a fault.
///
/// What the kernel interrupts or cuts short is continued, an end of file is Errc::truncated, a
/// failure Errc::io; a read that the ring itself refuses is made with pread on the spot.
class ReadQueue {
 public:
  /// Room for `depth` reads at once (1 to most_depth, bad_argument otherwise). Sets up a ring and
  /// proves it with a real read; throws Error(unsupported) saying what refused: the build, which
  /// has no liburing, or the kernel.
  explicit ReadQueue(unsigned depth);
  /// Waits until no read is in flight: the kernel writes into their memory.
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  static constexpr unsigned most_depth = 1024;

  unsigned depth() const noexcept;
  unsigned in_flight() const noexcept;  ///< started and not yet collected

  /// Begins a read of out.size() bytes at `offset`: one submission. `tag` < depth() names it until
  /// it is collected and is no other's in flight; `file` and `out` must live as long. Of a file
  /// that bypasses the page cache, offset, length and memory are multiples of 4096.
  void start(std::size_t tag, const File& file, std::span<std::uint8_t> out,
             std::uint64_t offset) noexcept;

  struct Done {
    std::size_t tag = 0;
    Fault fault;  ///< as of File::try_pread
  };
  /// A read that has ended; none where all are under way.
  std::optional<Done> poll() noexcept;
  /// Waits until a read ends or somebody calls wake(): none for a call of wake(), also one made
  /// before the wait.
  std::optional<Done> wait() noexcept;
  /// Ends the wait() under way or the next one. From any thread, any number of times.
  void wake() noexcept;

  struct Ring;  ///< internal

 private:
  std::unique_ptr<Ring> ring_;
};

}  // namespace waste::io
