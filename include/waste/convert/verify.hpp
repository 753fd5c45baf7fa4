// Auditing a container: every byte's checks, and with the source at hand how far its weights are
// off.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::convert {

struct VerifyOptions {
  std::filesystem::path source;   ///< checkpoint to compare with; empty: audit only
  unsigned jobs = 0;              ///< threads; 0: available_threads(). Never changes the report
  std::size_t max_findings = 50;  ///< kept with their messages; all are counted
  std::optional<double> max_expert_error;  ///< instead of expert_error_limit(format)
  /// Bytes of the container looked at, of all; called from one thread at a time.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

/// One thing that is wrong: what a reader would have thrown.
struct Finding {
  Fault fault;
  std::string file;
  std::string message;
};

/// Error of one kind of matrix in one layer, over all its experts.
struct LayerError {
  std::uint32_t layer = 0;
  format::Kind kind = format::Kind::gate;
  quant::EncodeStats stats;
  double worst = 0;  ///< largest relative error of one expert
  std::uint32_t worst_expert = 0;
};

/// Error of one trunk tensor.
struct TensorError {
  std::string name;
  format::Fmt fmt = format::Fmt::f32;
  quant::EncodeStats stats;
};

struct VerifyReport {
  std::vector<Finding> findings;     ///< the first max_findings
  std::uint64_t findings_total = 0;  ///< 0: nothing is wrong
  bool has_manifest = false;         ///< the manifest could be read; false leaves the rest 0
  bool compared = false;             ///< weights were compared with a source
  format::ExpertQuant expert_quant;
  std::uint32_t layers = 0, experts = 0;  ///< MoE layers, experts per layer
  std::uint64_t records = 0;              ///< audited, substitutes included
  std::uint64_t record_bytes = 0;         ///< of each
  std::uint64_t bank_bytes = 0, trunk_bytes = 0, codebook_bytes = 0;
  std::uint64_t substitute_bytes = 0;  ///< of subs-L{n}.bin; 0: there are none
  double expert_bits_per_weight = 0;   ///< scales, header and padding included
  double trunk_bits_per_weight = 0;
  double expert_limit = 0;  ///< relative error allowed per (layer, kind)
  std::vector<LayerError> experts_error;
  std::vector<LayerError> substitutes_error;
  std::vector<TensorError> trunk_error;

  bool ok() const noexcept { return findings_total == 0; }
};

/// Largest relative Frobenius error, |W - decoded| / |W|, that a sound conversion leaves in one
/// kind of one layer: (1.26 entries^(-1/8))^stages, the shrinkage of 8-dimensional vector
/// quantization with a quarter to spare a stage (0.25 for VQ3R, 0.40 for VQ2R, 0.31 for VQ4P,
/// 0.63 for SUB1; Gaussian weights coded greedily leave 0.195, 0.33, 0.21 and 0.57). One expert may
/// have one and a half times as much.
double expert_error_limit(const format::ExpertQuant& quant) noexcept;
/// The same for a trunk tensor: 0 for F32, 0.001 F16, 0.04 Q8G, 0.25 Q4G, 0.5 Q3G.
double trunk_error_limit(format::Fmt fmt) noexcept;

/// Looks at everything in a container and goes on after each fault: the manifest; file sizes; every
/// codebook; every record's header, crc32, index values, scales and padding; every trunk tensor's
/// values, scales and padding; what checksums.json has of tensors, codebooks and small files;
/// substitutes, where any of their files is there (missing where records promise some and none is).
/// With a source also: config equal, every trunk tensor of the source there with its shape,
/// relative errors within their limits. Memory: one record and 64 rows of its matrices, per job; a
/// megabyte of trunk; the codebooks.
///
/// Damage of the container is reported; throws Error only where the audit could not be done: no
/// manifest.json (not_found), a source that cannot be read.
VerifyReport verify(const std::filesystem::path& directory, const VerifyOptions& options = {});

}  // namespace waste::convert
