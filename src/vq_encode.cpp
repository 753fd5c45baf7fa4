#include "waste/quant/vq_encode.hpp"

#include <cmath>
#include <cstring>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/core/half.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/index_layout.hpp"

namespace waste::quant {
namespace {
using format::vec_dim;

void encode_row(const float* row, std::size_t row_index, const format::IndexLayout& layout,
                const float* books, const format::ExpertQuant& q, std::uint8_t* indices,
                std::uint8_t* scales, EncodeStats& stats) {
  const std::size_t table = std::size_t{1} << q.index_bits;
  const std::uint16_t bits = row_scale(row, layout.positions * vec_dim);
  const float scale = f16_to_f32(bits);
  store_le(scales + 2 * row_index, bits);
  for (std::size_t v = 0; v < layout.positions; ++v) {
    float rest[vec_dim];
    std::uint8_t index[format::max_stages] = {};
    for (std::size_t d = 0; d < vec_dim; ++d) {
      rest[d] = scale > 0 ? row[v * vec_dim + d] / scale : 0.0f;
    }
    for (std::size_t s = 0; s < q.stages; ++s) {
      float least = INFINITY;
      for (std::size_t e = 0; e < q.entries; ++e) {
        const float* c = books + (s * table + e) * vec_dim;
        float sum = 0;
        for (std::size_t d = 0; d < vec_dim; ++d) sum += (rest[d] - c[d]) * (rest[d] - c[d]);
        if (sum < least) {
          least = sum;
          index[s] = static_cast<std::uint8_t>(e);
        }
      }
      const float* c = books + (s * table + index[s]) * vec_dim;
      for (std::size_t d = 0; d < vec_dim; ++d) rest[d] -= c[d];
    }
    for (std::size_t d = 0; d < vec_dim; ++d) {
      const double x = row[v * vec_dim + d];
      float sum = 0;
      for (std::size_t s = 0; s < q.stages; ++s) {
        sum += books[(s * table + index[s]) * vec_dim + d];
      }
      const double error = x - static_cast<double>(scale * sum);
      stats.squared_error += error * error;
      stats.squared_norm += x * x;
    }
    std::uint8_t* run = indices + layout.offset(row_index, v);
    if (q.index_bits == 6) {
      const auto packed = format::pack6(index);
      std::memcpy(run, packed.data(), packed.size());
    } else {
      std::memcpy(run, index, q.stages);
    }
  }
}

}  // namespace

double EncodeStats::relative_error() const noexcept {
  return squared_error > 0 ? std::sqrt(squared_error / squared_norm) : 0.0;
}

std::uint16_t row_scale(const float* row, std::size_t cols) {
  double sum = 0;
  for (std::size_t c = 0; c < cols; ++c) sum += static_cast<double>(row[c]) * row[c];
  const std::uint16_t bits =
      f32_to_f16(static_cast<float>(std::sqrt(sum / static_cast<double>(cols))));
  if (!f16_is_finite(bits)) {
    throw Error(fault(Errc::out_of_range, "weights"), {},
                "a row has values that are not finite or too large for an f16 scale");
  }
  return bits;
}

EncodeStats encode_matrix(MatrixView<const float> w, const float* codebooks,
                          const EncodeOptions& options, std::uint8_t* indices,
                          std::uint8_t* scales) {
  check(validate(options.quant));
  if (w.cols == 0 || w.cols % vec_dim != 0) {
    throw Error(fault(Errc::shape, "cols", w.cols, round_up(w.cols, vec_dim)));
  }
  const format::IndexLayout layout(options.quant, w.rows, w.cols);
  std::memset(indices, 0, layout.bytes());
  std::vector<EncodeStats> stats(w.rows);
  parallel_for(w.rows, options.threads, [&](std::size_t r) {
    encode_row(w.data + r * w.stride, r, layout, codebooks, options.quant, indices, scales,
               stats[r]);
  });
  EncodeStats total;
  for (const EncodeStats& s : stats) total += s;
  return total;
}

}  // namespace waste::quant
