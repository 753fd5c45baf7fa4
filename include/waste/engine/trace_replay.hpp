// Replays a routing trace through ExpertCache itself, on records small enough to cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "waste/engine/cache_policy.hpp"
#include "waste/engine/read_ahead.hpp"
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

/// The cache that a replay imitates.
struct ReplayOptions {
  MakePolicy policy;
  std::size_t records = 0;     ///< that its budget has room for
  std::size_t concurrent = 1;  ///< CacheOptions::concurrent of the run
  /// Of the run, for the places that they take: the replay itself reads nothing ahead.
  ReadAheadOptions ahead = {.readers = 0};
  std::size_t drives = 1;  ///< that hold the run's container
};

/// Hits of each token when an ExpertCache answers the trace: for each layer prepare() with the
/// token's experts, then get() of each, one held at a time. No reader threads, so the outcome is
/// the same each time. Throws Error: mismatch for a trace of other layers than the container's, and
/// as ExpertCache does.
///
/// A run of the same model on one thread, a token at a time from an empty cache, has exactly these
/// hits, whatever is read ahead or guessed: a record read ahead counts as a miss, waits in a place
/// of its own and is ranked when it is asked for. It need not be so where several threads ask (the
/// order in which they do decides who is kept), where tokens share a pass (prefill asks once for
/// what several tokens chose), or where a usage log warmed the cache.
std::vector<std::uint32_t> replay_hits(const RoutingTrace& trace, const ReplayContainer& container,
                                       const ReplayOptions& options);

}  // namespace waste::engine
