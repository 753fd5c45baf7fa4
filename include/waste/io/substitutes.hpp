// The substitutes of a container's experts, all in memory: what may answer where a read is late.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/format/substitutes.hpp"
#include "waste/io/container.hpp"

namespace waste::io {

/// SUB1 records of every expert, about 1 bit a weight, and their codebooks. Immutable after open;
/// safe to share between threads. A substitute is a VQ matrix like any other,
///     W[r][8v+d] = f32(scale[r]) * C[index(r, v)][d],
/// with codebooks of its own: a lookup table built for the expert's does not serve it.
class Substitutes {
 public:
  /// Reads all banks and codebooks, on `threads` threads (0: all), every crc32 compared. The
  /// container is shared. Throws Error: missing where the container has no substitutes, and for
  /// what is wrong with one file what ExpertBank and Codebooks say of it (also where only some
  /// files are there); over_budget where the memory cannot be had.
  static Substitutes open(const Container& container, unsigned threads = 0);

  /// Borrows from this object. `layer` and `expert` must be the container's.
  ExpertView view(LayerId layer, ExpertId expert) const noexcept;

  /// Memory of records and codebooks.
  std::uint64_t bytes() const noexcept;
  const format::SubstituteBanks& banks() const noexcept { return banks_; }

 private:
  format::SubstituteBanks banks_;
  std::shared_ptr<const Codebooks> codebooks_;
  std::vector<AlignedBuffer<std::uint8_t>> records_;  ///< of each layer, [expert][record]
};

/// Whether `directory` holds any file of substitutes.
bool has_substitutes(const std::filesystem::path& directory, const format::SubstituteBanks& banks);

/// Memory that Substitutes::open takes for a container of this manifest.
std::uint64_t substitute_bytes(const format::Manifest& manifest);

}  // namespace waste::io
