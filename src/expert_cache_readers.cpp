// The reader threads of an expert cache, each with reads of its own or a ring of them.
#include <algorithm>
#include <chrono>

#include "expert_cache_state.hpp"

namespace waste::engine {

/// What a reader of `drive` does next: takes the request and marks a slot, or returns false.
bool ExpertCache::State::next_job(std::size_t drive, Job& job) noexcept {
  forsaken[drive] = 0;
  const auto take = [&](std::size_t slot, std::size_t key, Origin origin) {
    begin_read(slot, key, origin);
    job = {slot, key};
    return true;
  };
  const auto call = std::find_if(urgent.begin(), urgent.end(),
                                 [&](const Job& j) { return drive_of(j.key) == drive; });
  if (call != urgent.end()) {
    job = *call;
    urgent.erase(call);
    return true;
  }
  /// The first request of this drive that is not void; those that are go.
  const auto first_of = [&](std::deque<Request>& queue) {
    std::erase_if(queue, [&](const Request& r) {
      return drive_of(r.key) == drive && (where[r.key] != no_slot || !is_fresh(r.number));
    });
    return std::find_if(queue.begin(), queue.end(),
                        [&](const Request& r) { return drive_of(r.key) == drive; });
  };
  if (const auto it = first_of(ahead); it != ahead.end()) {
    if (!has_place(drive)) {  // a guess may have to make room
      const std::size_t i = staged_slot(Origin::guess, drive);
      if (i == no_slot) return false;
      drop_staged(slots[i]);
    }
    const std::size_t i = find_empty();
    if (i == no_slot) return false;
    const Request request = *it;
    ahead.erase(it);
    slots[i].wanted = request.number;
    return take(i, request.key, Origin::ahead);
  }
  if (const auto it = first_of(guess); it != guess.end()) {
    const std::size_t i = has_place(drive) ? find_empty() : no_slot;
    if (i == no_slot) return false;
    const std::size_t key = it->key;
    guess.erase(it);
    ++counters.guesses;
    return take(i, key, Origin::guess);
  }
  while (!warm.empty()) {
    const auto it = std::find_if(warm.begin(), warm.end(),
                                 [&](std::size_t key) { return drive_of(key) == drive; });
    if (it == warm.end()) return false;
    const std::size_t key = *it;
    const std::size_t i = kept + warming < capacity ? find_empty() : no_slot;
    if (i == no_slot) {
      warm.clear();  // every place is filled by what was asked for
      return false;
    }
    warm.erase(it);
    if (where[key] != no_slot) continue;
    ++warming;
    return take(i, key, Origin::warm);
  }
  return false;
}

void ExpertCache::State::check_readers(std::size_t drive) noexcept {
  const auto now = std::chrono::steady_clock::now();
  const auto taken_back = std::erase_if(urgent, [&](const Job& job) {
    Slot& slot = slots[job.slot];
    if (drive_of(job.key) != drive || now - slot.begun < ahead_options.patience) return false;
    forsaken[drive] = 1;
    ++counters.overdue;
    empty_slot(slot);
    return true;
  });
  if (taken_back != 0) changed.notify_all();
}

void ExpertCache::State::end_job(const Job& job, bool ok, const ReadCost& cost) noexcept {
  Slot& slot = slots[job.slot];
  add(cost);
  const bool warm_read = slot.origin == Origin::warm;
  if (warm_read) --warming;
  end_read(slot, job.key, ok);
  if (slot.state == SlotState::ready) {
    if (warm_read && kept < capacity) {
      slot.kept = true;
      ++kept;
      ++counters.warmed;
    } else if (warm_read) {
      // Its place was filled meanwhile. Waiters take it as a record read ahead.
      slot.origin = Origin::ahead;
      slot.staged = true;
      ++staged;
    } else if (substitutes) {
      settle(slot);
    }
  }
  changed.notify_all();
}

void ExpertCache::State::run_reader(std::size_t drive) noexcept {
  std::unique_lock lock(mutex);
  while (!stopping) {
    Job job;
    if (!next_job(drive, job)) {
      work.wait(lock);
      continue;
    }
    Slot& slot = slots[job.slot];
    lock.unlock();
    bool ok = false;
    ReadCost cost;
    try {
      ok = !read(slot, job.key, cost);
    } catch (...) {  // no memory for the record: whoever asks for it finds out
    }
    lock.lock();
    end_job(job, ok, cost);
  }
}

/// Starts what there is room for, then ends what has arrived: the whole record is checked here,
/// while the others are still in flight.
void ExpertCache::State::run_ring(std::size_t drive, Ring& ring) noexcept {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex);
  while (!stopping) {
    Job job;
    const bool room = ring.queue.in_flight() < ring.queue.depth();
    const bool found = room && next_job(drive, job);
    ring.idle = room && !found;
    lock.unlock();

    bool no_memory = false;
    if (found) {
      const auto flight = std::find_if(ring.flights.begin(), ring.flights.end(),
                                       [](const Ring::Flight& f) { return !f.used; });
      try {
        const std::span<std::uint8_t> memory = memory_of(slots[job.slot]);
        *flight = {job, Clock::now(), true};
        const io::ExpertBank& bank = bank_of(job.key);
        ring.queue.start(static_cast<std::size_t>(flight - ring.flights.begin()), bank.file(),
                         memory, bank.offset_of(expert_of(job.key)));
      } catch (...) {
        no_memory = true;
      }
    }
    const auto done = found ? ring.queue.poll() : ring.queue.wait();
    bool ok = false;
    ReadCost cost;
    Job ended;
    if (done) {
      Ring::Flight& flight = ring.flights[done->tag];
      flight.used = false;
      ended = flight.job;
      const Slot& slot = slots[ended.slot];
      ok = !bank_of(ended.key).accept(expert_of(ended.key), slot.record.span(), done->fault,
                                      &cost.check);
      cost.ns = static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - flight.begun)
              .count());
    }

    lock.lock();
    ring.idle = false;
    if (no_memory) end_job(job, false, {});
    if (done) end_job(ended, ok, cost);
  }
}

