#include "waste/engine/cache_policies/fitted_score.hpp"

#include <algorithm>
#include <cmath>

namespace waste::engine {
namespace {

constexpr std::uint8_t too_many = 255;
constexpr float least_share = 1.0f / 32.0f;
constexpr float least_vote = 1e-3f;

/// 2^(-tokens / half_life).
float kept(std::uint64_t tokens, float half_life) noexcept {
  return std::exp2(-static_cast<float>(tokens) / half_life);
}

}  // namespace

const ScoreWeights& ScoreWeights::usual() noexcept {
  // Fitted to the first 200 tokens of one Kimi-Linear and one OLMoE trace together.
  static constexpr ScoreWeights weights = {
      {0.030f, 0.039f, -0.230f, 0.038f, 0.397f, 0.330f, 0.532f, 2.267f, -0.095f},
      {0.038f, -0.042f, 0.035f, 0.001f, 0.923f, 0.429f, 0.307f, 1.512f, -0.087f}};
  return weights;
}

FittedScorePolicy::FittedScorePolicy(std::size_t keys, const ScoreWeights& weights)
    : weights_(weights), keys_(keys), state_(keys), worth_(keys), worth_stamp_(keys, 0) {
  for (auto& votes : votes_) votes.resize(keys);
  const std::size_t first = 0;
  set_layers({&first, 1});
}

void FittedScorePolicy::set_layers(std::span<const std::size_t> first_keys) {
  layers_.assign(std::max<std::size_t>(first_keys.size(), 1), {});
  layer_of_.assign(keys_, 0);
  for (std::size_t l = 0; l < first_keys.size(); ++l) {
    const std::size_t end = l + 1 < first_keys.size() ? first_keys[l + 1] : keys_;
    layers_[l].first = first_keys[l];
    layers_[l].keys = end - first_keys[l];
    for (std::size_t k = first_keys[l]; k < end; ++k) {
      layer_of_[k] = static_cast<std::uint32_t>(l);
    }
  }
  choices_.assign(history * layers_.size() * widest, 0);
  counts_.assign(history * layers_.size(), 0);
  shared_.assign(history, 0);
  carried_.assign(history, 0);
  voters_.reserve(history);
}

float FittedScorePolicy::base_rate() const noexcept {
  const double visits = static_cast<double>(std::max<std::uint64_t>(visit_, 1));
  const double keys = static_cast<double>(std::max<std::size_t>(keys_ / layers_.size(), 1));
  const double b = static_cast<double>(std::max<std::uint64_t>(demands_, 1)) / visits / keys;
  return static_cast<float>(std::clamp(b, 1e-4, 0.5));
}

void FittedScorePolicy::begin_pass() noexcept {
  ++pass_;
  pass_token_ = token_;
  // What pass p shared with the pass that ended is carried to p + 1, the one that followed it.
  for (std::size_t i = 0; i < history; ++i) carried_[(i + 1) % history] = shared_[i];
  std::fill(shared_.begin(), shared_.end(), 0.0f);
  for (std::size_t l = 0; l < layers_.size(); ++l) count(pass_, l) = 0;
}

void FittedScorePolicy::begin_visit(std::size_t layer) noexcept {
  if (visit_ == 0 || layer <= here_ || token_ != pass_token_) begin_pass();
  ++visit_;
  here_ = layer;
  Layer& l = layers_[layer];
  l.token = token_;
  ++l.visits;
}

void FittedScorePolicy::demand(std::size_t key) noexcept {
  const std::size_t layer = layer_of_[key];
  if (visit_ == 0 || layer != here_ || token_ != layers_[layer].token) begin_visit(layer);
  KeyState& s = state_[key];
  if (s.visit == visit_) return;  // asked for again by another caller of the same pass
  ++demands_;
  const std::uint64_t since = token_ - s.seen;
  for (std::size_t i = 0; i < half_lives.size(); ++i) {
    const float one = kept(1, half_lives[i]);
    s.rate[i] = s.rate[i] * kept(since, half_lives[i]) + (1.0f - one);
  }
  ++s.hits;
  s.seen = token_;
  s.visit = visit_;
  worth_stamp_[key] = 0;

  const auto expert = static_cast<std::uint16_t>(key - layers_[layer].first);
  const std::uint64_t oldest = pass_ > history - 1 ? pass_ - (history - 1) : 1;
  for (std::uint64_t p = oldest; p < pass_; ++p) {
    const std::uint8_t n = count(p, layer);
    if (n == too_many) continue;
    const std::uint16_t* c = choices(p, layer);
    shared_[p % history] += std::find(c, c + n, expert) != c + n ? 1.0f : 0.0f;
  }
  std::uint8_t& n = count(pass_, layer);
  if (n < widest) {
    choices(pass_, layer)[n++] = expert;
  } else {
    n = too_many;
  }
}

void FittedScorePolicy::weigh() const noexcept {
  voters_.clear();
  voters_stamp_ = visit_;
  const std::uint64_t oldest = pass_ > history - 1 ? pass_ - (history - 1) : 1;
  const float choices_of_token = static_cast<float>(demands_) / static_cast<float>(visit_) *
                                 static_cast<float>(layers_.size());
  const float sharpness = weights_.sharpness / choices_of_token;
  float most = -1e30f;
  for (std::uint64_t p = oldest; p < pass_; ++p) {
    const std::size_t i = p % history;
    const float like = sharpness * (shared_[i] + weights_.carry * carried_[i]) -
                       weights_.age_cost * static_cast<float>(pass_ - p);
    voters_.push_back({p, like});
    most = std::max(most, like);
  }
  float sum = 0;
  for (Voter& v : voters_) {
    v.weight = std::exp(v.weight - most);
    sum += v.weight;
  }
  std::erase_if(voters_, [&](Voter& v) {
    v.weight /= sum;
    return v.weight < least_vote;
  });
}

float FittedScorePolicy::vote(std::size_t layer, std::size_t key, bool coming) const noexcept {
  if (voters_stamp_ != visit_) weigh();
  Layer& l = layers_[layer];
  std::vector<float>& votes = votes_[coming ? 0 : 1];
  if (l.stamps[coming ? 0 : 1] != visit_) {
    l.stamps[coming ? 0 : 1] = visit_;
    const auto first = votes.begin() + static_cast<std::ptrdiff_t>(l.first);
    std::fill(first, first + static_cast<std::ptrdiff_t>(l.keys), 0.0f);
    for (const Voter& v : voters_) {
      const std::uint64_t p = coming ? v.pass : v.pass + 1;
      const std::uint8_t n = count(p, layer);
      if (n == too_many) continue;
      const std::uint16_t* c = choices(p, layer);
      for (std::uint8_t i = 0; i < n; ++i) votes[l.first + c[i]] += v.weight;
    }
  }
  return votes[key];
}

bool FittedScorePolicy::features(std::size_t key, ScoreFeatures& out) const noexcept {
  const std::size_t layer = layer_of_[key];
  const Layer& l = layers_[layer];
  const KeyState& s = state_[key];
  const bool coming = layer > here_;
  const std::uint64_t now = l.token;
  const float over = 1.0f / base_rate();
  const std::uint64_t age = now > s.seen ? now - s.seen : 0;
  for (std::size_t i = 0; i < half_lives.size(); ++i) {
    out[i] = std::log(s.rate[i] * kept(age, half_lives[i]) * over + least_share);
  }
  out[4] = s.hits == 0 ? 0.0f : 1.0f / static_cast<float>(1 + age);
  const float visits = static_cast<float>(l.visits) + over;
  out[5] = std::log((static_cast<float>(s.hits) + 1.0f) / visits * over + least_share);
  const float q = vote(layer, key, coming);
  out[6] = std::log(q * over + least_share);
  out[7] = q;
  out[8] = 1.0f;
  return coming;
}

double FittedScorePolicy::worth(std::size_t key) const noexcept {
  if (visit_ == 0) return 0.0;
  if (worth_stamp_[key] == visit_) return worth_[key];
  ScoreFeatures f;
  const bool coming = features(key, f);
  const ScoreFeatures& w = coming ? weights_.this_pass : weights_.next_pass;
  double sum = 0;
  for (std::size_t i = 0; i < f.size(); ++i) sum += static_cast<double>(w[i]) * f[i];
  const double b = base_rate();
  sum += std::log(b / (1.0 - b));
  const std::size_t layer = layer_of_[key], n = layers_.size();
  const std::size_t away = coming ? layer - here_ : layer + n - here_;
  worth_[key] = 1.0 / (1.0 + std::exp(-sum)) - static_cast<double>(weights_.distance) *
                                                   static_cast<double>(away) /
                                                   static_cast<double>(n);
  worth_stamp_[key] = visit_;
  return worth_[key];
}

}  // namespace waste::engine
