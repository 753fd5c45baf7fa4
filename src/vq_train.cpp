#include "waste/quant/vq_train.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codebook_fit.hpp"
#include "vq_effort.hpp"
#include "waste/core/checked.hpp"
#include "waste/core/error.hpp"
#include "waste/core/half.hpp"

namespace waste::quant {
using format::vec_dim;

void VectorSample::append(MatrixView<const float> w, std::size_t count) {
  if (w.cols % vec_dim != 0) {
    throw Error(fault(Errc::shape, "cols", w.cols, round_up<std::size_t>(w.cols, vec_dim)));
  }
  const std::size_t positions = w.cols / vec_dim, total = w.rows * positions;
  const bool all = count >= total;
  if (all) count = total;
  std::size_t scaled_row = w.rows;
  float scale = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t at = i;
    if (!all) {
      const auto edge = [&](std::size_t k) {
        return k * (total / count) + k * (total % count) / count;
      };
      at = edge(i) + random_.below(edge(i + 1) - edge(i));
    }
    const std::size_t row = at / positions;
    const float* values = w.data + row * w.stride;
    if (row != scaled_row) {
      scale = f16_to_f32(row_scale(values, w.cols));
      scaled_row = row;
    }
    if (scale == 0) continue;
    const float* from = values + at % positions * vec_dim;
    for (std::size_t d = 0; d < vec_dim; ++d) values_.push_back(from[d] / scale);
  }
}

std::vector<float> train_codebooks(MatrixView<const float> sample, const EncodeOptions& options) {
  const format::ExpertQuant& q = options.quant;
  check(validate(q));
  if (sample.cols != vec_dim || sample.rows < q.entries) {
    throw Error(fault(Errc::bad_argument, "codebook sample", sample.rows, q.entries), {},
                "a codebook needs at least as many sample vectors of 8 as it has entries");
  }
  const EffortPlan plan = effort_plan(options.effort);
  // An even subset, dense for the loops that follow.
  const std::size_t count = std::min<std::size_t>(sample.rows, plan.sample_vectors);
  std::vector<float> x(count * vec_dim);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * (sample.rows / count) + i * (sample.rows % count) / count;
    for (std::size_t d = 0; d < vec_dim; ++d) {
      const float value = sample(at, d);
      if (!std::isfinite(value)) {
        throw Error(fault(Errc::out_of_range, "codebook sample"), {}, "a value is not finite");
      }
      x[i * vec_dim + d] = value;
    }
  }

  CodebookFit fit(std::move(x), options);
  fit.start(plan.means_rounds);
  const int rounds = plan.joint_rounds + plan.final_rounds;
  for (int round = 0; round < rounds; ++round) {
    fit.encode(round < plan.joint_rounds ? plan.joint_beam : plan.beam);
    fit.refit();
    const double left = 1.0 - (round + 1.0) / std::max(1, plan.joint_rounds);
    if (plan.noise > 0 && left > 0) fit.disturb(plan.noise * std::sqrt(left));
  }
  std::vector<float> books = fit.take_books();
  for (float& value : books) {
    const std::uint16_t bits = f32_to_f16(value);
    if (!f16_is_finite(bits)) {
      throw Error(fault(Errc::out_of_range, "codebook"), {}, "an entry is too large for f16");
    }
    value = f16_to_f32(bits);
  }
  return books;
}

}  // namespace waste::quant
