// Attention residuals: the input of a sublayer as a softmax mixture of stored blocks and live sum.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "waste/core/matrix_view.hpp"
#include "waste/nn/norm.hpp"
#include "waste/nn/scratch.hpp"

namespace waste::nn {

/// norm_proj[j] = norm.weight[j] * proj.weight[j]: the score needs only their product.
struct AttnResWeights {
  std::span<const float> norm_proj;
  float eps = 1e-6f;
};

/// For every token t, v = [blocks[0][t], .., live[t]]:
///   s_i = sum over j of norm_proj[j] v_ij / sqrt(mean(v_i^2) + eps);  out[t] = sum softmax(s)_i
///   v_i
/// (no 1/sqrt(d); raw v is mixed). All matrices [tokens][hidden]; out may be live. Throws Error
/// (shape). docs/kernels.md, residual attention.
inline void attention_residual(const AttnResWeights& w, MatrixView<const float> live,
                               std::span<const MatrixView<float>> blocks, MatrixView<float> out,
                               Scratch& scratch, const Exec& exec) {
  const std::size_t n = live.cols, count = blocks.size() + 1;
  require_size("residual projection", w.norm_proj.size(), n);
  require_size("residual output", out.cols, n);
  require_size("residual tokens", out.rows, live.rows);
  const Scratch::Frame frame(scratch);
  const auto scores = scratch.matrix(live.rows, count);
  std::vector<const float*> rows(live.rows * count);
  for (std::size_t t = 0; t < live.rows; ++t) {
    for (std::size_t b = 0; b < blocks.size(); ++b) rows[t * count + b] = blocks[b].row(t).data();
    rows[t * count + blocks.size()] = live.row(t).data();
  }
  const kernels::StepKernels& k = *exec.table().step;
  parallel_for(live.rows, threads_for(2 * live.rows * count * n, exec), [&](std::size_t t) {
    float* const p = scores.row(t).data();
    const float* const* v = &rows[t * count];
    for (std::size_t i = 0; i < count; ++i) p[i] = k.rms_dot(v[i], w.norm_proj.data(), n, w.eps);
    k.softmax(p, count);
    k.mix_rows(v, p, count, n, out.row(t).data());
  });
}

}  // namespace waste::nn
