#include "waste/engine/expert_cache.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "expert_cache_state.hpp"

namespace waste::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// Adds the time from its making to its end to a counter; hold the lock at both.
class Stopwatch {
 public:
  explicit Stopwatch(std::uint64_t& to) : to_(to), start_(Clock::now()) {}
  ~Stopwatch() {
    to_ += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count());
  }

 private:
  std::uint64_t& to_;
  Clock::time_point start_;
};

}  // namespace

ExpertCache::ExpertCache(const Container& container, const CacheOptions& options)
    : state_(std::make_shared<State>(container, options)),
      readers_(nullptr, [state = state_](void*) { state->stop_readers(); }) {}

ExpertCache::Lease ExpertCache::get(LayerId layer, ExpertId expert) {
  State& s = *state_;
  const std::size_t key = s.key_of(layer, expert);
  const std::size_t drive = s.drive_of(key);
  Lease lease;
  const auto hold = [&](std::size_t i) {
    ++s.slots[i].pins;
    s.slots[i].wanted = 0;
    lease.state_ = state_;
    lease.slot_ = i;
    lease.view_ = &s.slots[i].view;
  };

  // How long until a substitute answers.
  const bool timed = s.substitutes != nullptr;
  const Clock::time_point deadline =
      timed ? Clock::now() + s.substitute_after : Clock::time_point::max();
  const auto substitute = [&] {
    lease.state_ = state_;
    lease.slot_ = no_slot;
    lease.substitute_ = std::make_unique<const ExpertView>(s.substitutes->view(layer, expert));
    lease.view_ = lease.substitute_.get();
    ++s.counters.substituted;
  };

  std::unique_lock lock(s.mutex);
  s.policy->demand(key);
  if (timed) s.start_readers();
  bool handed = false;  // to a reader: where that read fails, this call reads again
  std::optional<Stopwatch> stall;
  Clock::time_point give_up = Clock::time_point::max();  // set when a wait begins
  std::size_t mine = no_slot;
  while (mine == no_slot) {
    const std::size_t i = s.where[key];
    if (i == no_slot) {
      if (timed) s.check_readers(drive);
      const bool hands = timed && !handed && s.has_readers(drive);
      // Where every reader is busy and one read waits already, more of them would only take places
      // from resident records.
      const bool queue_full = hands && s.has_urgent(drive);
      mine = queue_full ? no_slot : s.free_slot();
      if (mine != no_slot && hands) {
        s.forget(key);
        s.begin_read(mine, key, Origin::demand);
        s.urgent.push_back({mine, key});
        s.wake_reader();
        handed = true;
        mine = no_slot;
        continue;
      }
      if (mine != no_slot) break;
      if (timed && Clock::now() >= deadline) {
        substitute();
        return lease;
      }
      // Reads ahead end soon and can be dropped; what callers hold or read cannot.
      const bool hope =
          queue_full || std::any_of(s.slots.begin(), s.slots.end(), [&](const Slot& slot) {
            return slot.state == SlotState::reading && !slot.lost &&
                   (slot.origin != Origin::demand || timed);
          });
      if (!hope) {
        throw Error(fault(Errc::over_budget, "cache slots").at(layer, expert), {},
                    "all " + std::to_string(s.slots.size()) + " are held");
      }
      if (!stall) stall.emplace(s.counters.stall_ns);
      s.changed.wait_until(lock, std::min(deadline, Clock::now() + s.ahead_options.patience));
      continue;
    }
    Slot& slot = s.slots[i];
    if (slot.state == SlotState::ready) {
      if (slot.staged) {  // read ahead: this is the demand that it was read for
        slot.staged = false;
        --s.staged;
        ++s.counters.misses;
        if (slot.origin != Origin::demand) {
          ++(stall ? s.counters.ahead_late : s.counters.ahead_in_time);
        }
        if (slot.origin == Origin::guess) ++s.counters.guesses_used;
        s.admit(slot);
        s.wake_reader();
      } else {
        ++s.counters.hits;
      }
      hold(i);
      return lease;
    }
    slot.refuse = false;
    const Clock::time_point overdue = slot.begun + s.ahead_options.patience;
    if (timed && Clock::now() >= std::min(deadline, overdue)) {
      s.give_up(i);
      if (Clock::now() < deadline) continue;
      substitute();
      return lease;
    }
    if (!stall) stall.emplace(s.counters.stall_ns);
    if (timed) {
      ++slot.waiting;
      const Clock::time_point begun = slot.begun;
      s.changed.wait_until(lock, std::min(deadline, overdue));
      if (s.where[key] == i && slot.begun == begun) --slot.waiting;
      continue;
    }
    if (give_up == Clock::time_point::max()) give_up = Clock::now() + s.ahead_options.patience;
    if (s.changed.wait_until(lock, give_up) == std::cv_status::timeout && s.where[key] == i &&
        slot.state == SlotState::reading && Clock::now() >= give_up) {
      slot.lost = true;  // its reader empties it, should it ever return
      if (slot.staged) {
        slot.staged = false;
        --s.staged;
      }
      s.where[key] = no_slot;
      ++s.counters.overdue;
      give_up = Clock::time_point::max();
    }
  }

  s.forget(key);
  s.begin_read(mine, key, Origin::demand);
  Slot& slot = s.slots[mine];
  if (!stall) stall.emplace(s.counters.stall_ns);
  lock.unlock();

  Fault fault;
  std::exception_ptr no_memory;
  ReadCost cost;
  try {
    fault = s.read(slot, key, cost);
  } catch (...) {
    no_memory = std::current_exception();
  }

  lock.lock();
  s.add(cost);
  if (!slot.lost) {
    const bool ok = !fault && !no_memory;
    s.end_read(slot, key, ok);
    if (ok) {
      ++s.counters.misses;
      s.admit(slot);
      hold(mine);
    }
  } else {
    // Another caller lost patience with this read; the record is good, but no longer the key's.
    if (!fault && !no_memory) {
      s.counters.bytes_read += s.bank_of(key).record_bytes();
      ++s.counters.misses;
      slot.view = s.bank_of(key).view(slot.record.span());
      slot.state = SlotState::ready;
      hold(mine);
    } else {
      ++s.counters.failed;
      s.empty_slot(slot);
    }
  }
  stall.reset();
  if (!s.ahead.empty()) s.wake_reader();  // a slot may be free
  lock.unlock();
  s.changed.notify_all();
  if (no_memory) std::rethrow_exception(no_memory);
  if (fault) throw Error(fault, s.bank_of(key).file().path().string());
  return lease;
}

