#include "search_books.hpp"

#include <algorithm>
#include <cmath>

#include "waste/core/checked.hpp"

namespace waste::quant {
namespace {
using format::vec_dim;

// Round half to even for |v| < 2^22.
inline float round_even(float v) noexcept { return (v + 12582912.0f) - 12582912.0f; }

inline float largest(const float* v) noexcept {
  float out = 0;
  for (std::size_t d = 0; d < vec_dim; ++d) out = std::max(out, std::fabs(v[d]));
  return out;
}

}  // namespace

// Entries with a coordinate beyond bound[stage] are replaced by a copy of one within.
IntegerBooks::Level::Level(const float* books, std::size_t stages, std::size_t entries,
                           std::size_t table, const float* bound) {
  const std::size_t padded = round_up<std::size_t>(entries, 16);
  norms = AlignedBuffer<std::int32_t>(stages * padded, 64);
  pairs = AlignedBuffer<std::int16_t>(stages * padded * vec_dim, 64);
  steps = AlignedBuffer<std::int16_t>(stages * padded * vec_dim, 64);
  entry_of.resize(stages * padded);
  float low[vec_dim] = {}, high[vec_dim] = {};
  for (std::size_t s = 0; s < stages; ++s) {
    std::size_t within = 0;
    const auto is_near = [&](std::size_t e) {
      return e < entries && largest(books + (s * table + e) * vec_dim) <= bound[s];
    };
    while (within + 1 < entries && !is_near(within)) ++within;
    float least[vec_dim] = {}, most[vec_dim] = {};
    for (std::size_t e = 0; e < padded; ++e) {
      const std::size_t source = is_near(e) ? e : within;
      entry_of[s * padded + e] = static_cast<std::uint8_t>(source);
      for (std::size_t d = 0; d < vec_dim; ++d) {
        const float c = books[(s * table + source) * vec_dim + d];
        least[d] = std::min(least[d], c);
        most[d] = std::max(most[d], c);
      }
    }
    for (std::size_t d = 0; d < vec_dim; ++d) {
      low[d] -= least[d];
      high[d] += most[d];
    }
  }
  reach = std::max(largest(low), largest(high));
  // Rounding may add one half a stage.
  const float room = static_cast<float>(kernels::search_reach) - static_cast<float>(stages);
  if (reach > 0) inverse_step = room / reach;
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::size_t e = 0; e < padded; ++e) {
      const std::size_t at = s * padded + e;
      const float* c = books + (s * table + entry_of[at]) * vec_dim;
      std::int32_t norm = 0;
      for (std::size_t d = 0; d < vec_dim; ++d) {
        const auto value = static_cast<std::int32_t>(round_even(c[d] * inverse_step));
        norm += value * value;
        steps[at * vec_dim + d] = static_cast<std::int16_t>(4 * value);
        pairs[((s * 4 + d / 2) * padded + e) * 2 + d % 2] = static_cast<std::int16_t>(-8 * value);
      }
      norms[at] = 16 * norm + static_cast<std::int32_t>(e / 16);
    }
  }
  view = {stages, padded, norms.data(), pairs.data(), steps.data()};
}

IntegerBooks::IntegerBooks(const float* books, std::size_t stages, std::size_t entries,
                           std::size_t table)
    : stages_(stages) {
  constexpr float far = 6;            // times the root mean square of a stage's entries
  constexpr float served = 0.7f;      // of that: vectors that stay clear of the entries left out
  constexpr float worthwhile = 1.6f;  // gain in step for which a second level is kept
  std::vector<float> all(stages, INFINITY), near(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    double sum = 0;
    for (std::size_t i = 0; i < entries * vec_dim; ++i) {
      const double c = books[s * table * vec_dim + i];
      sum += c * c;
    }
    near[s] = far * static_cast<float>(std::sqrt(sum / static_cast<double>(entries * vec_dim)));
  }
  levels_.emplace_back(books, stages, entries, table, all.data());
  float reach = 0;
  for (std::size_t s = 0; s < stages; ++s) reach += near[s];
  if (reach * worthwhile < levels_[0].reach) {
    levels_.emplace_back(books, stages, entries, table, near.data());
    fine_limit_ = served * near[0];
  }
}

void IntegerBooks::search(const Level& level, const kernels::EncodeKernels& kernel,
                          std::size_t beam, Scratch& scratch, std::uint8_t* indices) const {
  const std::size_t count = scratch.places.size();
  scratch.indices.resize(count * stages_);
  kernel.search(level.view, scratch.targets.data(), count, beam, scratch.indices.data());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t s = 0; s < stages_; ++s) {
      indices[scratch.places[i] * stages_ + s] =
          level.entry_of[s * level.view.entries + scratch.indices[i * stages_ + s]];
    }
  }
}

void IntegerBooks::nearest(const kernels::EncodeKernels& kernel, const float* x, std::size_t count,
                           float factor, std::size_t beam, Scratch& scratch,
                           std::uint8_t* indices) const {
  scratch.targets.resize(count * vec_dim);
  const float limit = static_cast<float>(kernels::search_limit);
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    const Level& level = levels_[l];
    const float scale = factor * level.inverse_step;
    scratch.places.clear();
    for (std::size_t i = 0; i < count; ++i) {
      if (levels_.size() > 1) {
        const bool fine = largest(x + i * vec_dim) * factor <= fine_limit_;
        if (fine != (l == 1)) continue;
      }
      std::int16_t* target = scratch.targets.data() + scratch.places.size() * vec_dim;
      for (std::size_t d = 0; d < vec_dim; ++d) {
        const float value =
            round_even(std::min(std::max(x[i * vec_dim + d] * scale, -limit), limit));
        target[d] = static_cast<std::int16_t>(4 * static_cast<std::int32_t>(value));
      }
      scratch.places.push_back(static_cast<std::uint32_t>(i));
    }
    search(level, kernel, beam, scratch, indices);
  }
}

}  // namespace waste::quant
