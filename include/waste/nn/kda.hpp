// A Kimi delta attention layer over its recurrent state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "waste/core/matrix_view.hpp"
#include "waste/core/parallel.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/nn/norm.hpp"
#include "waste/nn/scratch.hpp"

namespace waste::nn {

/// C = heads * dim channels. Projections as format::required_tensors; the convolution weights are
/// [taps][C], transposed from the file's [C][1][taps].
struct KdaWeights {
  std::size_t heads = 0, dim = 0, taps = 0;
  TrunkMatrix q, k, v;             ///< [C][hidden]
  TrunkMatrix f_a, f_b;            ///< decay: [dim][hidden], [C][dim]
  TrunkMatrix b;                   ///< beta: [heads][hidden]
  std::optional<TrunkMatrix> g_a;  ///< low-rank gate: [dim][hidden]; then g is [C][dim]
  TrunkMatrix g;                   ///< gate: [C][hidden]
  TrunkMatrix o;                   ///< [hidden][C]
  std::span<const float> q_conv, k_conv, v_conv;  ///< [taps][C]
  std::span<const float> a_log;                   ///< [heads]
  std::span<const float> dt_bias;                 ///< [C]
  std::span<const float> o_norm;                  ///< [dim]
  std::optional<float> lower_bound;  ///< decay is bound * sigmoid(..) where set, else softplus
  float eps = 1e-6f;                 ///< of o_norm
  float l2_eps = 1e-6f;              ///< of the q and k normalisation
  /// Positions that share one pass over the state, 1 to kernels::kda_chunk_most. 1 is the step
  /// form, the same bits for any split of a sequence; above, results move by rounding with the
  /// split.
  std::size_t chunk = 1;

  std::size_t channels() const noexcept { return heads * dim; }
  std::size_t state_floats() const noexcept { return heads * dim * dim; }
  std::size_t ring_floats() const noexcept { return 3 * (taps - 1) * channels(); }
};

/// What one sequence carries between positions; zero before the first.
struct KdaState {
  float* s = nullptr;     ///< [heads][key][value]
  float* ring = nullptr;  ///< [q, k, v][taps - 1][C], oldest input first
};

/// out[t] = the layer's output for x[t], t = 0 .. tokens-1 in order, the state moved on by each.
/// x and out [tokens][hidden]. The same bits for any split of a sequence into calls and any thread
/// count: heads run apart, positions of a head in order. Throws Error (shape).
/// docs/kernels.md, Kimi delta attention.
inline void kda(const KdaWeights& w, const KdaState& state, MatrixView<const float> x,
                MatrixView<float> out, Scratch& scratch, const Exec& exec) {
  const std::size_t tokens = x.rows, dim = w.dim, channels = w.channels();
  for (const auto conv : {w.q_conv, w.k_conv, w.v_conv}) {
    require_size("convolution", conv.size(), w.taps * channels);
  }
  require_size("A_log", w.a_log.size(), w.heads);
  require_size("dt_bias", w.dt_bias.size(), channels);
  require_size("o_norm", w.o_norm.size(), dim);
  const Scratch::Frame frame(scratch);
  const auto q = scratch.matrix(tokens, channels), k = scratch.matrix(tokens, channels);
  const auto v = scratch.matrix(tokens, channels), g = scratch.matrix(tokens, channels);
  const auto gate = scratch.matrix(tokens, channels);
  const auto low = scratch.matrix(tokens, dim);
  const auto beta = scratch.matrix(tokens, w.heads);
  matmul(w.q, x, q, exec);
  matmul(w.k, x, k, exec);
  matmul(w.v, x, v, exec);
  matmul(w.f_a, x, low, exec);
  matmul(w.f_b, low, g, exec);
  matmul(w.b, x, beta, exec);
  if (w.g_a) {
    matmul(*w.g_a, x, low, exec);
    matmul(w.g, low, gate, exec);
  } else {
    matmul(w.g, x, gate, exec);
  }
  const kernels::StepKernels& step = *exec.table().step;
  step.sigmoid(beta.data, tokens * w.heads, beta.data);
  const std::size_t chunk = std::clamp<std::size_t>(w.chunk, 1, kernels::kda_chunk_most);
  const std::size_t work = chunk == 1 ? 3 * dim : kernels::kda_chunk_scratch(dim);
  const auto works = scratch.matrix(w.heads, work + chunk * dim);
  const std::size_t ring = (w.taps - 1) * channels;
  const unsigned threads = threads_for(tokens * 3 * w.state_floats(), exec);
  parallel_for(w.heads, threads, [&](std::size_t h) {
    const std::size_t c = h * dim;
    float* const s = state.s + h * dim * dim;
    float* const o = works.row(h).data() + work;  // [chunk][dim]
    for (std::size_t first = 0; first < tokens; first += chunk) {
      const std::size_t n = std::min(chunk, tokens - first);
      for (std::size_t t = first; t < first + n; ++t) {
        float *qt = q.row(t).data(), *kt = k.row(t).data(), *vt = v.row(t).data();
        float* const gt = g.row(t).data() + c;
        step.short_conv(w.q_conv.data(), state.ring, w.taps, channels, qt, c, c + dim, qt);
        step.short_conv(w.k_conv.data(), state.ring + ring, w.taps, channels, kt, c, c + dim, kt);
        step.short_conv(w.v_conv.data(), state.ring + 2 * ring, w.taps, channels, vt, c, c + dim,
                        vt);
        step.kda_decay(gt, w.dt_bias.data() + c, w.a_log[h], w.lower_bound.has_value(),
                       w.lower_bound.value_or(0.0f), dim, gt);
      }
      if (chunk == 1) {
        step.kda_step(s, &q(first, c), &k(first, c), &v(first, c), &g(first, c), beta(first, h),
                      w.l2_eps, dim, works.row(h).data(), o);
      } else {
        step.kda_chunk(s, &q(first, c), &k(first, c), &v(first, c), &g(first, c), channels,
                       &beta(first, h), w.heads, w.l2_eps, dim, n, works.row(h).data(), o, dim);
      }
      for (std::size_t t = 0; t < n; ++t) {
        step.gated_rms_norm(o + t * dim, w.o_norm.data(), &gate(first + t, c), dim, w.eps,
                            &q(first + t, c));
      }
    }
  });
  matmul(w.o, q, out, exec);
}

}  // namespace waste::nn
