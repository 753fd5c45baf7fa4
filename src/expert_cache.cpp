#include "waste/engine/expert_cache.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "waste/core/aligned_buffer.hpp"

namespace waste::engine {
namespace {

constexpr std::size_t none = static_cast<std::size_t>(-1);

enum class SlotState : std::uint8_t { empty, reading, ready };

struct Slot {
  AlignedBuffer<std::uint8_t> record;  ///< allocated at first use, then reused
  ExpertView view;
  std::size_t key = none;
  std::size_t pins = 0;
  SlotState state = SlotState::empty;
  bool kept = false;  ///< false: emptied when the last pin goes
};

}  // namespace

struct ExpertCache::State {
  explicit State(const Container& c) : container(c) {}

  std::size_t key_of(LayerId layer, ExpertId expert) const {
    const auto& banks = container.banks();
    const auto it = std::lower_bound(banks.begin(), banks.end(), layer,
                                     [](const auto& b, LayerId l) { return b.layer() < l; });
    if (it == banks.end() || it->layer() != layer) {
      throw Error(fault(Errc::out_of_range, "layer").at(layer));
    }
    if (to_index(expert) >= it->experts()) {
      throw Error(
          fault(Errc::out_of_range, "expert", to_index(expert), it->experts()).at(layer, expert));
    }
    return first_key[static_cast<std::size_t>(it - banks.begin())] + to_index(expert);
  }

  void empty_slot(Slot& slot) noexcept {
    if (slot.kept) --kept;
    where[slot.key] = none;
    slot.key = none;
    slot.kept = false;
    slot.state = SlotState::empty;
  }
  /// The kept, unpinned slot that is worth least; none where there is none.
  std::size_t victim() const noexcept {
    std::size_t best = none;
    double least = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Slot& s = slots[i];
      if (s.state != SlotState::ready || s.pins != 0 || !s.kept) continue;
      const double worth = policy->worth(s.key);
      if (best == none || worth < least) {
        best = i;
        least = worth;
      }
    }
    return best;
  }
  /// An empty slot, made empty where need be; none where every slot is held.
  std::size_t free_slot() noexcept {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].state == SlotState::empty) return i;
    }
    const std::size_t i = victim();
    if (i != none) empty_slot(slots[i]);
    return i;
  }
  /// Keeps a record that was just read, at the cost of a lesser one where the kept ones are many
  /// enough. Some slots stay free for records that are not worth keeping.
  void admit(Slot& slot) noexcept {
    if (kept >= capacity) {
      const std::size_t i = victim();
      if (i == none || policy->worth(slot.key) < policy->worth(slots[i].key)) {
        ++counters.not_kept;
        return;
      }
      empty_slot(slots[i]);
    }
    slot.kept = true;
    ++kept;
  }

  const Container container;
  std::vector<std::size_t> first_key;  ///< of each bank
  std::unique_ptr<CachePolicy> policy;
  std::size_t capacity = 0;  ///< of kept records; below slots.size() where a policy may refuse

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Slot> slots;
  std::vector<std::size_t> where;  ///< slot of each key
  std::size_t kept = 0;
  CacheCounters counters;
};

ExpertCache::ExpertCache(const Container& container, const CacheOptions& options)
    : state_(std::make_shared<State>(container)) {
  State& s = *state_;
  std::size_t keys = 0;
  for (const auto& bank : container.banks()) {
    s.first_key.push_back(keys);
    keys += bank.experts();
  }
  const std::uint64_t each = std::max<std::uint64_t>(record_bytes(), 1);
  const std::uint64_t fit = options.budget_bytes / each;
  const std::size_t wanted = std::max<std::size_t>(options.concurrent, 1);
  if (keys != 0 && fit < std::min(wanted, keys)) {
    throw Error(fault(Errc::over_budget, "cache bytes", options.budget_bytes,
                      each * std::min(wanted, keys)),
                {},
                "room for " + std::to_string(wanted) + " records of " + std::to_string(each) +
                    " bytes is needed");
  }
  s.slots = std::vector<Slot>(static_cast<std::size_t>(std::min<std::uint64_t>(fit, keys)));
  s.where.assign(keys, none);
  // Where not everything fits, up to `concurrent` slots are for records that are not kept.
  const std::size_t spare = s.slots.size() < keys ? std::min(wanted, s.slots.size() / 4) : 0;
  s.capacity = s.slots.size() - spare;
  s.policy = options.make_policy ? options.make_policy(keys) : make_policy(options.policy, keys);
}

ExpertCache::Lease ExpertCache::get(LayerId layer, ExpertId expert) {
  State& s = *state_;
  const std::size_t key = s.key_of(layer, expert);
  const io::ExpertBank& bank = s.container.bank(layer);
  Lease lease;
  const auto hold = [&](std::size_t i) {
    lease.state_ = state_;
    lease.slot_ = i;
    lease.view_ = &s.slots[i].view;
  };

  std::unique_lock lock(s.mutex);
  s.policy->demand(key);
  std::size_t i;
  while ((i = s.where[key]) != none) {
    Slot& slot = s.slots[i];
    if (slot.state == SlotState::ready) {
      ++slot.pins;
      ++s.counters.hits;
      hold(i);
      return lease;
    }
    s.changed.wait(lock);
  }

  i = s.free_slot();
  if (i == none) {
    throw Error(fault(Errc::over_budget, "cache slots").at(layer, expert), {},
                "all " + std::to_string(s.slots.size()) + " are held");
  }
  Slot& slot = s.slots[i];
  slot.key = key;
  slot.state = SlotState::reading;
  s.where[key] = i;
  lock.unlock();

  Fault fault;
  std::exception_ptr no_memory;
  try {
    if (slot.record.empty()) slot.record = AlignedBuffer<std::uint8_t>(bank.record_bytes());
    fault = bank.try_read(expert, slot.record.span(), bank.verifies());
  } catch (...) {
    no_memory = std::current_exception();
  }

  lock.lock();
  if (fault || no_memory) {
    s.empty_slot(slot);
    ++s.counters.failed;
    lock.unlock();
    s.changed.notify_all();
    if (no_memory) std::rethrow_exception(no_memory);
    throw Error(fault.at(layer, expert), bank.file().path().string());
  }
  slot.view = bank.view(slot.record.span());
  slot.state = SlotState::ready;
  slot.pins = 1;
  ++s.counters.misses;
  s.counters.bytes_read += bank.record_bytes();
  s.admit(slot);
  hold(i);
  lock.unlock();
  s.changed.notify_all();
  return lease;
}

void ExpertCache::Lease::release() noexcept {
  if (state_ == nullptr) return;
  {
    const std::lock_guard lock(state_->mutex);
    Slot& slot = state_->slots[slot_];
    if (--slot.pins == 0 && !slot.kept) state_->empty_slot(slot);
  }
  state_.reset();
  view_ = nullptr;
}

void ExpertCache::begin_token() {
  const std::lock_guard lock(state_->mutex);
  state_->policy->begin_token();
}

CacheCounters ExpertCache::counters() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counters;
}

std::size_t ExpertCache::slots() const noexcept { return state_->slots.size(); }

std::uint64_t ExpertCache::record_bytes() const noexcept {
  const auto& banks = state_->container.banks();
  return banks.empty() ? 0 : banks.front().record_bytes();
}

std::uint64_t ExpertCache::held_bytes() const {
  const std::lock_guard lock(state_->mutex);
  std::uint64_t n = 0;
  for (const Slot& slot : state_->slots) n += slot.record.size();
  return n;
}

const Container& ExpertCache::container() const noexcept { return state_->container; }

}  // namespace waste::engine
