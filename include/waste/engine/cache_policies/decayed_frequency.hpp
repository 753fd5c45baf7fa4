// Decayed frequency with admission control: demands count less as tokens go by.
#pragma once

#include <cmath>
#include <vector>

#include "waste/engine/cache_policy.hpp"

namespace waste::engine {

/// Every demand counts 1 when it happens and half as much after each `half_life` tokens. The count
/// c of a key at time t (in half-lives) is kept as s = t + log2(c), which does not change as time
/// goes on and orders keys as their counts do. An expert that was just asked for may be worth less
/// than every resident one, and is then not kept: that is what holds something in a cache smaller
/// than a working set.
class DecayedFrequencyPolicy final : public CachePolicy {
 public:
  explicit DecayedFrequencyPolicy(std::size_t keys, double half_life = 8.0)
      : score_(keys, never), step_(1.0 / half_life) {}
  void begin_token() noexcept override { now_ += step_; }
  void demand(std::size_t key) noexcept override {
    score_[key] = now_ + std::log2(1.0 + std::exp2(score_[key] - now_));
  }
  double worth(std::size_t key) const noexcept override { return score_[key]; }

 private:
  static constexpr double never = -1e300;
  std::vector<double> score_;
  double now_ = 0.0, step_;
};

}  // namespace waste::engine
