#include "waste/quant/vq_encode.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "search_books.hpp"
#include "vq_effort.hpp"
#include "waste/core/checked.hpp"
#include "waste/core/error.hpp"
#include "waste/core/half.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/index_layout.hpp"

namespace waste::quant {
namespace {
using format::vec_dim;

/// Encodes rows one at a time; one object per task.
class RowEncoder {
 public:
  RowEncoder(std::size_t cols, const float* books, const IntegerBooks& search,
             const kernels::EncodeKernels& kernel, const EncodeOptions& options)
      : q_(options.quant),
        plan_(effort_plan(options.effort)),
        cols_(cols),
        books_(books),
        search_(search),
        kernel_(kernel),
        indices_(cols / vec_dim * q_.stages),
        trial_(indices_.size()),
        sums_(cols) {}

  /// Chooses scale() and indices() of one row and adds its error to `stats`.
  void encode(const float* row, EncodeStats& stats) {
    scale_ = row_scale(row, cols_);
    double best = choose(row, scale_, indices_);
    best = refit(row, best);
    for (int round = 0; round < plan_.recode_rounds && scale_ != 0; ++round) {
      // Codes chosen for the refitted scale; kept only where they are better.
      const std::uint16_t before = scale_;
      std::swap(indices_, trial_);
      const double error = refit(row, choose(row, scale_, indices_));
      if (!(error < best)) {
        std::swap(indices_, trial_);
        scale_ = before;
        break;
      }
      best = error;
    }
    double norm = 0;
    for (std::size_t c = 0; c < cols_; ++c) norm += static_cast<double>(row[c]) * row[c];
    stats.squared_error += best;
    stats.squared_norm += norm;
  }

  std::uint16_t scale() const noexcept { return scale_; }
  const std::uint8_t* indices() const noexcept { return indices_.data(); }

 private:
  // Indices for a scale, their sums into sums_, and the squared error as decoded.
  double choose(const float* row, std::uint16_t bits, std::vector<std::uint8_t>& indices) {
    const float scale = f16_to_f32(bits);
    const std::size_t positions = cols_ / vec_dim;
    search_.nearest(kernel_, row, positions, scale > 0 ? 1.0f / scale : 0.0f, plan_.beam, scratch_,
                    indices.data());
    const std::size_t table = std::size_t{1} << q_.index_bits;
    for (std::size_t v = 0; v < positions; ++v) {
      float sum[vec_dim] = {};
      for (std::size_t s = 0; s < q_.stages; ++s) {
        const float* c = books_ + (s * table + indices[v * q_.stages + s]) * vec_dim;
        for (std::size_t d = 0; d < vec_dim; ++d) sum[d] += c[d];
      }
      std::memcpy(sums_.data() + v * vec_dim, sum, sizeof sum);
    }
    return decoded_error(row, scale);
  }

  double decoded_error(const float* row, float scale) const {
    double error = 0;
    for (std::size_t c = 0; c < cols_; ++c) {
      const double e = row[c] - static_cast<double>(scale * sums_[c]);
      error += e * e;
    }
    return error;
  }

  // The scale that minimises the error of the codes in hand, where its f16 value is better.
  double refit(const float* row, double error) {
    double dot = 0, norm = 0;
    for (std::size_t c = 0; c < cols_; ++c) {
      dot += static_cast<double>(row[c]) * sums_[c];
      norm += static_cast<double>(sums_[c]) * sums_[c];
    }
    if (!(norm > 0) || !(dot > 0)) return error;
    const std::uint16_t bits = f32_to_f16(static_cast<float>(dot / norm));
    if (bits == scale_ || !f16_is_finite(bits)) return error;
    const double fitted = decoded_error(row, f16_to_f32(bits));
    if (!(fitted < error)) return error;
    scale_ = bits;
    return fitted;
  }

  format::ExpertQuant q_;
  EffortPlan plan_;
  std::size_t cols_;
  const float* books_;
  const IntegerBooks& search_;
  const kernels::EncodeKernels& kernel_;
  std::uint16_t scale_ = 0;
  IntegerBooks::Scratch scratch_;
  std::vector<std::uint8_t> indices_, trial_;
  std::vector<float> sums_;
};

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
  const format::ExpertQuant& q = options.quant;
  check(validate(q));
  if (w.cols == 0 || w.cols % vec_dim != 0) {
    throw Error(fault(Errc::shape, "cols", w.cols, round_up<std::size_t>(w.cols + 1, vec_dim)));
  }
  const kernels::EncodeKernels& kernel = encode_kernels(options);
  const IntegerBooks search(codebooks, q.stages, q.entries, std::size_t{1} << q.index_bits);
  const format::IndexLayout layout(q, w.rows, w.cols);
  std::memset(indices, 0, layout.bytes());

  constexpr std::size_t rows_per_task = 16;
  std::vector<EncodeStats> stats(w.rows);
  parallel_for(ceil_div(w.rows, rows_per_task), options.threads, [&](std::size_t task) {
    RowEncoder encoder(w.cols, codebooks, search, kernel, options);
    const std::size_t end = std::min(w.rows, (task + 1) * rows_per_task);
    for (std::size_t r = task * rows_per_task; r < end; ++r) {
      encoder.encode(w.data + r * w.stride, stats[r]);
      store_le(scales + 2 * r, encoder.scale());
      for (std::size_t v = 0; v < layout.positions; ++v) {
        const std::uint8_t* index = encoder.indices() + v * q.stages;
        std::uint8_t* run = indices + layout.offset(r, v);
        if (q.index_bits == 6) {
          const auto packed = format::pack6(index);
          std::memcpy(run, packed.data(), packed.size());
        } else {
          std::memcpy(run, index, q.stages);
        }
      }
    }
  });
  EncodeStats total;
  for (const EncodeStats& s : stats) total += s;
  return total;
}

}  // namespace waste::quant
