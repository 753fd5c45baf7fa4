// How a container's experts are quantized: the manifest's expert_quant.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/core/error.hpp"
#include "waste/format/constants.hpp"

namespace waste::format {

/// Residual VQ: W ~ scale[row] * sum over `stages` of codebook entries of `vec_dim` columns.
/// `entries` per stage, `index_bits` bits per index (8: one byte each; 6: four packed into three
/// bytes), rows interleaved in blocks of `index_block` (0: plain row-major).
struct ExpertQuant {
  Fmt fmt = Fmt::vq3r;
  std::uint32_t stages = 3;
  std::uint32_t vec_dim = 8;
  std::uint32_t entries = 256;
  std::uint32_t index_block = 64;
  std::uint32_t index_bits = 8;

  /// Bytes of the indices of one vector: `stages` for 8-bit indices, 3 for four 6-bit ones.
  constexpr std::size_t run_bytes() const noexcept { return stages * index_bits / 8; }
  constexpr double bits_per_weight() const noexcept {
    return static_cast<double>(stages * index_bits) / vec_dim;
  }
  bool operator==(const ExpertQuant&) const = default;
};

inline constexpr ExpertQuant vq3r{Fmt::vq3r, 3, 8, 256, 64, 8};
inline constexpr ExpertQuant vq2r{Fmt::vq2r, 2, 8, 256, 64, 8};
inline constexpr ExpertQuant vq4p{Fmt::vq4p, 4, 8, 64, 64, 6};
inline constexpr ExpertQuant sub1{Fmt::sub1, 1,  8,
                                  256,       64, 8};  ///< of substitutes, never a manifest's

/// What this format can hold: vec_dim 8, index_block 0 or 64, and either 1..8 stages of 8-bit
/// indices into 1..256 entries or 4 stages of 6-bit indices into 1..64 entries; VQ4P exactly for
/// the latter, SUB1 for one stage only.
constexpr Fault validate(const ExpertQuant& q) noexcept {
  if (q.vec_dim != vec_dim) return fault(Errc::unsupported, "vec_dim", q.vec_dim, vec_dim);
  if (q.index_block != 0 && q.index_block != 64) {
    return fault(Errc::unsupported, "index_block", q.index_block, 64);
  }
  if (q.index_bits == 8) {
    if (q.stages < 1 || q.stages > max_stages) {
      return fault(Errc::out_of_range, "stages", q.stages, max_stages);
    }
    if (q.entries < 1 || q.entries > 256) {
      return fault(Errc::out_of_range, "entries", q.entries, 256);
    }
    if (q.fmt == Fmt::sub1 && q.stages != 1) {
      return fault(Errc::unsupported, "stages", q.stages, 1);
    }
    if (q.fmt != Fmt::vq3r && q.fmt != Fmt::vq2r && q.fmt != Fmt::sub1) {
      return fault(Errc::mismatch, "fmt", static_cast<std::uint64_t>(q.fmt),
                   static_cast<std::uint64_t>(Fmt::vq3r));
    }
  } else if (q.index_bits == 6) {
    if (q.stages != 4) return fault(Errc::unsupported, "stages", q.stages, 4);
    if (q.entries < 1 || q.entries > 64) {
      return fault(Errc::out_of_range, "entries", q.entries, 64);
    }
    if (q.fmt != Fmt::vq4p) {
      return fault(Errc::mismatch, "fmt", static_cast<std::uint64_t>(q.fmt),
                   static_cast<std::uint64_t>(Fmt::vq4p));
    }
  } else {
    return fault(Errc::unsupported, "index_bits", q.index_bits, 8);
  }
  return {};
}

}  // namespace waste::format
