#include "waste/model/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace waste::model {

Sampler::Sampler(const SamplerOptions& options, const Exec& exec)
    : options_(options), kernels_(exec.table().step), random_(options.seed) {
  if (!std::isfinite(options.temperature)) {
    throw Error(fault(Errc::bad_argument, "temperature"), {}, "it must be a finite number");
  }
  if (!std::isfinite(options.top_p) || options.top_p <= 0.0f) {
    throw Error(fault(Errc::bad_argument, "top_p"), {}, "it must be above 0");
  }
}

std::uint32_t Sampler::greedy(std::span<const float> logits) noexcept {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::uint32_t>(best);
}

std::uint32_t Sampler::next(std::span<const float> logits) {
  if (logits.empty()) throw Error(fault(Errc::shape, "logits", 0, 1));
  if (options_.temperature <= 0.0f) return greedy(logits);

  ids_.resize(logits.size());
  std::iota(ids_.begin(), ids_.end(), 0u);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const std::size_t kept =
      options_.top_k == 0 ? ids_.size() : std::min(options_.top_k, ids_.size());
  const bool sorted = kept < ids_.size() || options_.top_p < 1.0f;
  if (sorted) {
    std::partial_sort(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(kept), ids_.end(),
                      before);
    ids_.resize(kept);
  }
  p_.resize(kept);
  for (std::size_t i = 0; i < kept; ++i) p_[i] = logits[ids_[i]] / options_.temperature;
  kernels_->softmax(p_.data(), kept);

  double total = 0.0;
  std::size_t count = 0;
  while (count < kept && (count == 0 || options_.top_p >= 1.0f || total < options_.top_p)) {
    total += p_[count++];
  }
  double left = random_.unit() * total;
  for (std::size_t i = 0; i < count; ++i) {
    left -= p_[i];
    if (left < 0.0) return ids_[i];
  }
  return ids_[count - 1];
}

}  // namespace waste::model
