// Cache policies: against their formulas, computed from the whole history.
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "support/catch.hpp"
#include "waste/engine/cache_policies/decayed_frequency.hpp"
#include "waste/engine/cache_policies/fitted_score.hpp"
#include "waste/engine/cache_policies/lru.hpp"
#include "waste/engine/cache_policies/sampled_lfru.hpp"

namespace {

using namespace waste::engine;

struct Random {
  std::uint64_t state;
  std::uint32_t below(std::uint32_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<std::uint32_t>(state >> 33) % n;
  }
};

/// What each token chose in each layer; some tokens repeat earlier ones, as text does.
using Run = std::vector<std::vector<std::set<std::uint32_t>>>;
Run random_run(std::size_t tokens, std::size_t layers, std::uint32_t experts, std::size_t chosen,
               std::uint64_t seed) {
  Random random{seed};
  Run run;
  for (std::size_t t = 0; t < tokens; ++t) {
    if (t > 4 && random.below(2) == 0) {
      run.push_back(run[random.below(static_cast<std::uint32_t>(t))]);
      continue;
    }
    run.emplace_back(layers);
    for (auto& layer : run.back()) {
      while (layer.size() < chosen) layer.insert(random.below(experts));
    }
  }
  return run;
}

TEST_CASE("names of policies", "[policy]") {
  for (const Policy policy : all_policies) {
    REQUIRE(policy_named(to_string(policy)) == policy);
    REQUIRE(make_policy(policy, 10) != nullptr);
  }
  REQUIRE_FALSE(policy_named("belady"));
}

TEST_CASE("decayed frequency orders keys as their decayed counts do", "[policy]") {
  DecayedFrequencyPolicy policy(12, 5.0);
  Random random{3};
  std::vector<std::vector<int>> demands(12);
  for (int token = 1; token <= 200; ++token) {
    policy.begin_token();
    for (int i = 0; i < 3; ++i) {
      const std::uint32_t key = random.below(1 + random.below(12));
      policy.demand(key);
      demands[key].push_back(token);
    }
    std::vector<double> count(12, 0.0);
    for (std::size_t key = 0; key < 12; ++key) {
      for (const int at : demands[key]) count[key] += std::pow(2.0, (at - token) / 5.0);
    }
    for (std::size_t a = 0; a < 12; ++a) {
      for (std::size_t b = 0; b < 12; ++b) {
        if (count[a] > count[b] * (1 + 1e-9)) REQUIRE(policy.worth(a) > policy.worth(b));
      }
    }
  }
}

TEST_CASE("sampled LFRU: hits over age among a share of the keys", "[policy]") {
  SampledLfruPolicy policy(4000, 8);
  for (std::size_t key = 0; key < 4000; ++key) policy.demand(key);
  policy.demand(7);
  for (int i = 0; i < 9; ++i) policy.begin_token();
  for (std::size_t i = 0; i < 16; ++i) policy.demand(3900 + i);  // the rest is out of protection
  std::size_t sampled = 0;
  for (std::size_t key = 0; key < 3900; ++key) {
    const double worth = policy.worth(key), wanted = (key == 7 ? 2.0 : 1.0) / 10.0;
    if (worth < 1e9) {
      ++sampled;
      REQUIRE(worth == wanted);
    } else {
      REQUIRE(worth == 1e12 + wanted);
    }
  }
  REQUIRE(sampled > 3900 / 8 - 100);
  REQUIRE(sampled < 3900 / 8 + 100);
  // What was asked for last is kept, the latest the most.
  for (std::size_t i = 1; i < 16; ++i) REQUIRE(policy.worth(3900 + i) > policy.worth(3899 + i));
  REQUIRE(policy.worth(3900) > 1e14);
}

/// The features of a key as ScoreWeights defines them, from the run's whole history. The run is in
/// token `now`, layer `here`, all of whose choices have been made.
ScoreFeatures expected_features(const Run& run, std::size_t now, std::size_t here,
                                std::size_t layer, std::uint32_t expert, std::uint32_t experts,
                                const ScoreWeights& weights) {
  const bool coming = layer > here;
  const std::size_t chosen = run[0][0].size();
  const double b = static_cast<double>(chosen) / experts;
  // The last token that visited the layer; tokens count from 0.
  const long last = static_cast<long>(now) - (coming ? 1 : 0);
  ScoreFeatures out{};
  const double half_lives[] = {1, 4, 16, 64};
  long seen = -1, hits = 0;
  double rate[4] = {};
  for (long t = 0; t <= last; ++t) {
    if (run[static_cast<std::size_t>(t)][layer].count(expert) == 0) continue;
    for (int i = 0; i < 4; ++i) {
      rate[i] += (1 - std::pow(2.0, -1 / half_lives[i])) *
                 std::pow(2.0, -static_cast<double>(last - t) / half_lives[i]);
    }
    seen = t;
    ++hits;
  }
  for (std::size_t i = 0; i < 4; ++i) out[i] = static_cast<float>(std::log(rate[i] / b + 1 / 32.0));
  out[4] = seen < 0 ? 0.0f : 1.0f / static_cast<float>(1 + last - seen);
  const double overall = (hits + 1.0) / (static_cast<double>(last + 1) + 1 / b);
  out[5] = static_cast<float>(std::log(overall / b + 1 / 32.0));

  const auto shared = [&](std::size_t t, std::size_t u, std::size_t layers) {
    double n = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      for (const std::uint32_t e : run[t][l]) n += static_cast<double>(run[u][l].count(e));
    }
    return n;
  };
  std::vector<double> like;
  for (std::size_t t = 0; t < now; ++t) {
    double s = shared(now, t, here + 1);
    if (t > 0) s += weights.carry * shared(now - 1, t - 1, run[0].size());
    like.push_back(weights.sharpness * s / static_cast<double>(chosen * run[0].size()) -
                   weights.age_cost * static_cast<double>(now - t));
  }
  const double most = like.empty() ? 0 : *std::max_element(like.begin(), like.end());
  double sum = 0, q = 0;
  for (double& x : like) sum += x = std::exp(x - most);
  for (std::size_t t = 0; t < now; ++t) {
    const std::size_t witness = coming ? t : t + 1;
    if (like[t] / sum >= 1e-3 && run[witness][layer].count(expert) != 0) q += like[t] / sum;
  }
  out[6] = static_cast<float>(std::log(q / b + 1 / 32.0));
  out[7] = static_cast<float>(q);
  out[8] = 1.0f;
  return out;
}