void ExpertCache::Lease::release() noexcept {
  if (state_ == nullptr) return;
  if (substitute_ == nullptr) {
    const std::lock_guard lock(state_->mutex);
    Slot& slot = state_->slots[slot_];
    if (--slot.pins == 0 && !slot.kept) {
      state_->empty_slot(slot);
      state_->wake_reader();
    }
  }
  state_.reset();
  substitute_.reset();
  view_ = nullptr;
}

void ExpertCache::prepare(LayerId layer, std::span<const ExpertId> experts) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const std::uint64_t number = ++s.prepares;
  // Those of earlier calls that nobody asked for in time.
  for (Slot& slot : s.slots) {
    if (slot.staged && slot.state == SlotState::ready && slot.pins == 0 &&
        slot.origin == Origin::ahead && !s.is_fresh(slot.wanted)) {
      s.drop_staged(slot);
    }
  }
  for (const ExpertId expert : experts) {
    std::size_t key = 0;
    if (!s.find_key(layer, expert, key)) continue;
    std::erase_if(s.guess, [key](const auto& r) { return r.key == key; });
    if (s.where[key] != no_slot) {
      s.slots[s.where[key]].wanted = number;
      s.slots[s.where[key]].refuse = false;
    } else if (s.depth != 0) {
      std::erase_if(s.ahead, [key](const auto& r) { return r.key == key; });
      s.ahead.push_back({key, number});
    }
  }
  // What was guessed of this layer and is not wanted.
  std::size_t first = 0;
  if (s.find_key(layer, ExpertId{0}, first)) {
    const std::size_t end = first + s.container.bank(layer).experts();
    s.counters.guesses_withdrawn +=
        std::erase_if(s.guess, [&](const auto& r) { return r.key >= first && r.key < end; });
    for (Slot& slot : s.slots) {
      if (!slot.staged || slot.origin != Origin::guess || slot.key < first || slot.key >= end ||
          slot.wanted == number) {
        continue;
      }
      if (slot.state == SlotState::ready && slot.pins == 0) {
        s.empty_slot(slot);
      } else {
        slot.refuse = true;
      }
    }
  }
  if (!s.ahead.empty()) {
    s.start_readers();
    s.wake_readers();
  }
}

