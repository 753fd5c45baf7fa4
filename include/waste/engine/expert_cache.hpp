// A bounded cache of expert records: read on demand, pinned while held, never wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "waste/core/error.hpp"
#include "waste/engine/cache_policy.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/io/container.hpp"

namespace waste::engine {

struct CacheOptions {
  /// Upper bound of the memory of all records held, resident, being read or being used.
  std::uint64_t budget_bytes = 0;
  /// Experts held at once by all callers (threads, for callers that hold one each): the budget
  /// must have room for as many.
  std::size_t concurrent = 1;
  Policy policy = Policy::decayed_frequency;
  /// Replaces `policy` where set; called once with the number of keys.
  std::function<std::unique_ptr<CachePolicy>(std::size_t keys)> make_policy = {};
};

struct CacheCounters {
  std::uint64_t hits = 0;        ///< answered from memory, a read that was under way included
  std::uint64_t misses = 0;      ///< answered by a read of this call
  std::uint64_t not_kept = 0;    ///< misses whose record was worth less than every resident one
  std::uint64_t failed = 0;      ///< reads that ended in an Error
  std::uint64_t bytes_read = 0;  ///< of the misses
};

/// Experts of one container in a fixed number of record-sized slots. Thread-safe; any number of
/// caches may exist, nothing is process-wide. A record is checked once, as it is read (the bank's
/// verify_records decides about the crc); a hit is never checked again.
class ExpertCache {
  struct State;

 public:
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
      return *this;
    }
    ~Lease() { release(); }

    const ExpertView& view() const noexcept { return *view_; }
    explicit operator bool() const noexcept { return state_ != nullptr; }
    void release() noexcept;

   private:
    friend class ExpertCache;
    std::shared_ptr<State> state_;
    std::size_t slot_ = 0;
    const ExpertView* view_ = nullptr;
  };

  /// The container is shared, not copied. Throws Error(over_budget) naming the bytes where the
  /// budget has no room for `concurrent` records.
  ExpertCache(const Container& container, const CacheOptions& options);

  /// The expert, from memory or by one read in this call. A caller that asks for a record another
  /// thread is reading waits for that read, and reads itself where it failed. Throws Error: what
  /// the read found, naming file, layer and expert (the next get() tries again); over_budget where
  /// every slot is held; out_of_range for a layer or expert that is not there.
  Lease get(LayerId layer, ExpertId expert);

  /// Tells the policy that a token begins.
  void begin_token();

  CacheCounters counters() const;
  std::size_t slots() const noexcept;           ///< records that fit the budget
  std::uint64_t record_bytes() const noexcept;  ///< of every expert of the container
  std::uint64_t held_bytes() const;             ///< memory of records allocated so far
  const Container& container() const noexcept;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace waste::engine

namespace waste {
using engine::ExpertCache;
}  // namespace waste
