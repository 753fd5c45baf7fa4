// A container's manifest.json as data: parsed, bounded and checked against itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/format/json.hpp"
#include "waste/format/model_config.hpp"

namespace waste::format {

/// One expert bank: `file` (a name inside the container's folder) holds `experts` records, `bytes`
/// in all.
struct BankEntry {
  std::uint32_t layer = 0;
  std::string file;
  std::uint32_t experts = 0;
  std::uint64_t bytes = 0;
  std::uint32_t codebook_base = 0;
};

/// One trunk tensor: `bytes` at `off` of trunk.bin, scales (if any) at `scale_off`.
struct TrunkEntry {
  std::string name;
  Fmt fmt = Fmt::f32;
  std::uint64_t off = 0;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::uint64_t scale_off = 0;  ///< absolute; off + payload bytes for grouped formats, else unused

  std::uint64_t cols() const noexcept { return shape.empty() ? 1 : shape.back(); }
  std::uint64_t rows() const noexcept {
    std::uint64_t n = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

struct Manifest {
  std::string arch;
  std::string tensor_prefix;
  JsonValue config;   ///< the source's config, verbatim
  ModelConfig model;  ///< the same, typed
  ExpertQuant expert_quant;
  RecordLayout layout;            ///< of every record, derived
  std::vector<BankEntry> layers;  ///< ascending; one per MoE layer
  std::vector<TrunkEntry> trunk;  ///< in file order; sorted by name in files written here

  const BankEntry* bank(LayerId layer) const noexcept;
  const TrunkEntry* tensor(std::string_view name) const noexcept;
};

/// Reads and checks a manifest text. Throws Error naming the field; `file` is used in messages.
/// Checked: strict JSON within manifest_limits, format_version exactly 0, every dimension bounded,
/// expert_quant one the format can hold, `layers` exactly the MoE layers, each bank num_experts
/// records of the derived size, trunk entries not overlapping (in any order in the text), sizes
/// equal to those derived from fmt and shape, names unique, every tensor the model needs present
/// with its exact shape, file names without separators. Unknown members are ignored, so that
/// additions do not break older readers.
///
/// Holes: trunk bytes that no entry names are tolerated between tensors (a tool that rewrites one
/// tensor leaves them; see trunk_hole_bytes); the file must end where its last tensor ends, which
/// is checked where the file is at hand.
Manifest parse_manifest(std::string_view text, std::string_view file);

/// What parse_manifest grants its text: a manifest of K3 has 1 MB and 50,000 values.
inline constexpr JsonLimits manifest_limits{limits::manifest_bytes, limits::json_depth,
                                            std::uint64_t{1} << 19, std::uint64_t{1} << 20};

/// Bytes of trunk.bin that no tensor uses, and where the last tensor ends.
std::uint64_t trunk_hole_bytes(const Manifest& manifest) noexcept;
std::uint64_t trunk_end(const Manifest& manifest) noexcept;

/// The manifest as ASCII JSON with an indent of 1, keys in the order format_version, arch,
/// tensor_prefix, config, expert_quant, layers, trunk: byte for byte what the C engine's converter
/// writes for the same content. `model` and `layout` are derived, so they are not written.
std::string dump_manifest(const Manifest& manifest);

/// Types and bounds of a model configuration (the merged text config). Throws Error.
ModelConfig parse_model_config(const JsonValue& config, std::string_view file);

/// A trunk tensor that a model needs.
struct RequiredTensor {
  enum class Role : std::uint8_t {
    matrix,    ///< exactly this shape, any trunk format
    vector,    ///< exactly this shape, F32: norms, biases, convolutions
    row,       ///< these elements, with or without leading ones, F32: residual projections
    at_least,  ///< any shape of at least as many elements, F32, the first used: A_log, which K3
               ///< pads
  };
  std::string name;  ///< without tensor_prefix
  std::vector<std::uint64_t> shape;
  Role role = Role::matrix;
};
/// Every trunk tensor that the text model of `config` needs, without tensor_prefix.
std::vector<RequiredTensor> required_tensors(const ModelConfig& config);

/// Whether a tensor of this shape and format serves as `wanted`: Errc::shape or unsupported.
Fault check_tensor(const RequiredTensor& wanted, const std::vector<std::uint64_t>& shape,
                   Fmt fmt) noexcept;

/// Elements of a shape, or nothing on overflow.
std::optional<std::uint64_t> elements(const std::vector<std::uint64_t>& shape) noexcept;

}  // namespace waste::format
