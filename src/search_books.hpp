// Codebooks as the integers that the search kernel works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/kernels/encode_kernels.hpp"

namespace waste::quant {

/// SearchBooks of f32 codebooks [stages][table][8], the first `entries` of each stage in use. The
/// step is such that no sum of entries leaves search_reach.
class IntegerBooks {
 public:
  IntegerBooks(const float* books, std::size_t stages, std::size_t entries, std::size_t table);

  /// Writes `count` targets i16 [count][8] for x [count][8] * factor, clamped to search_limit.
  void quantize(const float* x, std::size_t count, float factor, std::int16_t* targets) const;
  /// Finds indices u8 [count][stages] for targets; see EncodeKernels::search.
  void search(const kernels::EncodeKernels& kernel, const std::int16_t* targets, std::size_t count,
              std::size_t beam, std::uint8_t* indices) const;

 private:
  std::size_t stages_, entries_;
  float inverse_step_ = 1;
  kernels::SearchBooks view_;
  AlignedBuffer<std::int32_t> norms_;
  AlignedBuffer<std::int16_t> pairs_;
  AlignedBuffer<std::int16_t> steps_;
};

}  // namespace waste::quant
