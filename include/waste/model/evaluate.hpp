// Bits per byte and perplexity of a text under a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "waste/model/kimi.hpp"

namespace waste::model {

/// What evaluate() measured. For a text of n tokens and B bytes, cut into W = (n - 1) / T whole
/// windows (integer division) of T tokens, T at most n - 1: window i starts from an empty sequence,
/// reads tokens iT .. iT+T-1 and predicts token iT+1 .. iT+T. nll_i is the sum of -ln p over its T
/// predictions.
///   mean nll       = sum of nll_i / (W T)
///   bits per byte  = mean nll / ln 2 * n / B
///   perplexity     = e^(mean nll), per token
struct Evaluation {
  std::uint64_t tokens = 0;     ///< n
  std::uint64_t bytes = 0;      ///< B
  std::uint64_t window = 0;     ///< T
  std::uint64_t windows = 0;    ///< W
  std::uint64_t predicted = 0;  ///< W * T
  double nll = 0;               ///< summed over the predictions
  double seconds = 0;

  double mean_nll() const noexcept { return nll / static_cast<double>(predicted); }
  double bits_per_byte() const noexcept;
  double perplexity() const noexcept;
};

/// Measures on `threads` threads (0: all), each running windows of its own; the result is the same
/// for every number. `bytes` is the size of the text that `tokens` encode. `progress`, where set,
/// is called with the predictions made so far, by one thread at a time. Throws Error: bad_argument
/// for fewer than two tokens, no bytes or window 0, out_of_range for a last token that is not in
/// the vocabulary, and as TextModel::forward.
Evaluation evaluate(
    const TextModel& model, std::span<const std::uint32_t> tokens, std::uint64_t bytes,
    std::size_t window, unsigned threads,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

/// -ln softmax(logits)[target], in f64; infinity for a target that has no logit.
double negative_log_likelihood(std::span<const float> logits, std::uint32_t target) noexcept;

}  // namespace waste::model
