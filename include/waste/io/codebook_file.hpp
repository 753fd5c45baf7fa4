// codebooks.bin in memory: the codebooks that the banks use, decoded to f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/format/manifest.hpp"

namespace waste::io {

/// Decoded codebooks of every layer. Immutable after load; safe to share between threads.
class Codebooks {
 public:
  Codebooks() = default;

  /// Reads the codebooks that `banks` name; `banks` as parse_manifest returned them. Throws Error:
  /// truncated or mismatch for a file that is no whole number of records or ends before the last
  /// one in use, and what format::validate_codebook refuses, all-zero filler in use among it
  /// (bad_magic). Records in no layer's use are not looked at.
  /// `crcs` are the crc32s that the first records must have (checksum), by id; what validate(quant)
  /// refuses is refused before the file is opened.
  static Codebooks load(const std::filesystem::path& path, const format::ExpertQuant& quant,
                        std::span<const format::BankEntry> banks,
                        std::span<const std::uint32_t> crcs = {});

  /// f32 [stages][2^index_bits][8], 64-byte aligned; entries past `quant.entries` are zero, so
  /// that an index out of range reads a zero vector. Null pointer for a base no bank has.
  const float* of(std::uint32_t codebook_base, format::Kind kind) const noexcept;

  const format::ExpertQuant& quant() const noexcept { return quant_; }
  std::size_t bytes() const noexcept { return values_.size() * sizeof(float); }

 private:
  std::size_t floats_per_kind() const noexcept;

  format::ExpertQuant quant_;
  std::vector<std::uint32_t> bases_;  ///< ascending; the slot of each is its position
  AlignedBuffer<float> values_;       ///< [slot][kind][stage][2^index_bits][8]
};

}  // namespace waste::io
