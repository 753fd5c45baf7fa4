// Fitted score: the probability that an expert is used the next time its layer comes round.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "waste/engine/cache_policy.hpp"

namespace waste::engine {

/// What the score of a key is made of. With r_h the key's demands per token, averaged with a
/// half-life of h tokens, b the share of a layer's experts that a token uses, and all logarithms
/// natural:
///   0..3  log(r_h / b + 1/32), h = 1, 4, 16, 64
///   4     1 / (1 + tokens since the last demand)
///   5     log(overall rate / b + 1/32)
///   6     log(q / b + 1/32)
///   7     q, the vote of the past tokens that resemble this one
///   8     1
/// Tokens are counted at the visits of the key's own layer.
inline constexpr std::size_t score_features = 9;
using ScoreFeatures = std::array<float, score_features>;

/// Weights of a logistic model of the next use; log(b / (1 - b)) is added to the sum.
struct ScoreWeights {
  ScoreFeatures this_pass{};  ///< for layers that the running token has yet to reach
  ScoreFeatures next_pass{};  ///< for layers that it has passed
  float distance = 0.15f;     ///< taken off the probability of a use a whole token away
  /// The vote: a past token's weight is exp(sharpness * (s + carry * s1) - age_cost * its age in
  /// tokens), where s is the number of experts that it shares with the running token so far and s1
  /// of those that the tokens before the two share, both over the number that a token chooses.
  float sharpness = 25.0f, carry = 0.3f, age_cost = 0.01f;
  static const ScoreWeights& usual() noexcept;
};

/// The vote: the last `history` tokens' choices are kept, and weighed by how much they resemble the
/// running token. Layers to come are voted on by what those tokens chose there, layers passed by
/// what the tokens after them chose. Text repeats itself, and so does its routing.
///
/// Costs at a demand `history` comparisons of top_k numbers; at a victim's choice, once a layer for
/// each resident, about 50 operations. Memory: 40 bytes a key and history * top_k * layers * 2.
class FittedScorePolicy final : public CachePolicy {
 public:
  static constexpr std::size_t history = 256;
  static constexpr std::size_t widest = 32;  ///< passes with more experts in a layer cast no vote
  explicit FittedScorePolicy(std::size_t keys, const ScoreWeights& weights = ScoreWeights::usual());

  void set_layers(std::span<const std::size_t> first_keys) override;
  void begin_token() noexcept override { ++token_; }
  void demand(std::size_t key) noexcept override;
  double worth(std::size_t key) const noexcept override;

  /// The features of `key` now; whether its layer is yet to come in this pass.
  bool features(std::size_t key, ScoreFeatures& out) const noexcept;
  /// b of the class comment of ScoreWeights, as seen so far.
  float base_rate() const noexcept;

 private:
  static constexpr std::array<float, 4> half_lives = {1, 4, 16, 64};
  struct KeyState {
    std::array<float, 4> rate{};
    std::uint32_t hits = 0;
    std::uint64_t seen = 0;   ///< token of the last demand
    std::uint64_t visit = 0;  ///< number of the visit of the last demand; 0: never
  };
  struct Layer {
    std::size_t first = 0, keys = 0;
    std::uint64_t token = 0;  ///< of the last visit
    std::uint64_t visits = 0;
    std::uint64_t stamps[2] = {0, 0};  ///< of its votes
  };

  void begin_visit(std::size_t layer) noexcept;
  void begin_pass() noexcept;
  void weigh() const noexcept;
  float vote(std::size_t layer, std::size_t key, bool coming) const noexcept;
  std::uint16_t* choices(std::size_t pass, std::size_t layer) noexcept {
    return choices_.data() + (pass % history * layers_.size() + layer) * widest;
  }
  const std::uint16_t* choices(std::size_t pass, std::size_t layer) const noexcept {
    return choices_.data() + (pass % history * layers_.size() + layer) * widest;
  }
  std::uint8_t& count(std::size_t pass, std::size_t layer) noexcept {
    return counts_[pass % history * layers_.size() + layer];
  }
  std::uint8_t count(std::size_t pass, std::size_t layer) const noexcept {
    return counts_[pass % history * layers_.size() + layer];
  }

  ScoreWeights weights_;
  std::size_t keys_;
  std::vector<KeyState> state_;
  std::vector<std::uint32_t> layer_of_;
  mutable std::vector<Layer> layers_;
  std::uint64_t token_ = 0, pass_ = 0, visit_ = 0, demands_ = 0;
  std::uint64_t pass_token_ = 0;
  std::size_t here_ = 0;  ///< layer of the running visit

  std::vector<std::uint16_t> choices_;   ///< [history][layers][widest], experts of past passes
  std::vector<std::uint8_t> counts_;     ///< [history][layers]; 255: too many to keep
  std::vector<float> shared_, carried_;  ///< [history] experts shared: this pass, the one before
  struct Voter {
    std::uint64_t pass;
    float weight;
  };
  mutable std::vector<Voter> voters_;
  mutable std::uint64_t voters_stamp_ = 0;
  mutable std::vector<float> votes_[2];  ///< [keys], by passes' own and by following choices
  mutable std::vector<double> worth_;
  mutable std::vector<std::uint64_t> worth_stamp_;
};

}  // namespace waste::engine
