// LRU: the expert unused for longest goes first, and what is asked for is always kept.
#pragma once

#include <vector>

#include "waste/engine/cache_policy.hpp"

namespace waste::engine {

/// Below one working set (top_k experts of every layer) it keeps nothing that is asked for again:
/// by the time a layer comes round, every expert of it has been pushed out.
class LruPolicy final : public CachePolicy {
 public:
  explicit LruPolicy(std::size_t keys) : last_(keys, 0) {}
  void demand(std::size_t key) noexcept override { last_[key] = ++now_; }
  double worth(std::size_t key) const noexcept override { return static_cast<double>(last_[key]); }

 private:
  std::vector<std::uint64_t> last_;  ///< number of the last demand; 0: never
  std::uint64_t now_ = 0;
};

}  // namespace waste::engine
