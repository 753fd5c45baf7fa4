#include "waste/quant/vq_calibrated.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
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

/// R_BB of one position, and v R_BB for row vectors v.
struct Corner {
  float r[vec_dim][vec_dim];

  Corner(const MomentFactor& factor, std::size_t first) {
    for (std::size_t i = 0; i < vec_dim; ++i) {
      for (std::size_t j = 0; j < vec_dim; ++j) r[i][j] = factor.at(first + i, first + j);
    }
  }
  void apply(const float* v, float* out) const noexcept {
    for (std::size_t j = 0; j < vec_dim; ++j) out[j] = v[0] * r[0][j];
    for (std::size_t i = 1; i < vec_dim; ++i) {
      for (std::size_t j = 0; j < vec_dim; ++j) out[j] += v[i] * r[i][j];
    }
  }
};

}  // namespace

struct CalibratedEncoder::State {
  MomentFactor factor;
  const float* codebooks;
  EncodeOptions options;
  EffortPlan plan;
  const kernels::EncodeKernels* kernel;
  std::vector<Corner> corners;
  std::vector<IntegerBooks> books;

  std::size_t table() const noexcept { return std::size_t{1} << options.quant.index_bits; }
  std::size_t positions() const noexcept { return corners.size(); }

  // z[r][later columns of the block] += v[r][B] R_B: v [count][8], z [count][cols].
  void feed(std::size_t position, const float* v, std::size_t count, float* z) const {
    const std::size_t next = (position + 1) * vec_dim;
    const std::size_t end = factor.block_end(position * vec_dim);
    if (next >= end) return;
    kernel->feed(v, count, factor.row(position * vec_dim) + (next - factor.block_begin(next)),
                 factor.row_stride(), end - next, z + next, factor.cols());
  }
};

namespace {

/// A few rows on their way through all positions.
struct Rows {
  std::size_t count, cols;
  std::vector<float> scale, carried, sums, left;  // [count], then [count][cols]: z, p, (E R)

  Rows(std::size_t n, std::size_t c)
      : count(n), cols(c), scale(n), carried(n * c), sums(n * c), left(n * c) {}
};

}  // namespace

CalibratedEncoder::CalibratedEncoder(MomentFactor factor, const float* codebooks,
                                     const EncodeOptions& options) {
  const format::ExpertQuant& q = options.quant;
  check(validate(q));
  const std::size_t cols = factor.cols();
  if (cols == 0 || cols % vec_dim != 0) {
    throw Error(fault(Errc::shape, "cols", cols, round_up<std::size_t>(cols + 1, vec_dim)));
  }
  auto state = std::make_unique<State>();
  state->factor = std::move(factor);
  state->codebooks = codebooks;
  state->options = options;
  state->plan = effort_plan(options.effort);
  state->kernel = &encode_kernels(options);
  const std::size_t table = state->table();
  std::vector<float> turned(q.stages * table * vec_dim);
  for (std::size_t v = 0; v < cols / vec_dim; ++v) {
    const Corner& corner = state->corners.emplace_back(state->factor, v * vec_dim);
    for (std::size_t i = 0; i < q.stages * table; ++i) {
      corner.apply(codebooks + i * vec_dim, turned.data() + i * vec_dim);
    }
    state->books.emplace_back(turned.data(), q.stages, q.entries, table);
  }
  state_ = std::move(state);
}

CalibratedEncoder::~CalibratedEncoder() = default;
CalibratedEncoder::CalibratedEncoder(CalibratedEncoder&&) noexcept = default;
CalibratedEncoder& CalibratedEncoder::operator=(CalibratedEncoder&&) noexcept = default;

