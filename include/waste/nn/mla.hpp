// A multi-head latent attention layer, absorbed: queries meet the compressed cache itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>

#include "waste/core/matrix_view.hpp"
#include "waste/core/parallel.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/nn/norm.hpp"
#include "waste/nn/scratch.hpp"

namespace waste::nn {

/// Shapes as format::required_tensors has them; qd = nope + rope.
struct MlaWeights {
  std::size_t heads = 0, nope = 0, rope = 0, v_dim = 0, rank = 0;
  std::optional<TrunkMatrix> q_a;    ///< [q_lora][hidden]; then q is [heads * qd][q_lora]
  std::span<const float> q_a_norm;   ///< [q_lora] with q_a
  TrunkMatrix q;                     ///< [heads * qd][hidden] without q_a
  TrunkMatrix kv_a;                  ///< [rank + rope][hidden]
  std::span<const float> kv_a_norm;  ///< [rank]
  TrunkMatrix kv_b;                  ///< [heads * (nope + v_dim)][rank], per head nope, then v rows
  std::optional<TrunkMatrix> g;      ///< output gate: [heads * v_dim][hidden]
  TrunkMatrix o;                     ///< [hidden][heads * v_dim]
  float eps_a = 1e-6f;               ///< of q_a_norm and kv_a_norm

