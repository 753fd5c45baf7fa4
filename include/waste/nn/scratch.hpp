// Temporary arrays of a forward pass: taken one after another, given back all at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/core/checked.hpp"
#include "waste/core/matrix_view.hpp"

namespace waste::nn {

/// A stack of f32 arrays, each 64-byte aligned. Memory grows to what the deepest pass needed and
/// is then reused. Not thread-safe: one per session, and one per worker (see WorkerPool).
class Scratch {
 public:
  /// Everything taken while a Frame lives is given back when it ends. Frames nest.
  class Frame {
   public:
    explicit Frame(Scratch& scratch) noexcept
        : scratch_(scratch), block_(scratch.block_), used_(scratch.used_) {}
    ~Frame() {
      scratch_.block_ = block_;
      scratch_.used_ = used_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    std::size_t block_, used_;
  };

  /// n floats of unspecified content. Throws std::bad_alloc.
  float* take(std::size_t n) {
    n = round_up<std::size_t>(std::max<std::size_t>(n, 1), 16);
    while (block_ < blocks_.size() && used_ + n > blocks_[block_].size()) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) {
      const std::size_t last = blocks_.empty() ? 8192 : 2 * blocks_.back().size();
      blocks_.emplace_back(std::max(n, last), 64);
      used_ = 0;
    }
    float* out = blocks_[block_].data() + used_;
    used_ += n;
    return out;
  }
  /// A [rows][cols] array; its rows are cols apart.
  MatrixView<float> matrix(std::size_t rows, std::size_t cols) {
    return {take(rows * cols), rows, cols};
  }
  std::size_t bytes() const noexcept {
    std::size_t n = 0;
    for (const auto& b : blocks_) n += b.size() * sizeof(float);
    return n;
  }

 private:
  std::vector<AlignedBuffer<float>> blocks_;
  std::size_t block_ = 0, used_ = 0;
};

/// Worker contexts for tasks of a parallel_for: a task borrows one and returns it, so there are
/// never more of them than tasks that ran at once. Thread-safe.
template <class Worker>
class WorkerPool {
 public:
  /// Holds a Worker until the end of its scope.
  class Loan {
   public:
    explicit Loan(WorkerPool& pool) : pool_(pool), worker_(pool.borrow()) {}
    ~Loan() { pool_.give_back(std::move(worker_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Worker& operator*() noexcept { return *worker_; }
    Worker* operator->() noexcept { return worker_.get(); }

   private:
    WorkerPool& pool_;
    std::unique_ptr<Worker> worker_;
  };

 private:
  struct State {
    std::mutex mutex;
    std::vector<std::unique_ptr<Worker>> idle;
    std::size_t made = 0;
  };
  std::unique_ptr<Worker> borrow() {
    {
      const std::lock_guard lock(state_->mutex);
      if (!state_->idle.empty()) {
        auto worker = std::move(state_->idle.back());
        state_->idle.pop_back();
        return worker;
      }
      state_->idle.reserve(++state_->made);  // so that giving back cannot fail
    }
    return std::make_unique<Worker>();
  }
  void give_back(std::unique_ptr<Worker> worker) noexcept {
    const std::lock_guard lock(state_->mutex);
    state_->idle.push_back(std::move(worker));
  }

  std::unique_ptr<State> state_ = std::make_unique<State>();
};

}  // namespace waste::nn
