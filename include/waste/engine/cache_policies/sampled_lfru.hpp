// Sampled LFRU: of a pseudo-random sample of the residents, the least used for its age goes first.
#pragma once

#include <vector>

#include "waste/engine/cache_policy.hpp"

namespace waste::engine {

/// worth(key) = hits / (1 + tokens since the last demand), hits without decay. Each victim is
/// sought among about one resident in `one_in`, chosen by a hash of the key and of the number of
/// demands so far; the rest count as worth more than any of the sample. No admission control: the
/// last `protected_demands` keys asked for are worth more than all others, later ones more.
class SampledLfruPolicy final : public CachePolicy {
 public:
  static constexpr std::uint64_t protected_demands = 16;
  explicit SampledLfruPolicy(std::size_t keys, std::uint32_t one_in = 8)
      : entries_(keys), one_in_(one_in == 0 ? 1 : one_in) {}

  void begin_token() noexcept override { ++token_; }
  void demand(std::size_t key) noexcept override {
    Entry& e = entries_[key];
    e.hits += 1.0;
    e.token = token_;
    e.demand = ++now_;
  }
  double worth(std::size_t key) const noexcept override {
    const Entry& e = entries_[key];
    if (e.demand != 0 && now_ - e.demand < protected_demands) {
      return fresh + static_cast<double>(e.demand);
    }
    const double worth = e.hits / static_cast<double>(1 + token_ - e.token);
    return sampled(key) ? worth : worth + aside;
  }

 private:
  struct Entry {
    double hits = 0.0;
    std::uint64_t token = 0, demand = 0;
  };
  static constexpr double aside = 1e12, fresh = 1e15;

  bool sampled(std::size_t key) const noexcept {
    std::uint64_t x = (static_cast<std::uint64_t>(key) + 1) * 0x9e3779b97f4a7c15ull ^ now_;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (x ^ x >> 31) % one_in_ == 0;
  }

  std::vector<Entry> entries_;
  std::uint32_t one_in_;
  std::uint64_t token_ = 0, now_ = 0;
};

}  // namespace waste::engine
