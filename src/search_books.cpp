#include "search_books.hpp"

#include <algorithm>
#include <cmath>

#include "waste/core/checked.hpp"

namespace waste::quant {
namespace {
using format::vec_dim;

// Round half to even for |v| < 2^22.
inline float round_even(float v) noexcept { return (v + 12582912.0f) - 12582912.0f; }

// The largest |sum of one entry from each stage| in any dimension.
float reach_of(const float* books, std::size_t stages, std::size_t entries, std::size_t table) {
  float reach = 0;
  for (std::size_t d = 0; d < vec_dim; ++d) {
    float low = 0, high = 0;
    for (std::size_t s = 0; s < stages; ++s) {
      float least = 0, most = 0;
      for (std::size_t e = 0; e < entries; ++e) {
        const float c = books[(s * table + e) * vec_dim + d];
        least = std::min(least, c);
        most = std::max(most, c);
      }
      low -= least;
      high += most;
    }
    reach = std::max({reach, low, high});
  }
  return reach;
}

}  // namespace

IntegerBooks::IntegerBooks(const float* books, std::size_t stages, std::size_t entries,
                           std::size_t table)
    : stages_(stages), entries_(entries) {
  const std::size_t padded = round_up<std::size_t>(entries, 16);
  norms_ = AlignedBuffer<std::int32_t>(stages * padded, 64);
  pairs_ = AlignedBuffer<std::int16_t>(stages * padded * vec_dim, 64);
  steps_ = AlignedBuffer<std::int16_t>(stages * padded * vec_dim, 64);
  const float reach = reach_of(books, stages, entries, table);
  // Rounding may add one half a stage.
  const float room = static_cast<float>(kernels::search_reach) - static_cast<float>(stages);
  if (reach > 0) inverse_step_ = room / reach;
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::size_t e = 0; e < padded; ++e) {
      const float* c = books + (s * table + (e < entries ? e : 0)) * vec_dim;
      const std::size_t at = s * padded + e;
      std::int32_t norm = 0;
      for (std::size_t d = 0; d < vec_dim; ++d) {
        const auto value = static_cast<std::int32_t>(round_even(c[d] * inverse_step_));
        norm += value * value;
        steps_[at * vec_dim + d] = static_cast<std::int16_t>(4 * value);
        pairs_[((s * 4 + d / 2) * padded + e) * 2 + d % 2] = static_cast<std::int16_t>(-8 * value);
      }
      norms_[at] = 16 * norm + static_cast<std::int32_t>(e / 16);
    }
  }
  view_ = {stages, padded, norms_.data(), pairs_.data(), steps_.data()};
}

void IntegerBooks::quantize(const float* x, std::size_t count, float factor,
                            std::int16_t* targets) const {
  const float limit = static_cast<float>(kernels::search_limit);
  const float scale = factor * inverse_step_;
  for (std::size_t i = 0; i < count * vec_dim; ++i) {
    const float value = round_even(std::min(std::max(x[i] * scale, -limit), limit));
    targets[i] = static_cast<std::int16_t>(4 * static_cast<std::int32_t>(value));
  }
}

void IntegerBooks::search(const kernels::EncodeKernels& kernel, const std::int16_t* targets,
                          std::size_t count, std::size_t beam, std::uint8_t* indices) const {
  kernel.search(view_, targets, count, beam, indices);
  if (view_.entries == entries_) return;
  for (std::size_t i = 0; i < count * stages_; ++i) {
    if (indices[i] >= entries_) indices[i] = 0;  // a copy of entry 0
  }
}

}  // namespace waste::quant
