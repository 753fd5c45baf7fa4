// How far expert records are read ahead of their use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace waste::engine {

/// How reader threads read. A caller that reads for itself uses pread.
enum class ReadWith : std::uint8_t {
  pread,  ///< one read at a time for each thread
  uring,  ///< io_uring: each thread keeps its share of `depth` in flight
};

/// Settings of a cache's readers. None of them changes what a caller gets, only when.
///
/// Reads come in three ranks, each served only while the ones above it are idle:
///   ahead  a layer's own experts, known once its router has spoken (ExpertCache::prepare);
///   guess  what the next layer's router says of this layer's output (ExpertCache::expect),
///          withdrawn when that layer is reached;
///   warm   experts worth having before anyone asks (ExpertCache::warm).
/// A caller never waits for a read that has not begun: it makes that read itself.
struct ReadAheadOptions {
  /// Threads that read, for each drive that holds banks: a drive that is slow, or has much to
  /// read, keeps the others waiting for nothing. 0: every read is made by the caller that needs the
  /// record.
  unsigned readers = 2;
  /// Records read ahead, or being read, that nobody has asked for yet: at most so many from each
  /// drive. They take slots of the budget, at most a quarter of it together with those of
  /// concurrent callers.
  std::size_t depth = 8;
  /// Experts guessed for the next layer; 0: none.
  std::size_t look_ahead = 6;
  /// A caller waits so long for a reader's read, then reads for itself into another slot: a reader
  /// that hangs or has died costs a slot and time, not the answer. Reads that callers with
  /// substitutes hand over and that no reader has begun after this time are theirs again, and the
  /// later ones are not handed over, until a reader begins another read.
  std::chrono::milliseconds patience{10000};
  /// Where the build or the kernel has no io_uring, which a read through a ring tells when the
  /// cache is made, readers use pread and CacheStatus says why.
  ReadWith with = ReadWith::pread;
};

/// What the record places of a cache are for. Where not every expert fits, some are set apart for
/// records that are not kept: those that concurrent callers hold and those read ahead, together at
/// most a quarter.
struct Places {
  std::size_t kept = 0;   ///< records that stay
  std::size_t ahead = 0;  ///< records read ahead at most
};
/// `slots` places in a cache of `keys` experts on `drives` drives whose callers hold `concurrent`
/// at once (at least 1).
Places places_of(std::size_t slots, std::size_t keys, std::size_t concurrent,
                 const ReadAheadOptions& ahead, std::size_t drives = 1) noexcept;

}  // namespace waste::engine
