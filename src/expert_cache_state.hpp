// Slots, requests and readers of an expert cache: everything behind its one mutex.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/engine/expert_cache.hpp"
#include "waste/io/read_queue.hpp"

namespace waste::engine {

inline constexpr std::size_t no_slot = static_cast<std::size_t>(-1);
inline constexpr std::size_t any_drive = static_cast<std::size_t>(-1);

enum class SlotState : std::uint8_t { empty, reading, ready };
enum class Origin : std::uint8_t { demand, ahead, guess, warm };

struct Slot {
  AlignedBuffer<std::uint8_t> record;  ///< allocated at first use, then reused
  ExpertView view;
  std::size_t key = no_slot;
  std::size_t pins = 0;
  std::uint64_t wanted = 0;  ///< number of the prepare() that listed this record; 0: none
  SlotState state = SlotState::empty;
  Origin origin = Origin::demand;
  bool has_memory = false;  ///< `record` was, or is about to be, allocated
  bool kept = false;        ///< false: emptied when the last pin goes
  bool staged = false;      ///< read ahead or on a guess, and nobody has asked for it yet
  bool refuse = false;      ///< drop the record when its read ends
  std::chrono::steady_clock::time_point begun;  ///< its read
  std::size_t waiting = 0;  ///< callers who wait for its read and may take a substitute instead
  bool late = false;        ///< one of them has
  bool lost = false;        ///< a caller gave up on its reader; the key is no longer this slot's
};

struct ReadCost {
  std::uint64_t ns = 0;
  io::ReadStats check;
};

struct ExpertCache::State {
  /// A record that readers are to read. The number is that of the prepare() it came from.
  struct Request {
    std::size_t key;
    std::uint64_t number;
  };
  struct Job {
    std::size_t slot;
    std::size_t key;
  };

  /// A reader's reads in flight.
  struct Ring {
    struct Flight {
      Job job;
      std::chrono::steady_clock::time_point begun;
      bool used = false;
    };
    explicit Ring(unsigned depth) : queue(depth), flights(depth) {}
    io::ReadQueue queue;
    std::vector<Flight> flights;  ///< [tag]
    bool idle = false;            ///< waits, and would take another job
  };

  State(const Container& c, const CacheOptions& options);

  // All below: with `mutex` held unless said otherwise.
  std::size_t key_of(LayerId layer, ExpertId expert) const;                        // needs no lock
  bool find_key(LayerId layer, ExpertId expert, std::size_t& key) const noexcept;  // nor this
  const io::ExpertBank& bank_of(std::size_t key) const noexcept;                   // nor this

  void empty_slot(Slot& slot) noexcept;
  std::size_t victim(bool spare_wanted) const noexcept;
  std::size_t find_empty() const noexcept;
  std::size_t staged_slot(Origin origin, std::size_t drive = any_drive) const noexcept;
  std::size_t free_slot() noexcept;
  void admit(Slot& slot) noexcept;
  bool is_fresh(std::uint64_t number) const noexcept { return number + prepare_window > prepares; }
  void drop_staged(Slot& slot) noexcept;
  bool all_resident() const noexcept { return kept == where.size(); }

  void begin_read(std::size_t slot, std::size_t key, Origin origin) noexcept;
  ExpertId expert_of(std::size_t key) const noexcept;  ///< needs no lock
  /// slot.record, allocated at first use; call without the lock. Throws std::bad_alloc.
  std::span<std::uint8_t> memory_of(Slot& slot) const;
  /// Reads and checks slot.record; call without the lock.
  Fault read(Slot& slot, std::size_t key, ReadCost& cost) const;
  void add(const ReadCost& cost) noexcept {
    counters.read_ns += cost.ns;
    counters.crc_ns += cost.check.crc_ns;
    counters.crc_records += cost.check.crc_records;
  }
  /// Ends a read: the slot is ready, or empty after a fault. The caller notifies `changed`.
  void end_read(Slot& slot, std::size_t key, bool ok) noexcept;

  /// A read that callers may have given up is over: keeps its record for who waits, else as the
  /// policy says.
  void settle(Slot& slot) noexcept;
  /// A caller gives up waiting for this slot's read; one that is hopeless loses its key.
  void give_up(std::size_t slot) noexcept;

  void forget(std::size_t key) noexcept;
  std::size_t drive_of(std::size_t key) const noexcept;  ///< needs no lock
  /// Whether another record of this drive may be read ahead: no drive takes the places of another.
  bool has_place(std::size_t drive) const noexcept;

  /// Readers: several threads for each drive. expert_cache_readers.cpp
  void make_rings(const ReadAheadOptions& options);
  void start_readers() noexcept;
  void stop_readers() noexcept;
  void wake_reader() noexcept;  ///< there is work for one more, of any drive
  void wake_readers() noexcept;
  bool next_job(std::size_t drive, Job& job) noexcept;
  /// A reader's read is over: its record goes where its origin says.
  void end_job(const Job& job, bool ok, const ReadCost& cost) noexcept;
  void run_reader(std::size_t drive) noexcept;
  void run_ring(std::size_t drive, Ring& ring) noexcept;
  /// Whether reads may be handed to this drive's readers.
  bool has_readers(std::size_t drive) const noexcept {
    return !threads.empty() && !forsaken[drive];
  }
  bool has_urgent(std::size_t drive) const noexcept {
    return std::any_of(urgent.begin(), urgent.end(),
                       [&](const Job& j) { return drive_of(j.key) == drive; });
  }
  /// Takes back the reads that no reader of this drive has begun for too long.
  void check_readers(std::size_t drive) noexcept;

  /// So many calls of prepare() later, a record that was listed and not asked for is fair game.
  static constexpr std::uint64_t prepare_window = 16;

  const Container container;
  ReadAheadOptions ahead_options;
  const std::shared_ptr<const io::Substitutes> substitutes;
  const std::chrono::milliseconds substitute_after;
  const std::chrono::microseconds read_delay;
  unsigned reader_threads = 0;             ///< to start, for each drive
  std::vector<std::size_t> first_key;      ///< of each bank
  std::vector<std::size_t> drive_of_bank;  ///< [banks], counted from 0
  std::size_t drives = 1;
  std::unique_ptr<CachePolicy> policy;
  std::size_t capacity = 0;  ///< of kept records; below slots.size() where a policy may refuse
  std::size_t depth = 0;     ///< of staged records

  mutable std::mutex mutex;
  std::condition_variable changed;  ///< a slot changed its state
  std::condition_variable work;     ///< a reader may find a job
  std::vector<Slot> slots;
  std::vector<std::size_t> where;  ///< slot of each key
  std::size_t kept = 0, staged = 0, warming = 0;
  std::uint64_t prepares = prepare_window;  ///< so that number 0 is never fresh
  std::deque<Request> ahead, guess;
  std::deque<Job> urgent;  ///< reads of callers that may take a substitute: the first rank
  std::deque<std::size_t> warm;
  CacheCounters counters;

  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Ring>> rings;  ///< of each thread; none: readers use pread
  std::string uring_refused;
  std::vector<std::uint8_t> forsaken;  ///< [drives] nobody has read there for too long
  unsigned readers_refused = 0;
  bool started = false, stopping = false;
};

}  // namespace waste::engine
