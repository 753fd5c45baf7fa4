#include "waste/engine/cache_policy.hpp"

#include <algorithm>
#include <vector>

#include "waste/engine/cache_policies/decayed_frequency.hpp"
#include "waste/engine/cache_policies/fitted_score.hpp"
#include "waste/engine/cache_policies/lru.hpp"
#include "waste/engine/cache_policies/sampled_lfru.hpp"

namespace waste::engine {

std::string_view to_string(Policy policy) noexcept {
  switch (policy) {
    case Policy::lru:
      return "lru";
    case Policy::sampled_lfru:
      return "lfru";
    case Policy::decayed_frequency:
      return "decayed";
    case Policy::fitted_score:
      return "fitted";
  }
  return "";
}

std::optional<Policy> policy_named(std::string_view name) noexcept {
  for (const Policy policy : all_policies) {
    if (to_string(policy) == name) return policy;
  }
  return std::nullopt;
}

std::unique_ptr<CachePolicy> make_policy(Policy policy, std::size_t keys) {
  switch (policy) {
    case Policy::lru:
      return std::make_unique<LruPolicy>(keys);
    case Policy::sampled_lfru:
      return std::make_unique<SampledLfruPolicy>(keys);
    case Policy::decayed_frequency:
      return std::make_unique<DecayedFrequencyPolicy>(keys);
    case Policy::fitted_score:
      return std::make_unique<FittedScorePolicy>(keys);
  }
  return std::make_unique<LruPolicy>(keys);
}

MakePolicy policy_of_layers(Policy policy, std::size_t keys_per_layer) {
  return [=](std::size_t keys) {
    auto out = make_policy(policy, keys);
    std::vector<std::size_t> first;
    for (std::size_t k = 0; k < keys; k += std::max<std::size_t>(keys_per_layer, 1)) {
      first.push_back(k);
    }
    out->set_layers(first);
    return out;
  };
}

}  // namespace waste::engine
