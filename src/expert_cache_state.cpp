#include "expert_cache_state.hpp"

#include <chrono>
#include <string>
#include <system_error>

namespace waste::engine {

Places places_of(std::size_t slots, std::size_t keys, std::size_t concurrent,
                 const ReadAheadOptions& ahead, std::size_t drives) noexcept {
  const std::size_t depth = ahead.readers == 0 ? 0 : ahead.depth * drives;
  if (slots >= keys) return {slots, depth};
  const std::size_t apart = std::min(concurrent + depth, slots / 4);
  return {slots - apart, apart - std::min(apart, concurrent)};
}

ExpertCache::State::State(const Container& c, const CacheOptions& options)
    : container(c),
      ahead_options(options.ahead),
      substitutes(options.substitutes),
      substitute_after(options.substitute_after),
      read_delay(options.read_delay),
      reader_threads(options.ahead.readers) {
  if (substitutes) {
    if (reader_threads == 0) {
      throw Error(fault(Errc::bad_argument, "readers", 0, 1), {},
                  "substitutes need a thread that reads while the caller goes on");
    }
    reader_threads += static_cast<unsigned>(std::clamp<std::size_t>(options.concurrent, 1, 256));
  }
  std::size_t keys = 0;
  std::vector<std::uint64_t> devices;
  for (const auto& bank : container.banks()) {
    first_key.push_back(keys);
    keys += bank.experts();
    const auto found = std::find(devices.begin(), devices.end(), bank.device());
    drive_of_bank.push_back(static_cast<std::size_t>(found - devices.begin()));
    if (found == devices.end()) devices.push_back(bank.device());
  }
  drives = std::max<std::size_t>(devices.size(), 1);
  forsaken.assign(drives, 0);
  const auto& banks = container.banks();
  const std::uint64_t each =
      std::max<std::uint64_t>(banks.empty() ? 0 : banks.front().record_bytes(), 1);
  const std::uint64_t fit = options.budget_bytes / each;
  const std::size_t wanted = std::max<std::size_t>(options.concurrent, 1);
  if (keys != 0 && fit < std::min(wanted, keys)) {
    throw Error(fault(Errc::over_budget, "cache bytes", options.budget_bytes,
                      each * std::min(wanted, keys)),
                {},
                "room for " + std::to_string(wanted) +
                    (wanted == 1 ? " record of " : " records of ") + std::to_string(each) +
                    " bytes is needed");
  }
  slots = std::vector<Slot>(static_cast<std::size_t>(std::min<std::uint64_t>(fit, keys)));
  where.assign(keys, no_slot);
  const Places places = places_of(slots.size(), keys, wanted, ahead_options, drives);
  capacity = std::min(places.kept, options.most_kept);
  depth = places.ahead;
  make_rings(options.ahead);
  if (options.make_policy) {
    policy = options.make_policy(keys);
  } else {
    policy = make_policy(options.policy, keys);
    policy->set_layers(first_key);
  }
}

bool ExpertCache::State::find_key(LayerId layer, ExpertId expert, std::size_t& key) const noexcept {
  const auto& banks = container.banks();
  const auto it = std::lower_bound(banks.begin(), banks.end(), layer,
                                   [](const auto& b, LayerId l) { return b.layer() < l; });
  if (it == banks.end() || it->layer() != layer || to_index(expert) >= it->experts()) return false;
  key = first_key[static_cast<std::size_t>(it - banks.begin())] + to_index(expert);
  return true;
}

std::size_t ExpertCache::State::key_of(LayerId layer, ExpertId expert) const {
  std::size_t key = 0;
  if (find_key(layer, expert, key)) return key;
  for (const auto& bank : container.banks()) {
    if (bank.layer() == layer) {
      throw Error(fault(Errc::out_of_range, "expert", to_index(expert), bank.experts() - 1)
                      .at(layer, expert));
    }
  }
  throw Error(fault(Errc::out_of_range, "layer").at(layer));
}

const io::ExpertBank& ExpertCache::State::bank_of(std::size_t key) const noexcept {
  const auto it = std::upper_bound(first_key.begin(), first_key.end(), key);
  return container.banks()[static_cast<std::size_t>(it - first_key.begin()) - 1];
}

std::size_t ExpertCache::State::drive_of(std::size_t key) const noexcept {
  if (drives == 1) return 0;
  return drive_of_bank[static_cast<std::size_t>(&bank_of(key) - container.banks().data())];
}

void ExpertCache::State::empty_slot(Slot& slot) noexcept {
  if (slot.kept) --kept;
  if (slot.staged) --staged;
  if (!slot.lost) where[slot.key] = no_slot;
  slot.key = no_slot;
  slot.wanted = 0;
  slot.waiting = 0;
  slot.kept = slot.staged = slot.refuse = slot.late = slot.lost = false;
  slot.state = SlotState::empty;
}

/// The kept, unpinned slot that is worth least; no_slot where there is none.
std::size_t ExpertCache::State::victim(bool spare_wanted) const noexcept {
  std::size_t best = no_slot;
  double least = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& s = slots[i];
    if (s.state != SlotState::ready || s.pins != 0 || !s.kept) continue;
    if (spare_wanted && is_fresh(s.wanted)) continue;
    const double worth = policy->worth(s.key);
    if (best == no_slot || worth < least) {
      best = i;
      least = worth;
    }
  }
  return best;
}

std::size_t ExpertCache::State::find_empty() const noexcept {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].state == SlotState::empty) return i;
  }
  return no_slot;
}