namespace {

double dot(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

EncodeStats CalibratedEncoder::encode(MatrixView<const float> w, std::uint8_t* indices,
                                      std::uint8_t* scales) const {
  const State& s = *state_;
  const format::ExpertQuant& q = s.options.quant;
  const std::size_t cols = s.factor.cols();
  if (w.cols != cols) throw Error(fault(Errc::shape, "cols", w.cols, cols));
  const format::IndexLayout layout(q, w.rows, cols);
  std::memset(indices, 0, layout.bytes());

  constexpr std::size_t rows_per_task = 16;
  std::vector<EncodeStats> stats(w.rows);
  parallel_for(ceil_div(w.rows, rows_per_task), s.options.threads, [&](std::size_t task) {
    const std::size_t first = task * rows_per_task;
    Rows rows(std::min(rows_per_task, w.rows - first), cols);
    std::uint16_t bits[rows_per_task];
    for (std::size_t r = 0; r < rows.count; ++r) {
      bits[r] = row_scale(w.data + (first + r) * w.stride, cols);
      rows.scale[r] = f16_to_f32(bits[r]);
    }
    float targets[rows_per_task * vec_dim];
    IntegerBooks::Scratch scratch;
    std::uint8_t index[rows_per_task * format::max_stages];
    float error[rows_per_task * vec_dim], entries[rows_per_task * vec_dim];
    for (std::size_t v = 0; v < s.positions(); ++v) {
      const std::size_t at = v * vec_dim;
      for (std::size_t r = 0; r < rows.count; ++r) {
        float* left = rows.left.data() + r * cols + at;
        const float* carried = rows.carried.data() + r * cols + at;
        s.corners[v].apply(w.data + (first + r) * w.stride + at, left);
        for (std::size_t d = 0; d < vec_dim; ++d) left[d] += carried[d];
        const float scale = rows.scale[r];
        const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
        for (std::size_t d = 0; d < vec_dim; ++d) targets[r * vec_dim + d] = left[d] * inverse;
      }
      s.books[v].nearest(*s.kernel, targets, rows.count, 1.0f, s.plan.beam, scratch, index);
      for (std::size_t r = 0; r < rows.count; ++r) {
        const std::uint8_t* chosen = index + r * q.stages;
        std::uint8_t* run = indices + layout.offset(first + r, v);
        if (q.index_bits == 6) {
          const auto packed = format::pack6(chosen);
          std::memcpy(run, packed.data(), packed.size());
        } else {
          std::memcpy(run, chosen, q.stages);
        }
        float* sum = rows.sums.data() + r * cols + at;
        for (std::size_t t = 0; t < q.stages; ++t) {
          const float* c = s.codebooks + (t * s.table() + chosen[t]) * vec_dim;
          for (std::size_t d = 0; d < vec_dim; ++d) sum[d] += c[d];
        }
        const float* row = w.data + (first + r) * w.stride + at;
        float own[vec_dim], turned[vec_dim];
        for (std::size_t d = 0; d < vec_dim; ++d) {
          own[d] = rows.scale[r] * sum[d];
          error[r * vec_dim + d] = row[d] - own[d];
        }
        s.corners[v].apply(own, turned);
        float* left = rows.left.data() + r * cols + at;
        for (std::size_t d = 0; d < vec_dim; ++d) left[d] -= turned[d];
      }
      s.feed(v, error, rows.count, rows.carried.data());
    }
    // P = sums R, in the place of what was carried: then W R = left + scale P, and the best scale
    // for these codes follows.
    std::fill(rows.carried.begin(), rows.carried.end(), 0.0f);
    for (std::size_t v = 0; v < s.positions(); ++v) {
      const std::size_t at = v * vec_dim;
      for (std::size_t r = 0; r < rows.count; ++r) {
        float turned[vec_dim];
        std::memcpy(entries + r * vec_dim, rows.sums.data() + r * cols + at, sizeof turned);
        s.corners[v].apply(entries + r * vec_dim, turned);
        float* p = rows.carried.data() + r * cols + at;
        for (std::size_t d = 0; d < vec_dim; ++d) p[d] += turned[d];
      }
      s.feed(v, entries, rows.count, rows.carried.data());
    }
    for (std::size_t r = 0; r < rows.count; ++r) {
      const float* left = rows.left.data() + r * cols;
      const float* p = rows.carried.data() + r * cols;
      const double scale = rows.scale[r];
      const double ee = dot(left, left, cols), ep = dot(left, p, cols), pp = dot(p, p, cols);
      EncodeStats& out = stats[first + r];
      out.squared_norm = ee + 2 * scale * ep + scale * scale * pp;
      out.squared_error = ee;
      if (pp > 0 && scale + ep / pp > 0) {
        const std::uint16_t fitted = f32_to_f16(static_cast<float>(scale + ep / pp));
        const double change = static_cast<double>(f16_to_f32(fitted)) - scale;
        const double after = ee - 2 * change * ep + change * change * pp;
        if (f16_is_finite(fitted) && after < ee) {
          bits[r] = fitted;
          out.squared_error = std::max(0.0, after);
        }
      }
      store_le(scales + 2 * (first + r), bits[r]);
    }
  });
  EncodeStats total;
  for (const EncodeStats& one : stats) total += one;
  return total;
}

}  // namespace waste::quant
