// A container's manifest.json as data: parsed, bounded and checked against itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/format/json.hpp"
#include "waste/format/model_config.hpp"

namespace waste::format {

/// One expert bank: `file` holds `experts` records, `bytes` in all.
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
/// Checked: strict JSON, format_version exactly 0, every dimension bounded, expert_quant one the
/// format can hold, layers complete, bank bytes a whole number of records, trunk entries in order,
/// not overlapping, sizes equal to those derived from fmt and shape, names unique, every tensor
/// the model needs present with its exact shape, file names without separators.
Manifest parse_manifest(std::string_view text, std::string_view file);

/// The manifest as ASCII JSON, keys in the order format_version, arch, tensor_prefix, config,
/// expert_quant, layers, trunk.
std::string dump_manifest(const Manifest& manifest);

/// Types and bounds of a model configuration (the merged text config). Throws Error.
ModelConfig parse_model_config(const JsonValue& config, std::string_view file);

/// A trunk tensor that a model needs.
struct RequiredTensor {
  std::string name;  ///< without tensor_prefix
  std::vector<std::uint64_t> shape;
};
/// Every trunk tensor that the text model of `config` needs, without tensor_prefix. A_log is listed
/// with kda_heads elements, and a file may hold more of them (the first are used); residual
/// projections are listed as [1][hidden_size], and a file may drop or keep the leading 1.
std::vector<RequiredTensor> required_tensors(const ModelConfig& config);

}  // namespace waste::format