TEST_CASE("the fitted score's features are what its definition says", "[policy]") {
  const std::size_t layers = 3, tokens = 60;
  const std::uint32_t experts = 12;
  const Run run = random_run(tokens, layers, experts, 3, 11);
  ScoreWeights weights = ScoreWeights::usual();
  weights.carry = 0.4f;
  FittedScorePolicy policy(layers * experts, weights);
  policy.set_layers(std::vector<std::size_t>{0, experts, 2 * experts});
  std::size_t checked = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    policy.begin_token();
    for (std::size_t l = 0; l < layers; ++l) {
      for (const std::uint32_t e : run[t][l]) policy.demand(l * experts + e);
      if (t < 2) continue;
      REQUIRE(policy.base_rate() == Approx(3.0 / experts));
      for (std::size_t m = 0; m < layers; ++m) {
        for (std::uint32_t e = 0; e < experts; ++e) {
          ScoreFeatures got;
          REQUIRE(policy.features(m * experts + e, got) == (m > l));
          const ScoreFeatures want = expected_features(run, t, l, m, e, experts, weights);
          for (std::size_t i = 0; i < score_features; ++i) {
            INFO("token " << t << " layer " << l << " key " << m << ":" << e << " feature " << i);
            REQUIRE(got[i] == Approx(want[i]).epsilon(2e-4).margin(2e-4));
            ++checked;
          }
        }
      }
    }
  }
  REQUIRE(checked > 10000);
}

TEST_CASE("the fitted score is the logistic model of its features, less the way to go",
          "[policy]") {
  const std::size_t layers = 4;
  const std::uint32_t experts = 10;
  const Run run = random_run(30, layers, experts, 2, 5);
  ScoreWeights weights;
  weights.this_pass = {0.1f, 0.2f, -0.1f, 0.05f, 0.3f, 0.1f, 0.4f, 1.0f, -0.2f};
  weights.next_pass = {0.2f, -0.1f, 0.1f, 0.15f, -0.3f, 0.2f, 0.3f, 0.5f, 0.1f};
  weights.distance = 0.25f;
  FittedScorePolicy policy(layers * experts, weights), twin(layers * experts, weights);
  const std::vector<std::size_t> first{0, 10, 20, 30};
  policy.set_layers(first);
  twin.set_layers(first);
  for (std::size_t t = 0; t < run.size(); ++t) {
    policy.begin_token();
    twin.begin_token();
    for (std::size_t l = 0; l < layers; ++l) {
      for (const std::uint32_t e : run[t][l]) policy.demand(l * experts + e);
      for (const std::uint32_t e : run[t][l]) twin.demand(l * experts + e);
      for (std::size_t key = 0; key < layers * experts; ++key) {
        ScoreFeatures f;
        const bool coming = policy.features(key, f);
        const ScoreFeatures& w = coming ? weights.this_pass : weights.next_pass;
        const double b = policy.base_rate();
        double z = std::log(b / (1 - b));
        for (std::size_t i = 0; i < score_features; ++i) z += double{w[i]} * double{f[i]};
        const std::size_t m = key / experts;
        const double away = static_cast<double>(coming ? m - l : m + layers - l);
        REQUIRE(policy.worth(key) == Approx(1 / (1 + std::exp(-z)) - 0.25 * away / 4).margin(1e-6));
        REQUIRE(policy.worth(key) == twin.worth(key));
      }
    }
  }
}

TEST_CASE("what followed a token before is expected after it", "[policy]") {
  // Five tokens in turn, each with two experts of its own in each of two layers.
  FittedScorePolicy policy(40);
  policy.set_layers(std::vector<std::size_t>{0, 20});
  for (std::size_t t = 0; t < 23; ++t) {
    policy.begin_token();
    for (std::size_t l = 0; l < 2; ++l) {
      for (std::size_t e = 0; e < 2; ++e) policy.demand(20 * l + t % 5 * 2 + e);
    }
  }
  // Token 22 was the third of five: the fourth is next.
  for (std::size_t key = 0; key < 40; ++key) {
    if (key % 20 == 6 || key % 20 == 7) continue;
    for (const std::size_t next : {6, 7}) {
      REQUIRE(policy.worth(next + key / 20 * 20) > policy.worth(key));
    }
  }
}

TEST_CASE("a fitted score takes wide passes, long runs and layers it was not told of", "[policy]") {
  FittedScorePolicy policy(3000);
  for (int t = 0; t < 600; ++t) {
    policy.begin_token();
    for (std::size_t e = 0; e < 40; ++e)
      policy.demand((static_cast<std::size_t>(t) * 7 + e) % 3000);
  }
  for (std::size_t key = 0; key < 3000; ++key) REQUIRE(std::isfinite(policy.worth(key)));
  // Experts of a run without tokens (no begin_token) are still told apart by use.
  FittedScorePolicy other(6);
  REQUIRE(other.worth(3) == 0.0);
  other.demand(3);
  REQUIRE(std::isfinite(other.worth(0)));
}

}  // namespace
