// Which expert a full cache gives up: policies behind one interface.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace waste::engine {

/// Ranks experts by what they are worth keeping. Keys number all experts of a container, 0 ..
/// keys-1. Called under the cache's lock: implementations need none of their own, and no call may
/// throw once the policy is made.
class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  /// A token begins. Time, for policies that have one, is counted in tokens.
  virtual void begin_token() noexcept {}
  /// Expert `key` is asked for, resident or not; called before a place is sought for it.
  virtual void demand(std::size_t key) noexcept = 0;
  /// Larger is better kept. Comparable between keys at one moment only. An expert worth less than
  /// every resident one is read, used and not kept.
  virtual double worth(std::size_t key) const noexcept = 0;
};

/// Least recently used goes first; what is asked for is always kept.
class LruPolicy final : public CachePolicy {
 public:
  explicit LruPolicy(std::size_t keys) : last_(keys, 0) {}
  void demand(std::size_t key) noexcept override { last_[key] = ++now_; }
  double worth(std::size_t key) const noexcept override { return static_cast<double>(last_[key]); }

 private:
  std::vector<std::uint64_t> last_;
  std::uint64_t now_ = 0;
};

/// Decayed frequency: every demand counts 1 when it happens and half as much after each
/// `half_life` tokens. The count c of a key at time t (in half-lives) is kept as s = t + log2(c),
/// which does not change as time goes on and orders keys as their counts do.
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

enum class Policy : std::uint8_t { lru, decayed_frequency };

inline std::unique_ptr<CachePolicy> make_policy(Policy policy, std::size_t keys) {
  if (policy == Policy::lru) return std::make_unique<LruPolicy>(keys);
  return std::make_unique<DecayedFrequencyPolicy>(keys);
}

}  // namespace waste::engine