  std::size_t qd() const noexcept { return nope + rope; }
  std::size_t cache_width() const noexcept { return rank + rope; }
};

/// The latent cache of one sequence: rows [normed c | kr] of cache_width() floats, room for
/// `capacity` positions, the first `used` of them filled.
struct MlaCache {
  float* rows = nullptr;
  std::size_t capacity = 0;
  std::size_t used = 0;
};

namespace detail {

/// qt[t][:] = sum over i < nope of q[t][i] W[i][:], i ascending, each product fused: `w` holds one
/// head's nope rows. q rows are ldq apart, qt rows ldt.
inline void absorb(const TrunkMatrix& w, const float* q, std::size_t ldq, std::size_t tokens,
                   float* qt, std::size_t ldt, Scratch& scratch,
                   const kernels::KernelTable& table) {
  constexpr std::size_t block = 16;  // rows decoded at a time
  const Scratch::Frame frame(scratch);
  const std::size_t rank = w.cols();
  const auto decoded = scratch.matrix(block, rank);
  const float* rows[block + 1];
  float p[block + 1];
  for (std::size_t first = 0; first < w.rows(); first += block) {
    const std::size_t n = std::min(block, w.rows() - first);
    for (std::size_t i = 0; i < n; ++i) {
      table.matrix->trunk_row(w, first + i, decoded.row(i).data());
      rows[i + 1] = decoded.row(i).data();
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      float* const to = qt + t * ldt;
      rows[0] = to;  // what earlier blocks summed
      p[0] = 1.0f;
      for (std::size_t i = 0; i < n; ++i) p[i + 1] = q[t * ldq + first + i];
      const std::size_t skip = first == 0 ? 1 : 0;
      table.step->mix_rows(rows + skip, p + skip, n + 1 - skip, rank, to);
    }
  }
}

}  // namespace detail

/// out[t] = the layer's output for x[t] at position cache.used + t, which sees positions
/// 0 .. cache.used + t; cache rows are appended and cache.used moved on. x and out
/// [tokens][hidden]. The same bits for any split of a sequence into calls and any thread count.
/// Throws Error (shape), and (out_of_range) where the cache has no room, before anything is
/// written. docs/kernels.md, latent attention; no rotary.
inline void mla(const MlaWeights& w, MlaCache& cache, MatrixView<const float> x,
                MatrixView<float> out, Scratch& scratch, WorkerPool<Scratch>& workers,
                const Exec& exec) {
  const std::size_t tokens = x.rows, heads = w.heads, rank = w.rank, width = w.cache_width();
  const std::size_t first = cache.used;
  if (tokens > cache.capacity - first) {
    throw Error(fault(Errc::out_of_range, "context", first + tokens, cache.capacity));
  }
  require_size("kv_b_proj", w.kv_b.rows(), heads * (w.nope + w.v_dim));
  const kernels::KernelTable& table = exec.table();
  const kernels::StepKernels& step = *table.step;
  const Scratch::Frame frame(scratch);

  const auto q = scratch.matrix(tokens, heads * w.qd());
  if (w.q_a) {
    const auto low = scratch.matrix(tokens, w.q_a->rows());
    matmul(*w.q_a, x, low, exec);
    rms_norm(low, w.q_a_norm, w.eps_a, low, exec);
    matmul(w.q, low, q, exec);
  } else {
    matmul(w.q, x, q, exec);
  }
  const MatrixView<float> rows(cache.rows + first * width, tokens, width);
  matmul(w.kv_a, x, rows, exec);
  const MatrixView<float> latent(rows.data, tokens, rank, width);
  rms_norm(latent, w.kv_a_norm, w.eps_a, latent, exec);
  if (exec.look != nullptr) (*exec.look)(w.kv_b, latent);  // absorbed, but these are its inputs

  // Queries in the space of the cache, [q_nope absorbed | q_rope].
  const auto qt = scratch.matrix(tokens, heads * width);
  parallel_for(heads, threads_for(tokens * heads * w.nope * rank, exec), [&](std::size_t h) {
    WorkerPool<Scratch>::Loan worker(workers);
    const TrunkMatrix keys = rows_of(w.kv_b, h * (w.nope + w.v_dim), w.nope);
    detail::absorb(keys, q.data + h * w.qd(), q.stride, tokens, qt.data + h * width, qt.stride,
                   *worker, table);
    for (std::size_t t = 0; t < tokens; ++t) {
      std::copy_n(&q(t, h * w.qd() + w.nope), w.rope, &qt(t, h * width + rank));
    }
  });

  const auto mixed = scratch.matrix(tokens, heads * rank);
  constexpr std::size_t together = 4;  // heads of one task: they share the reads of the cache
  const std::size_t groups = ceil_div(heads, together);
  const float scale = 1.0f / std::sqrt(static_cast<float>(w.qd()));
  const std::size_t work = tokens * heads * (first + tokens) * 2 * width;
  parallel_for(tokens * groups, threads_for(work, exec), [&](std::size_t task) {
    const std::size_t t = task / groups, h = task % groups * together;
    const std::size_t n = std::min(together, heads - h), seen = first + t + 1;
    WorkerPool<Scratch>::Loan worker(workers);
    const Scratch::Frame inner(*worker);
    const auto p = worker->matrix(n, seen);
    step.attention_scores(&qt(t, h * width), width, n, cache.rows, width, width, seen, scale,
                          p.data, seen);
    for (std::size_t i = 0; i < n; ++i) step.softmax(p.row(i).data(), seen);
    step.attention_mix(p.data, seen, n, cache.rows, width, rank, seen, &mixed(t, h * rank), rank);
  });

  const auto o = scratch.matrix(tokens, heads * w.v_dim);
  parallel_for(heads, threads_for(tokens * heads * w.v_dim * rank, exec), [&](std::size_t h) {
    const TrunkMatrix values = rows_of(w.kv_b, h * (w.nope + w.v_dim) + w.nope, w.v_dim);
    table.matrix->trunk_matmul(values, mixed.data + h * rank, mixed.stride, tokens,
                               o.data + h * w.v_dim, o.stride, 0, w.v_dim);
  });
  if (w.g) {
    const auto gate = scratch.matrix(tokens, heads * w.v_dim);
    matmul(*w.g, x, gate, exec);
    step.gate(o.data, gate.data, tokens * heads * w.v_dim, o.data);
  }
  matmul(w.o, o, out, exec);
  cache.used = first + tokens;
}

}  // namespace waste::nn
