// Grouped-query attention over a cache of keys and values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "waste/core/aligned_buffer.hpp"
#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/core/parallel.hpp"
#include "waste/nn/norm.hpp"
#include "waste/nn/scratch.hpp"

namespace waste::nn {

/// Keys and values of one layer of one sequence, [positions][groups * dim] each, and the work
/// memory of its attention. Not thread-safe: one per layer and sequence.
class KvCache {
 public:
  KvCache() = default;
  /// Room for `capacity` positions of `groups` key heads of `dim` elements:
  /// 8 * capacity * groups * dim bytes.
  KvCache(std::size_t groups, std::size_t dim, std::size_t capacity)
      : groups_(groups),
        dim_(dim),
        capacity_(capacity),
        keys_(capacity * groups * dim, 64),
        values_(capacity * groups * dim, 64) {}

  std::size_t groups() const noexcept { return groups_; }
  std::size_t dim() const noexcept { return dim_; }
  std::size_t width() const noexcept { return groups_ * dim_; }
  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t used() const noexcept { return used_; }
  /// Keeps the first `positions`: 0 for an empty sequence.
  void truncate(std::size_t positions) noexcept { used_ = std::min(used_, positions); }

  MatrixView<const float> keys() const noexcept { return {keys_.data(), used_, width()}; }
  MatrixView<const float> values() const noexcept { return {values_.data(), used_, width()}; }

  /// k and v [tokens][groups * dim] become the next positions. Throws Error (shape), and
  /// (out_of_range) where there is no room, before anything changes.
  void append(MatrixView<const float> k, MatrixView<const float> v) {
    require_size("key cols", k.cols, width());
    require_size("value cols", v.cols, width());
    require_size("value rows", v.rows, k.rows);
    if (k.rows > capacity_ - used_) {
      throw Error(fault(Errc::out_of_range, "context", used_ + k.rows, capacity_));
    }
    for (std::size_t t = 0; t < k.rows; ++t, ++used_) {
      std::copy_n(k.row(t).data(), width(), keys_.data() + used_ * width());
      std::copy_n(v.row(t).data(), width(), values_.data() + used_ * width());
    }
  }

  WorkerPool<Scratch>& workers() noexcept { return workers_; }

 private:
  std::size_t groups_ = 0, dim_ = 0, capacity_ = 0, used_ = 0;
  AlignedBuffer<float> keys_, values_;
  WorkerPool<Scratch> workers_;
};

/// Appends k and v to the cache, then for every token t at position p and head h
///     out[t][h] = sum over s <= p of softmax_s(q[t][h] . k_s[g] / sqrt(dim)) v_s[g],
/// g = h * groups / heads: heads / groups query heads share a key head (1: plain multi-head
/// attention; groups 1: multi-query). q and out [tokens][heads * dim], k and v
/// [tokens][groups * dim], rotated already where the model rotates; out may not overlap the rest.
/// Causal, no window. The same bits for any split of a sequence into calls and any thread count.
/// Throws Error (shape), and as append. Ainslie et al., arXiv 2305.13245.
inline void gqa(MatrixView<const float> q, MatrixView<const float> k, MatrixView<const float> v,
                KvCache& cache, MatrixView<float> out, const Exec& exec = {}) {
  const std::size_t dim = cache.dim(), width = cache.width(), tokens = q.rows;
  if (width == 0 || q.cols % width != 0) throw Error(fault(Errc::shape, "q cols", q.cols, width));
  require_size("key rows", k.rows, tokens);
  require_size("output rows", out.rows, tokens);
  require_size("output cols", out.cols, q.cols);
  const std::size_t first = cache.used(), share = q.cols / width;
  cache.append(k, v);
  const kernels::StepKernels& step = *exec.table().step;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const float *keys = cache.keys().data, *values = cache.values().data;
  const std::size_t work = 2 * tokens * q.cols * (first + tokens);
  parallel_for(tokens * cache.groups(), threads_for(work, exec), [&](std::size_t task) {
    const std::size_t t = task / cache.groups(), g = task % cache.groups(), seen = first + t + 1;
    const std::size_t head = g * share * dim;
    WorkerPool<Scratch>::Loan worker(cache.workers());
    const Scratch::Frame frame(*worker);
    const auto p = worker->matrix(share, seen);
    step.attention_scores(&q(t, head), dim, share, keys + g * dim, width, dim, seen, scale, p.data,
                          seen);
    for (std::size_t i = 0; i < share; ++i) step.softmax(p.row(i).data(), seen);
    step.attention_mix(p.data, seen, share, values + g * dim, width, dim, seen, &out(t, head), dim);
  });
}

}  // namespace waste::nn
