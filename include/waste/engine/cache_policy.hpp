// Which expert a full cache gives up: the interface that policies share, and their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace waste::engine {

/// Ranks experts by what they are worth keeping. Keys number all experts of a container, 0 ..
/// keys-1, layer by layer. Called under the cache's lock: implementations need none of their own,
/// and no call may throw once the policy is made. A policy is a function of the calls it got: the
/// same calls give the same ranks, whatever the clock or the thread.
class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  /// Which keys are one layer: `first_keys` has the first key of each, ascending. Called once,
  /// before anything else, or not at all: then all keys are one layer. May throw std::bad_alloc.
  virtual void set_layers(std::span<const std::size_t> first_keys) { (void)first_keys; }
  /// A token begins. Time, for policies that have one, is counted in tokens.
  virtual void begin_token() noexcept {}
  /// Expert `key` is asked for, resident or not; called before a place is sought for it, for each
  /// real demand and for no guess.
  virtual void demand(std::size_t key) noexcept = 0;
  /// Larger is better kept. Comparable between keys at one moment only. An expert worth less than
  /// every resident one is read, used and not kept.
  virtual double worth(std::size_t key) const noexcept = 0;
};

/// lru               least recently used goes first, everything asked for is kept
/// sampled_lfru      of a sample, the least hits per token of age goes first
/// decayed_frequency counts that halve every few tokens; the lowest is not kept at all
/// fitted_score      probability of the next use from fitted weights and from past tokens alike
enum class Policy : std::uint8_t { lru, sampled_lfru, decayed_frequency, fitted_score };

inline constexpr Policy all_policies[] = {Policy::lru, Policy::sampled_lfru,
                                          Policy::decayed_frequency, Policy::fitted_score};

/// "lru", "lfru", "decayed", "fitted": the names of the command line.
std::string_view to_string(Policy policy) noexcept;
std::optional<Policy> policy_named(std::string_view name) noexcept;

/// A policy with its usual parameters for so many keys. Throws std::bad_alloc.
std::unique_ptr<CachePolicy> make_policy(Policy policy, std::size_t keys);

/// Makes a policy for so many keys.
using MakePolicy = std::function<std::unique_ptr<CachePolicy>(std::size_t keys)>;

/// make_policy(policy, keys), told that keys come in layers of `keys_per_layer`.
MakePolicy policy_of_layers(Policy policy, std::size_t keys_per_layer);

}  // namespace waste::engine
