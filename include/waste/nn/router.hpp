// Which experts a token meets, and with what weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/nn/norm.hpp"

namespace waste::nn {

/// What a router's logits become before the choice: each its sigmoid (Kimi-Linear, K3,
/// DeepSeek-V3), or all together their softmax (OLMoE, Qwen, Mixtral, DeepSeek-V2).
enum class RouterScore : std::uint8_t { sigmoid, softmax };

struct RouterSpec {
  std::size_t top_k = 1;
  bool renormalize = true;
  float scaling = 1.0f;
  RouterScore score = RouterScore::sigmoid;
};

/// For one token, of its router logits [experts]:
///   score = sigmoid(logit) or softmax(logits); the top_k largest score + bias, largest first, the
///   lower index at a tie; weight = score (without bias), divided by (sum of the chosen + 1e-20)
///   where renormalize and top_k > 1, times scaling.
/// `logits` is overwritten by the scores; an empty bias is none. ids and weights have top_k
/// elements. Throws Error (shape, out_of_range where top_k exceeds the experts). Shazeer et al.,
/// arXiv 1701.06538; the bias: DeepSeek-V3, arXiv 2412.19437.
inline void route(std::span<float> logits, std::span<const float> bias, const RouterSpec& spec,
                  std::span<std::uint32_t> ids, std::span<float> weights, const Exec& exec) {
  const std::size_t experts = logits.size(), top_k = spec.top_k;
  if (!bias.empty()) require_size("router bias", bias.size(), experts);
  require_size("router ids", ids.size(), top_k);
  require_size("router weights", weights.size(), top_k);
  if (top_k == 0 || top_k > experts) {
    throw Error(fault(Errc::out_of_range, "num_experts_per_token", top_k, experts));
  }
  const kernels::StepKernels& step = *exec.table().step;
  if (spec.score == RouterScore::softmax) {
    step.softmax(logits.data(), experts);
  } else {
    step.sigmoid(logits.data(), experts, logits.data());
  }
  // `weights` holds the choice values of the best so far, in order; most experts fail one test.
  std::size_t held = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    const float choice = bias.empty() ? logits[e] : logits[e] + bias[e];
    if (held == top_k && !(choice > weights[top_k - 1])) continue;
    std::size_t at = held < top_k ? held++ : top_k - 1;
    for (; at > 0 && choice > weights[at - 1]; --at) {
      weights[at] = weights[at - 1];
      ids[at] = ids[at - 1];
    }
    weights[at] = choice;
    ids[at] = static_cast<std::uint32_t>(e);
  }
  float total = 0.0f;
  for (std::size_t j = 0; j < top_k; ++j) {
    weights[j] = logits[ids[j]];
    total += weights[j];
  }
  const bool divide = spec.renormalize && top_k > 1;
  for (std::size_t j = 0; j < top_k; ++j) {
    if (divide) weights[j] /= total + 1e-20f;
    weights[j] *= spec.scaling;
  }
}

}  // namespace waste::nn
