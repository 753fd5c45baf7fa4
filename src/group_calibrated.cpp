#include "waste/quant/group_calibrated.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "vq_effort.hpp"
#include "waste/core/checked.hpp"
#include "waste/core/error.hpp"
#include "waste/core/half.hpp"
#include "waste/core/parallel.hpp"
#include "waste/quant/group.hpp"

namespace waste::quant {
namespace {
using format::group;

constexpr std::size_t rows_per_task = 8;

/// A few rows of one matrix on their way through its groups.
class Pass {
 public:
  Pass(format::Fmt fmt, MatrixView<const float> w, const MomentFactor& factor,
       const kernels::EncodeKernels& kernel)
      : fmt_(fmt),
        w_(w),
        r_(factor),
        kernel_(kernel),
        carried_(w.rows * w.cols),
        codes_(w.rows * round_up(w.cols, group)) {}

  void quantize(std::uint8_t* scales, EncodeStats& stats) {
    const std::size_t groups = ceil_div(w_.cols, group);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t first = g * group, count = std::min(group, w_.cols - first);
      std::vector<float> errors(w_.rows * group), whole(w_.rows * group);
      for (std::size_t row = 0; row < w_.rows; ++row) {
        const std::uint16_t scale = choose_scale(row, first, count);
        store_le(scales + 2 * (row * groups + g), scale);
        stats.squared_error +=
            round_row(row, first, count, f16_to_f32(scale), errors.data() + row * group);
      }
      feed(errors, first, count, carried_);
    }
    // |W R|^2, with the same sums.
    std::fill(carried_.begin(), carried_.end(), 0.0f);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t first = g * group, count = std::min(group, w_.cols - first);
      std::vector<float> values(w_.rows * group);
      for (std::size_t row = 0; row < w_.rows; ++row) {
        for (std::size_t i = 0; i < count; ++i) {
          const float value = w_(row, first + i);
          values[row * group + i] = value;
          float* z = carried_.data() + row * w_.cols;
          add_within(z, first + i, first + count, value);
          const double sum =
              z[first + i] + static_cast<double>(value) * r_.at(first + i, first + i);
          stats.squared_norm += sum * sum;
        }
      }
      feed(values, first, count, carried_);
    }
  }

  const std::int8_t* codes(std::size_t row) const noexcept {
    return codes_.data() + row * round_up(w_.cols, group);
  }

 private:
  // z[k] += e R[j][k] for j < k < end.
  void add_within(float* z, std::size_t j, std::size_t end, float e) const noexcept {
    end = std::min(end, r_.block_end(j));
    const float* row = r_.row(j) - r_.block_begin(j);
    for (std::size_t k = j + 1; k < end; ++k) z[k] += e * row[k];
  }

  // Errors [rows][group] of the columns first .. first + count, to the columns after them.
  void feed(std::vector<float>& errors, std::size_t first, std::size_t count,
            std::vector<float>& carried) const {
    std::vector<float> eight(w_.rows * 8);
    for (std::size_t i = 0; i < count; i += 8) {
      // Blocks end at multiples of 8 or with the matrix, so eight columns lie in one.
      const std::size_t j = first + i, next = first + count, end = r_.block_end(j);
      if (r_.row_stride() < 8 || next >= end) continue;
      if (count - i < 8) continue;  // the last columns have none after them
      for (std::size_t row = 0; row < w_.rows; ++row) {
        std::copy_n(&errors[row * group + i], 8, &eight[row * 8]);
      }
      kernel_.feed(eight.data(), w_.rows, r_.row(j) + (next - r_.block_begin(j)), r_.row_stride(),
                   end - next, carried.data() + next, w_.cols);
    }
  }

  std::uint16_t choose_scale(std::size_t row, std::size_t first, std::size_t count) const {
    // The weights that would leave nothing: w + z R_gg^-1, column after column.
    float wanted[group] = {}, weight[group] = {};
    double left[group];
    const float* z = carried_.data() + row * w_.cols + first;
    for (std::size_t i = 0; i < count; ++i) left[i] = z[i];
    for (std::size_t i = 0; i < count; ++i) {
      const double diagonal = r_.at(first + i, first + i);
      const double more = left[i] / diagonal;
      wanted[i] = static_cast<float>(w_(row, first + i) + more);
      weight[i] = static_cast<float>(diagonal * diagonal);
      const float* later = r_.row(first + i) - r_.block_begin(first + i);
      const std::size_t end = std::min(first + count, r_.block_end(first + i));
      for (std::size_t k = first + i + 1; k < end; ++k) left[k - first] -= more * later[k];
    }
    return best_group_scale(fmt_, wanted, weight);
  }

  // Codes of one group of one row; returns its part of |E R|^2.
  double round_row(std::size_t row, std::size_t first, std::size_t count, float scale,
                   float* errors) {
    const GroupCodes range = group_codes(fmt_);
    float* z = carried_.data() + row * w_.cols;
    std::int8_t* codes = codes_.data() + row * round_up(w_.cols, group) + first;
    double total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t j = first + i;
      const float diagonal = r_.at(j, j);
      const float target = w_(row, j) + z[j] / diagonal;
      float code = 0;
      if (scale != 0) {
        code = std::nearbyint(std::clamp(target / scale, static_cast<float>(range.lowest),
                                         static_cast<float>(range.highest)));
      }
      codes[i] = static_cast<std::int8_t>(code);
      errors[i] = w_(row, j) - scale * code;
      const double out = z[j] + static_cast<double>(errors[i]) * diagonal;
      total += out * out;
      add_within(z, j, first + count, errors[i]);
    }
    return total;
  }

  format::Fmt fmt_;
  MatrixView<const float> w_;
  const MomentFactor& r_;
  const kernels::EncodeKernels& kernel_;
  std::vector<float> carried_;
  std::vector<std::int8_t> codes_;
};

}  // namespace

EncodeStats quantize_groups_calibrated(format::Fmt fmt, MatrixView<const float> w,
                                       const MomentFactor& factor, const EncodeOptions& options,
                                       std::uint8_t* payload, std::uint8_t* scales) {
  if (w.cols != factor.cols()) throw Error(fault(Errc::shape, "cols", w.cols, factor.cols()));
  // Refuses what no group format holds, and leaves valid bytes should a task throw.
  quantize_groups(fmt, w, payload, scales, GroupScale::absmax);
  const std::size_t row_bytes = format::trunk_row_bytes(fmt, w.cols);
  const std::size_t scale_bytes = format::trunk_row_scale_bytes(fmt, w.cols);
  const kernels::EncodeKernels& kernel = encode_kernels(options);
  const std::size_t tasks = ceil_div(w.rows, rows_per_task);
  std::vector<EncodeStats> stats(tasks);
  parallel_for(tasks, options.threads, [&](std::size_t task) {
    const std::size_t first = task * rows_per_task;
    const MatrixView<const float> part(w.data + first * w.stride,
                                       std::min(rows_per_task, w.rows - first), w.cols, w.stride);
    Pass pass(fmt, part, factor, kernel);
    pass.quantize(scales + first * scale_bytes, stats[task]);
    for (std::size_t r = 0; r < part.rows; ++r) {
      pack_group_row(fmt, pass.codes(r), w.cols, payload + (first + r) * row_bytes);
    }
  });
  EncodeStats total;
  for (const EncodeStats& one : stats) total += one;
  return total;
}

}  // namespace waste::quant
