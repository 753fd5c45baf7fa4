// A bounded cache of expert records: read on demand or ahead of it, pinned while held, never wrong.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "waste/core/error.hpp"
#include "waste/engine/cache_policy.hpp"
#include "waste/engine/read_ahead.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/io/container.hpp"
#include "waste/io/substitutes.hpp"

namespace waste::engine {

struct CacheOptions {
  /// Upper bound of the memory of all records held, resident, being read or being used.
  std::uint64_t budget_bytes = 0;
  /// Experts held at once by all callers (threads, for callers that hold one each): the budget
  /// must have room for as many.
  std::size_t concurrent = 1;
  /// Keep no more than so many, whatever the budget has room for: to imitate a run that sets more
  /// places apart.
  std::size_t most_kept = static_cast<std::size_t>(-1);
  Policy policy = Policy::decayed_frequency;  ///< told of the container's layers
  /// Replaces `policy` where set; called once with the number of keys. Tell it of layers yourself.
  std::function<std::unique_ptr<CachePolicy>(std::size_t keys)> make_policy = {};
  ReadAheadOptions ahead = {};
  /// Answers of misses that take longer than substitute_after, counted from the call of get();
  /// null: a miss takes as long as it takes. With them results depend on time. Needs at least one
  /// reader; as many more threads as `concurrent` then read, in the callers' place.
  std::shared_ptr<const io::Substitutes> substitutes = {};
  std::chrono::milliseconds substitute_after{0};
  /// Every read takes so much longer: to see what a slower disk would do.
  std::chrono::microseconds read_delay{0};
};

/// What a cache did since it was made. hits + misses + substituted = calls of get() that were
/// answered; a miss is ahead_in_time, ahead_late, or (the rest) read by the caller itself.
struct CacheCounters {
  std::uint64_t hits = 0;         ///< answered from memory, or by another caller's read under way
  std::uint64_t misses = 0;       ///< the record had to be read for this answer, ahead of it or not
  std::uint64_t substituted = 0;  ///< answered by a substitute: the record was not there in time
  std::uint64_t ahead_in_time = 0;  ///< misses whose record was there when it was asked for
  std::uint64_t ahead_late = 0;     ///< misses that waited for the rest of a read ahead
  std::uint64_t not_kept = 0;       ///< misses whose record was worth less than every resident one
  std::uint64_t failed = 0;         ///< reads that ended in an Error, a reader's included
  std::uint64_t bytes_read = 0;     ///< by everyone, whole records
  std::uint64_t ahead_unused = 0;   ///< read on a layer's request and never asked for
  std::uint64_t guesses = 0;        ///< reads made on the word of the next layer's router
  std::uint64_t guesses_used = 0;   ///< of them asked for
  std::uint64_t guesses_withdrawn = 0;  ///< wrong guesses that were still unread: no read was made
  std::uint64_t warmed = 0;             ///< read by warm() and kept
  std::uint64_t overdue = 0;            ///< reads that a caller gave up waiting for
  std::uint64_t stall_ns = 0;           ///< callers' time in waits and reads, summed over callers
  std::uint64_t crc_ns = 0;       ///< of the reads: computing crc32s, on whichever thread read
  std::uint64_t crc_records = 0;  ///< records whose crc32 was compared
  std::uint64_t read_ns = 0;      ///< how long reads took, checks included, summed over reads
};

/// What a cache runs with; what was asked for may not have been had.
struct CacheStatus {
  unsigned readers = 0;          ///< reader threads that run (they start with the first request)
  unsigned readers_refused = 0;  ///< threads that the system would not start
  std::size_t depth = 0;         ///< records read ahead at most, after what the budget allows
  std::size_t look_ahead = 0;    ///< experts guessed per layer; 0 where guessing is of no use
  io::Verify verify = io::Verify::off;  ///< of the banks
  bool direct_io = false;  ///< every bank bypasses the page cache, as a real read has proved
  unsigned drives = 0;     ///< that hold the banks; each has its own share of the readers
  ReadWith with = ReadWith::pread;
  std::string uring_refused;  ///< why readers use pread though io_uring was asked for
};

/// Experts of one container in a fixed number of record-sized slots. Thread-safe; any number of
/// caches may exist, nothing is process-wide: each has its own readers, which end with the last
/// copy of the cache. A record is checked once, as it is read (the bank's
/// verify_records decides about the crc); a hit is never checked again.
class ExpertCache {
 public:
  struct State;  ///< internal
  /// An expert held: its views stay valid, and its slot is not reused, while the Lease lives. May
  /// outlive the cache object. Move-only; release from any thread.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept {
      std::swap(state_, other.state_);
      std::swap(slot_, other.slot_);
      std::swap(view_, other.view_);
      std::swap(substitute_, other.substitute_);
      return *this;
    }
    ~Lease() { release(); }

    const ExpertView& view() const noexcept { return *view_; }
    explicit operator bool() const noexcept { return state_ != nullptr; }
    /// Whether the views are those of the expert's substitute.
    bool substituted() const noexcept { return substitute_ != nullptr; }
    void release() noexcept;

   private:
    friend class ExpertCache;
    std::shared_ptr<State> state_;
    std::size_t slot_ = 0;
    const ExpertView* view_ = nullptr;
    std::unique_ptr<const ExpertView> substitute_;
  };

  /// The container is shared, not copied. Throws Error: over_budget naming the bytes where the
  /// budget has no room for `concurrent` records, bad_argument for substitutes without readers.
  ExpertCache(const Container& container, const CacheOptions& options);

  /// The expert, from memory or by one read in this call. A caller that asks for a record another
  /// thread is reading waits for that read, and reads itself where it failed. Throws Error: what
  /// the read found, naming file, layer and expert (the next get() tries again); over_budget where
  /// every slot is held; out_of_range for a layer or expert that is not there. A reader's read that
  /// failed is no error yet: the call reads again.
  ///
  /// With substitutes, a call whose record is not there after substitute_after is answered by the
  /// expert's substitute; the read goes on, and its record is kept where it is worth it. A read
  /// that failed is an error all the same.
  Lease get(LayerId layer, ExpertId expert);

  /// The experts that get() will be asked for next, in the order of first use: reads of those that
  /// are not resident start at once, and residents among them are not evicted for one another.
  /// Guesses for this layer that are not among them are withdrawn. Experts out of range are
  /// ignored. What is never asked for is dropped after some more calls of prepare().
  void prepare(LayerId layer, std::span<const ExpertId> experts);
  /// Experts that prepare() may name for `layer`: read at low rank. Replaces earlier guesses for
  /// the layer.
  void expect(LayerId layer, std::span<const ExpertId> experts);
  /// Experts to have resident, most useful first: read at the lowest rank while the cache has
  /// places that were never filled. Returns at once; a failed read is skipped.
  void warm(std::span<const std::pair<LayerId, ExpertId>> experts);
  /// Withdraws all that was asked for ahead and not used: for a caller that gives up a layer.
  void withdraw();

  /// Tells the policy that a token begins.
  void begin_token();

  CacheCounters counters() const;
  CacheStatus status() const;
  std::size_t slots() const noexcept;           ///< records that fit the budget
  std::uint64_t record_bytes() const noexcept;  ///< of every expert of the container
  std::uint64_t held_bytes() const;             ///< memory of records allocated so far
  const Container& container() const noexcept;

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<void> readers_;  ///< joins them when the last copy goes
};

}  // namespace waste::engine

namespace waste {
using engine::ExpertCache;
}  // namespace waste
