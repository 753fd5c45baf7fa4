#include "waste/core/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#if defined(WASTE_STD_THREADS)
#include <thread>
#include <vector>
#endif

namespace waste {
namespace {

thread_local bool inside_task = false;

class FirstException {
 public:
  template <class F>
  void guard(F&& f) noexcept {
    try {
      f();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!first_) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
};

}  // namespace

unsigned available_threads() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1u, static_cast<unsigned>(CPU_COUNT(&set)));
}

namespace detail {

void run_tasks(std::size_t count, unsigned threads, void (*task)(void*, std::size_t),
               void* context) {
  if (threads == 0) threads = available_threads();
  threads = static_cast<unsigned>(std::min<std::size_t>(threads, count));
  if (threads <= 1 || inside_task) {
    for (std::size_t i = 0; i < count; ++i) task(context, i);
    return;
  }
  FirstException exception;
  const auto one = [&](std::size_t i) {
    const bool before = inside_task;
    inside_task = true;
    exception.guard([&] { task(context, i); });
    inside_task = before;
  };
#if defined(WASTE_STD_THREADS)
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < count;) one(i);
  };
  std::vector<std::thread> pool;
  pool.reserve(threads - 1);
  for (unsigned t = 1; t < threads; ++t) pool.emplace_back(work);
  work();
  for (auto& t : pool) t.join();
#else
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (std::size_t i = 0; i < count; ++i) one(i);
#endif
  exception.rethrow();
}

}  // namespace detail
}  // namespace waste