void ExpertCache::State::make_rings(const ReadAheadOptions& options) {
  if (options.with != ReadWith::uring) return;
  if (options.readers == 0 || read_delay.count() > 0) {
    uring_refused = options.readers == 0 ? "there are no readers" : "reads are delayed one by one";
    return;
  }
  const std::size_t share = (options.depth + options.readers - 1) / options.readers;
  const auto each =
      static_cast<unsigned>(std::clamp<std::size_t>(share, 1, io::ReadQueue::most_depth));
  try {
    for (std::size_t t = 0; t < reader_threads * drives; ++t) {
      rings.push_back(std::make_unique<Ring>(each));
    }
  } catch (const Error& e) {
    rings.clear();
    uring_refused = e.what();
  }
}

void ExpertCache::State::wake_reader() noexcept {
  if (drives != 1) return wake_readers();
  work.notify_one();
  for (const auto& ring : rings) {
    if (!ring->idle) continue;
    ring->idle = false;
    return ring->queue.wake();
  }
}

void ExpertCache::State::wake_readers() noexcept {
  work.notify_all();
  for (const auto& ring : rings) {
    if (ring->idle) ring->queue.wake();
    ring->idle = false;
  }
}

void ExpertCache::State::start_readers() noexcept {
  if (started || stopping) return;
  started = true;
  for (std::size_t t = 0; t < reader_threads * drives; ++t) {
    try {
      threads.emplace_back([this, t, drive = t % drives] {
        if (rings.empty()) {
          run_reader(drive);
        } else {
          run_ring(drive, *rings[t]);
        }
      });
    } catch (...) {  // the system has no thread to give: callers read for themselves
      ++readers_refused;
    }
  }
}

void ExpertCache::State::stop_readers() noexcept {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
    wake_readers();
  }
  // A reader whose queue is full waits for its disk only.
  for (std::thread& t : threads) t.join();
  threads.clear();
  rings.clear();
}

}  // namespace waste::engine
