// Chooses the next token from logits: greedy, or temperature, top-k and top-p with a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "waste/nn/matvec.hpp"
#include "waste/quant/random.hpp"

namespace waste::model {

struct SamplerOptions {
  float temperature = 0.0f;  ///< at most 0: the largest logit, the lowest id at a tie
  std::size_t top_k = 0;     ///< keep the k largest (ties: lower ids first); 0: all
  float top_p = 1.0f;        ///< keep the fewest that reach this probability, at least one
  std::uint64_t seed = 0;
};

/// One random draw a token from a generator of its own: the same logits and seed give the same
/// tokens on every machine.
class Sampler {
 public:
  /// Throws Error(bad_argument) for a temperature or top_p that is not finite, or top_p <= 0.
  explicit Sampler(const SamplerOptions& options, const Exec& exec = {});

  /// The next token. p = softmax(logits / temperature) over the top_k largest, then over the
  /// fewest of those, largest first, whose probabilities reach top_p. Throws Error(shape) for no
  /// logits.
  std::uint32_t next(std::span<const float> logits);

  /// The index of the first largest element; 0 where there is none.
  static std::uint32_t greedy(std::span<const float> logits) noexcept;

 private:
  SamplerOptions options_;
  const kernels::StepKernels* kernels_;
  quant::Random random_;
  std::vector<std::uint32_t> ids_;
  std::vector<float> p_;
};

}  // namespace waste::model