/// A record that was read for nobody yet, of this origin and drive; for guesses only those that no
/// layer has named.
std::size_t ExpertCache::State::staged_slot(Origin origin, std::size_t drive) const noexcept {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& s = slots[i];
    if (s.state != SlotState::ready || !s.staged || s.pins != 0 || s.origin != origin) continue;
    if (origin == Origin::guess && is_fresh(s.wanted)) continue;
    if (drive != any_drive && drive_of(s.key) != drive) continue;
    return i;
  }
  return no_slot;
}

void ExpertCache::State::drop_staged(Slot& slot) noexcept {
  if (slot.origin == Origin::ahead) ++counters.ahead_unused;
  empty_slot(slot);
}

/// An empty slot for a caller's own read, made empty where need be; no_slot where every slot is
/// held or being read.
std::size_t ExpertCache::State::free_slot() noexcept {
  std::size_t i = find_empty();
  if (i != no_slot) return i;
  if ((i = staged_slot(Origin::guess)) != no_slot) {
    drop_staged(slots[i]);
  } else if ((i = victim(true)) != no_slot || (i = victim(false)) != no_slot) {
    empty_slot(slots[i]);
  } else if ((i = staged_slot(Origin::ahead)) != no_slot) {
    drop_staged(slots[i]);
  } else {
    for (i = 0; i < slots.size(); ++i) {  // a guess that has been named
      const Slot& s = slots[i];
      if (s.state == SlotState::ready && s.staged && s.pins == 0 && s.waiting == 0) break;
    }
    if (i == slots.size()) return no_slot;
    drop_staged(slots[i]);
  }
  return i;
}

/// Keeps a record that was just read, at the cost of a lesser one where the kept ones are many
/// enough. Some slots stay free for records that are not worth keeping.
void ExpertCache::State::admit(Slot& slot) noexcept {
  if (kept >= capacity) {
    const std::size_t i = victim(true);
    if (i == no_slot || policy->worth(slot.key) < policy->worth(slots[i].key)) {
      ++counters.not_kept;
      return;
    }
    empty_slot(slots[i]);
  }
  slot.kept = true;
  ++kept;
}

void ExpertCache::State::begin_read(std::size_t i, std::size_t key, Origin origin) noexcept {
  Slot& slot = slots[i];
  slot.key = key;
  slot.state = SlotState::reading;
  slot.has_memory = true;
  slot.origin = origin;
  slot.begun = std::chrono::steady_clock::now();
  slot.staged = origin == Origin::ahead || origin == Origin::guess;
  if (slot.staged) ++staged;
  where[key] = i;
}

ExpertId ExpertCache::State::expert_of(std::size_t key) const noexcept {
  const auto bank = static_cast<std::size_t>(&bank_of(key) - container.banks().data());
  return ExpertId{static_cast<std::uint32_t>(key - first_key[bank])};
}

std::span<std::uint8_t> ExpertCache::State::memory_of(Slot& slot) const {
  if (slot.record.empty()) {
    const std::uint64_t bytes = container.banks().front().record_bytes();
    slot.record = AlignedBuffer<std::uint8_t>(bytes, format::page_bytes, Uninitialized{});
  }
  return slot.record.span();
}

Fault ExpertCache::State::read(Slot& slot, std::size_t key, ReadCost& cost) const {
  const auto start = std::chrono::steady_clock::now();
  if (read_delay.count() > 0) std::this_thread::sleep_for(read_delay);
  const io::ExpertBank& bank = bank_of(key);
  const ExpertId expert = expert_of(key);
  const Fault fault = bank.try_read(expert, memory_of(slot), &cost.check);
  cost.ns = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count());
  return fault ? fault.at(bank.layer(), expert) : Fault{};
}

void ExpertCache::State::end_read(Slot& slot, std::size_t key, bool ok) noexcept {
  const io::ExpertBank& bank = bank_of(key);
  if (ok) {
    counters.bytes_read += bank.record_bytes();
  } else {
    ++counters.failed;
  }
  if (!ok || slot.lost || slot.refuse) {
    if (slot.staged && slot.origin == Origin::ahead && ok) ++counters.ahead_unused;
    empty_slot(slot);
    return;
  }
  slot.view = bank.view(slot.record.span());
  slot.state = SlotState::ready;
}

void ExpertCache::State::settle(Slot& slot) noexcept {
  if (slot.waiting != 0) {
    if (slot.staged) return;
    slot.staged = true;
    ++staged;
  } else if (slot.late || (slot.origin == Origin::demand && !slot.staged)) {
    if (slot.staged) --staged;
    slot.staged = false;
    admit(slot);
    if (!slot.kept) empty_slot(slot);
  }
}

void ExpertCache::State::give_up(std::size_t i) noexcept {
  Slot& slot = slots[i];
  slot.late = true;
  if (std::chrono::steady_clock::now() - slot.begun < ahead_options.patience) return;
  ++counters.overdue;
  if (std::erase_if(urgent, [i](const Job& job) { return job.slot == i; }) != 0) {
    forsaken[drive_of(slot.key)] = 1;
    empty_slot(slot);
    return;
  }
  if (slot.staged) {
    slot.staged = false;
    --staged;
  }
  where[slot.key] = no_slot;
  slot.lost = true;  // its reader empties it, should it ever return
}

/// The key's requests are void: someone is about to read it, or has it.
void ExpertCache::State::forget(std::size_t key) noexcept {
  const auto is_key = [key](const Request& r) { return r.key == key; };
  std::erase_if(ahead, is_key);
  std::erase_if(guess, is_key);
}

bool ExpertCache::State::has_place(std::size_t drive) const noexcept {
  if (staged >= depth) return false;
  if (drives == 1) return true;
  const auto held = std::count_if(slots.begin(), slots.end(), [&](const Slot& slot) {
    return slot.staged && drive_of(slot.key) == drive;
  });
  return static_cast<std::size_t>(held) < std::max<std::size_t>(depth / drives, 1);
}

}  // namespace waste::engine
