// Codebooks as the integers that the search kernel works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/kernels/encode_kernels.hpp"

namespace waste::quant {

/// Integer copies of f32 codebooks [stages][table][8], the first `entries` of each stage in use.
///
/// One copy holds every entry, in a step so coarse that no sum of entries leaves search_reach.
/// Where a few entries lie far out (heavy-tailed weights), a second copy without them has a finer
/// step and serves the many vectors to which those entries are no candidates.
class IntegerBooks {
 public:
  IntegerBooks(const float* books, std::size_t stages, std::size_t entries, std::size_t table);

  /// Room that nearest() works in; one a thread.
  struct Scratch {
    std::vector<std::int16_t> targets;
    std::vector<std::uint8_t> indices;
    std::vector<std::uint32_t> places;
  };
  /// Indices u8 [count][stages] whose entries sum closest to x [count][8] * factor, by a beam
  /// search (EncodeKernels::search). A vector's indices do not depend on its neighbours.
  void nearest(const kernels::EncodeKernels& kernel, const float* x, std::size_t count,
               float factor, std::size_t beam, Scratch& scratch, std::uint8_t* indices) const;

 private:
  struct Level {
    Level(const float* books, std::size_t stages, std::size_t entries, std::size_t table,
          const float* bound);
    float inverse_step = 1;
    float reach = 0;  ///< of the entries within the bound
    kernels::SearchBooks view;
    AlignedBuffer<std::int32_t> norms;
    AlignedBuffer<std::int16_t> pairs;
    AlignedBuffer<std::int16_t> steps;
    std::vector<std::uint8_t> entry_of;  ///< [stages][padded entries], for copies
  };
  void search(const Level& level, const kernels::EncodeKernels& kernel, std::size_t beam,
              Scratch& scratch, std::uint8_t* indices) const;

  std::size_t stages_;
  std::vector<Level> levels_;  ///< all entries; then, perhaps, the near ones in a finer step
  float fine_limit_ = -1;      ///< largest |x| that the second level serves
};

}  // namespace waste::quant
