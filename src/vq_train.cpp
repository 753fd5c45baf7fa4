#include "waste/quant/vq_train.hpp"

#include <algorithm>
#include <cmath>

#include "waste/core/checked.hpp"
#include "waste/core/error.hpp"
#include "waste/core/half.hpp"

namespace waste::quant {
using format::vec_dim;

void VectorSample::append(MatrixView<const float> w, std::size_t count) {
  if (w.cols % vec_dim != 0) {
    throw Error(fault(Errc::shape, "cols", w.cols, round_up(w.cols, vec_dim)));
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
  const std::size_t table = std::size_t{1} << q.index_bits, n = sample.rows;
  std::vector<float> books(q.stages * table * vec_dim), rest(n * vec_dim);
  for (std::size_t i = 0; i < n; ++i) std::copy_n(sample.row(i).data(), 8, rest.data() + 8 * i);
  Random random(options.seed);
  std::vector<std::uint32_t> label(n);
  for (std::size_t s = 0; s < q.stages; ++s) {
    float* book = books.data() + s * table * vec_dim;
    for (std::size_t e = 0; e < q.entries; ++e) {
      std::copy_n(rest.data() + 8 * random.below(n), 8, book + 8 * e);
    }
    for (int round = 0; round <= 6; ++round) {
      std::vector<double> sum(q.entries * 8);
      std::vector<std::size_t> members(q.entries);
      for (std::size_t i = 0; i < n; ++i) {
        float least = INFINITY;
        for (std::size_t e = 0; e < q.entries; ++e) {
          float distance = 0;
          for (std::size_t d = 0; d < 8; ++d) {
            const float diff = rest[8 * i + d] - book[8 * e + d];
            distance += diff * diff;
          }
          if (distance < least) least = distance, label[i] = static_cast<std::uint32_t>(e);
        }
        ++members[label[i]];
        for (std::size_t d = 0; d < 8; ++d) sum[8 * label[i] + d] += rest[8 * i + d];
      }
      for (std::size_t e = 0; e < q.entries && round < 6; ++e) {
        if (members[e] == 0) {
          std::copy_n(rest.data() + 8 * random.below(n), 8, book + 8 * e);
          continue;
        }
        for (std::size_t d = 0; d < 8; ++d) {
          book[8 * e + d] = f16_to_f32(
              f32_to_f16(static_cast<float>(sum[8 * e + d] / static_cast<double>(members[e]))));
        }
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t d = 0; d < 8; ++d) rest[8 * i + d] -= book[8 * label[i] + d];
    }
  }
  return books;
}

}  // namespace waste::quant
