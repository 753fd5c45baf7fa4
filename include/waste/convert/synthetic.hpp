// Random containers of real shapes: well-formed, fast to write, the same for a seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "waste/format/expert_quant.hpp"
#include "waste/format/json.hpp"

namespace waste::convert {

enum class SyntheticShape : std::uint8_t { kimi_linear, k3 };

struct SyntheticOptions {
  SyntheticShape shape = SyntheticShape::kimi_linear;
  std::uint32_t layers = 0;   ///< the first dense, as in the models; 0: as many as the model has
  std::uint32_t experts = 0;  ///< per layer; 0: as many as the model has
  std::uint32_t vocab = 0;    ///< 0: the model's 163840
  format::ExpertQuant quant = format::vq3r;
  bool substitutes = false;  ///< also SUB1 banks, as random as the experts
  std::uint64_t seed = 1;
  unsigned jobs = 0;  ///< threads; 0: all. The result is the same for any number.
  /// Bytes written so far and in all; from any thread, one call at a time.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// The config of a model with the dimensions of the released one, cut to
/// `layers` and `experts`: attention kinds alternate as released (every fourth layer and the last
/// are MLA), experts per token as released where there are as many. Throws Error(out_of_range) for
/// fewer than two layers, no expert, or more than the format holds.
JsonValue synthetic_config(const SyntheticOptions& options);

/// Writes such a container: indices and codes uniform, codebooks normal, scales such that every
/// matrix keeps the size of its input, so activations stay finite and routers choose by token.
/// Default formats of a conversion (Q8G embedding and head, Q4G matrices, F32 below 65536
/// elements). Nothing in it was learned: it is for measuring speed. Throws Error: exists for a
/// directory that holds a container, no_space before anything is written, io.
void write_synthetic(const std::filesystem::path& directory, const SyntheticOptions& options);

}  // namespace waste::convert
