// The gated feed-forward block: down(act(gate x, up x)).
#pragma once

#include <cstddef>
#include <optional>

#include "waste/format/model_config.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/nn/norm.hpp"
#include "waste/nn/scratch.hpp"

namespace waste::nn {

/// The pair activation of a model: silu(g) u, or SiTU,
/// beta tanh(g/beta) sigmoid(g) (lb > 0 ? lb tanh(u/lb) : u).
struct PairActivation {
  format::Activation kind = format::Activation::silu;
  float beta = 1.0f;
  float linear_beta = 0.0f;

  static PairActivation of(const format::ModelConfig& config) noexcept {
    return {config.hidden_act, config.situ_beta, config.situ_linear_beta.value_or(0.0f)};
  }
  /// out_i = act(g_i, u_i), i < n; out may be g or u.
  void operator()(const kernels::StepKernels& k, const float* g, const float* u, std::size_t n,
                  float* out) const noexcept {
    if (kind == format::Activation::silu) {
      k.silu_pair(g, u, n, out);
    } else {
      k.situ_pair(g, u, n, beta, linear_beta, out);
    }
  }
};

/// gate and up [inter][in], down [out][inter].
struct FfnWeights {
  TrunkMatrix gate, up, down;
};

/// out[t] = down act(gate x[t], up x[t]). x [tokens][in], out [tokens][out], not overlapping.
/// `look` is called with the inputs of down, [tokens][inter]. Weights: FfnWeights or ExpertView.
/// Throws Error (shape).
template <class Weights, class Look>
void ffn(const Weights& w, const PairActivation& act, MatrixView<const float> x,
         MatrixView<float> out, Scratch& scratch, const Exec& exec, const Look& look) {
  const Scratch::Frame frame(scratch);
  const auto g = scratch.matrix(x.rows, w.gate.rows());
  const auto u = scratch.matrix(x.rows, w.up.rows());
  require_size("up rows", u.cols, g.cols);
  matmul(w.gate, x, g, exec);
  matmul(w.up, x, u, exec);
  const kernels::StepKernels& k = *exec.table().step;
  // Eight multiply-adds stand for one activation.
  parallel_for(x.rows, threads_for(8 * g.rows * g.cols, exec), [&](std::size_t t) {
    act(k, g.row(t).data(), u.row(t).data(), g.cols, g.row(t).data());
  });
  look(MatrixView<const float>(g));
  matmul(w.down, g, out, exec);
}
inline void ffn(const FfnWeights& w, const PairActivation& act, MatrixView<const float> x,
                MatrixView<float> out, Scratch& scratch, const Exec& exec) {
  ffn(w, act, x, out, scratch, exec, [](const MatrixView<const float>&) {});
}

}  // namespace waste::nn
