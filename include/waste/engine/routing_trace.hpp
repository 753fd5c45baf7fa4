// Routing traces: which experts each token chose in each layer, and the best any cache could do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"

namespace waste::engine {

/// A recorded run. Layers are those with experts, numbered from 0.
struct RoutingTrace {
  std::size_t layers = 0;
  std::size_t experts = 0;  ///< of each layer: the largest number that occurs, and one
  std::vector<std::vector<std::uint16_t>> choices;  ///< [tokens * layers], distinct, in file order

  std::size_t tokens() const noexcept { return layers == 0 ? 0 : choices.size() / layers; }
  const std::vector<std::uint16_t>& at(std::size_t token, std::size_t layer) const noexcept {
    return choices[token * layers + layer];
  }
  /// Experts asked for by tokens [first, end), of those that there are.
  std::uint64_t demands(std::size_t first, std::size_t end) const noexcept;
  /// What one token reads on the average, rounded up: the working set in records.
  std::uint64_t working_set() const noexcept;
  /// The first `n` tokens.
  RoutingTrace prefix(std::size_t n) const;
};

inline constexpr std::uint64_t trace_limit_bytes = std::uint64_t{1} << 30;
inline constexpr std::size_t trace_limit_experts = 65536;
inline constexpr std::size_t trace_limit_layers = 4096;
/// Layers times experts: what a replay keeps a number, or a page on disk, of.
inline constexpr std::size_t trace_limit_records = std::size_t{1} << 22;

/// Reads lines of {"tok": n, "layers": [[expert, ...], ...]}, one a token: the experts that the
/// token chose in each layer that has experts, in any order. Other members, and empty lines, are
/// ignored. Throws Error naming file and line: bad_json; bad_field where "layers" is missing or
/// something else, a layer is empty or names an expert twice; out_of_range; mismatch where a line
/// has other than the first line's number of layers; truncated for a file without tokens.
RoutingTrace read_trace(const std::filesystem::path& path);
/// The same from a text; `file` is for messages.
RoutingTrace parse_trace(std::string_view text, std::string_view file);

/// The lines that read_trace reads, one a token, "tok" counted from 0.
std::string trace_text(const RoutingTrace& trace);

/// Records a run from what its routers chose, see model::Observer::routing.
class TraceRecorder {
 public:
  /// `layers` are those that will be shown, ascending.
  explicit TraceRecorder(std::vector<std::uint32_t> layers) : layers_(std::move(layers)) {}

  /// The choices `ids` [tokens][top_k] of a few tokens in one layer. The layers of the same tokens
  /// follow one another from the first on; a pass that stopped midway is overwritten by the next.
  /// Throws Error(bad_argument) for a layer out of turn, out_of_range for an id beyond
  /// trace_limit_experts.
  void record(std::uint32_t layer, MatrixView<const std::uint32_t> ids);

  /// All tokens whose every layer was recorded.
  const RoutingTrace& trace() const noexcept { return trace_; }
  /// Replaces `path` by trace_text, see io::write_atomically. Throws Error: io, no_space,
  /// not_found.
  void write(const std::filesystem::path& path) const;

 private:
  std::vector<std::uint32_t> layers_;
  std::size_t turn_ = 0;  ///< place in layers_ of the layer that comes next
  std::vector<std::vector<std::uint16_t>> pending_;  ///< [tokens * layers]
  RoutingTrace trace_;
};

/// Hits of each token under Belady's optimum with `records` places: what is asked for the farthest
/// in the future is given up, or not kept at all. A layer's experts are there or not when the layer
/// begins; no cache that sees only the past can do better. Throws Error: bad_argument for
/// choices that are not tokens times layers, out_of_range for an expert beyond trace.experts.
std::vector<std::uint32_t> optimal_hits(const RoutingTrace& trace, std::size_t records);

}  // namespace waste::engine
