// Run independent tasks on a bounded number of threads.
#pragma once

#include <cstddef>
#include <type_traits>

namespace waste {

namespace detail {
/// Calls `task(context, i)` once for every i in [0, count), on at most `threads` threads, and
/// returns when all have returned. The first exception thrown by a task is rethrown here after
/// the others finished. Compiled part: OpenMP, or std::thread where built with -Dthreads=std.
void run_tasks(std::size_t count, unsigned threads, void (*task)(void*, std::size_t),
               void* context);
}  // namespace detail

/// The number of threads this process may use (its affinity mask), at least 1.
unsigned available_threads() noexcept;

/// Whether so many tasks of one length, each done by one thread, leave more than a tenth of the
/// threads' time unused: five tasks on four threads do, eight do not. `threads` is not 0.
constexpr bool shares_badly(std::size_t tasks, unsigned threads) noexcept {
  const std::size_t rounds = (tasks + threads - 1) / threads;
  return 10 * rounds * threads > 11 * tasks;
}

/// Calls `body(i)` once for every i in [0, count). Which thread runs which i is not specified, so
/// tasks must write to disjoint places and must not depend on each other; then the result is the
/// same for every `threads`. threads 0 means available_threads(). Nested calls run serially.
template <class Body>
void parallel_for(std::size_t count, unsigned threads, Body&& body) {
  if (count == 0) return;
  if (threads == 1 || count == 1) {
    for (std::size_t i = 0; i < count; ++i) body(i);
    return;
  }
  using Plain = std::remove_reference_t<Body>;
  detail::run_tasks(
      count, threads, [](void* context, std::size_t i) { (*static_cast<Plain*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace waste