void ExpertCache::expect(LayerId layer, std::span<const ExpertId> experts) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  std::size_t first = 0;
  if (s.depth == 0 || !s.find_key(layer, ExpertId{0}, first)) return;
  const std::size_t end = first + s.container.bank(layer).experts();
  s.counters.guesses_withdrawn +=
      std::erase_if(s.guess, [&](const auto& r) { return r.key >= first && r.key < end; });
  for (const ExpertId expert : experts) {
    std::size_t key = 0;
    if (s.find_key(layer, expert, key) && s.where[key] == no_slot) {
      s.guess.push_back({key, s.prepares});
    }
  }
  if (!s.guess.empty()) {
    s.start_readers();
    s.wake_reader();
  }
}

void ExpertCache::warm(std::span<const std::pair<LayerId, ExpertId>> experts) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  for (const auto& [layer, expert] : experts) {
    std::size_t key = 0;
    if (s.warm.size() < s.where.size() && s.find_key(layer, expert, key)) s.warm.push_back(key);
  }
  if (!s.warm.empty()) {
    s.start_readers();
    s.wake_readers();
  }
}

void ExpertCache::withdraw() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  s.counters.guesses_withdrawn += s.guess.size();
  s.ahead.clear();
  s.guess.clear();
  s.warm.clear();
  for (Slot& slot : s.slots) {
    slot.wanted = 0;
    if (!slot.staged || slot.pins != 0) continue;
    if (slot.state == SlotState::ready) {
      s.drop_staged(slot);
    } else {
      slot.refuse = true;
    }
  }
}

void ExpertCache::begin_token() {
  const std::lock_guard lock(state_->mutex);
  state_->policy->begin_token();
}

CacheCounters ExpertCache::counters() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counters;
}

CacheStatus ExpertCache::status() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  CacheStatus out;
  out.readers = static_cast<unsigned>(s.threads.size());
  out.readers_refused = s.readers_refused;
  out.with = s.rings.empty() ? ReadWith::pread : ReadWith::uring;
  out.uring_refused = s.uring_refused;
  out.drives = static_cast<unsigned>(s.drives);
  out.depth = s.depth;
  const bool of_use = s.depth != 0 && !s.all_resident() && !(s.started && s.threads.empty());
  out.look_ahead = of_use ? s.ahead_options.look_ahead : 0;
  const auto& banks = s.container.banks();
  if (!banks.empty()) out.verify = banks.front().verify();
  out.direct_io = !banks.empty() && std::all_of(banks.begin(), banks.end(),
                                                [](const auto& b) { return b.file().direct(); });
  return out;
}

std::size_t ExpertCache::slots() const noexcept { return state_->slots.size(); }

std::uint64_t ExpertCache::record_bytes() const noexcept {
  const auto& banks = state_->container.banks();
  return banks.empty() ? 0 : banks.front().record_bytes();
}

std::uint64_t ExpertCache::held_bytes() const {
  const std::lock_guard lock(state_->mutex);
  const auto n = std::count_if(state_->slots.begin(), state_->slots.end(),
                               [](const Slot& slot) { return slot.has_memory; });
  return static_cast<std::uint64_t>(n) * record_bytes();
}

const Container& ExpertCache::container() const noexcept { return state_->container; }

}  // namespace waste::engine
