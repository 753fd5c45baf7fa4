// Replays a routing trace through ExpertCache itself, on records small enough to cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "waste/engine/cache_policy.hpp"
#include "waste/engine/routing_trace.hpp"
#include "waste/io/container.hpp"

namespace waste::engine {

/// A container with as many experts as a trace has, one page each, in a temporary folder of its
/// own that goes with the object: layers * experts * 4 KiB of disk, which the page cache holds.
class ReplayContainer {
 public:
  /// Throws Error: what writing and opening find, no_space included.
  explicit ReplayContainer(const RoutingTrace& trace);
  ~ReplayContainer();
  ReplayContainer(const ReplayContainer&) = delete;
  ReplayContainer& operator=(const ReplayContainer&) = delete;

  const Container& container() const noexcept { return container_; }

 private:
  std::filesystem::path directory_;
  Container container_;
};

/// Hits of each token when an ExpertCache with room for `records` records answers the trace: for
/// each layer prepare() with the token's experts, then get() of each, one held at a time. No
/// reader threads, so the outcome is the same each time. One of the records is the one being used
/// where not everything fits, as in a run with one thread. Throws Error as ExpertCache does.
std::vector<std::uint32_t> replay_hits(const RoutingTrace& trace, const ReplayContainer& container,
                                       const MakePolicy& policy, std::size_t records);

}  // namespace waste::engine
