#include "waste/quant/input_moments.hpp"

#include <algorithm>
#include <cmath>

#include "waste/core/checked.hpp"
#include "waste/core/error.hpp"
#include "waste/core/parallel.hpp"

namespace waste::quant {

InputMoments::InputMoments(std::size_t cols, std::size_t block) : cols_(cols), block_(block) {
  if (block == 0 || block > cols || (block != 1 && block != cols && block % 8 != 0)) {
    throw Error(fault(Errc::bad_argument, "block of input moments", block, cols), {},
                "wanted 1, the number of columns or a multiple of 8 below it");
  }
  const std::size_t whole = cols / block, rest = cols % block;
  sums_.resize(whole * (block * (block + 1) / 2) + rest * (rest + 1) / 2);
}

std::size_t InputMoments::row_at(std::size_t i) const noexcept {
  const std::size_t b = i / block_, k = i % block_;
  return b * (block_ * (block_ + 1) / 2) + k * (k + 1) / 2;
}

void InputMoments::add(MatrixView<const float> x) {
  if (x.cols != cols_) throw Error(fault(Errc::shape, "input", x.cols, cols_));
  for (std::size_t t = 0; t < x.rows; ++t) {
    for (const float value : x.row(t)) {
      if (!std::isfinite(value)) throw Error(fault(Errc::out_of_range, "input"), {}, "not finite");
    }
  }
  for (std::size_t i = 0; i < cols_; ++i) {
    const std::size_t first = i / block_ * block_;
    double* row = sums_.data() + row_at(i);
    std::size_t t = 0;
    for (; t + 4 <= x.rows; t += 4) {  // four inputs a pass, added one after another
      const float* a = x.data + t * x.stride + first;
      const float *b = a + x.stride, *c = b + x.stride, *d = c + x.stride;
      const double fa = x(t, i), fb = x(t + 1, i), fc = x(t + 2, i), fd = x(t + 3, i);
      for (std::size_t j = 0; j <= i - first; ++j) {
        row[j] = (((row[j] + fa * a[j]) + fb * b[j]) + fc * c[j]) + fd * d[j];
      }
    }
    for (; t < x.rows; ++t) {
      const double factor = x(t, i);
      const float* from = x.data + t * x.stride + first;
      for (std::size_t j = 0; j <= i - first; ++j) row[j] += factor * from[j];
    }
  }
  count_ += x.rows;
}

void InputMoments::add(const InputMoments& other) {
  if (other.cols_ != cols_ || other.block_ != block_) {
    throw Error(fault(Errc::shape, "input moments", other.cols_, cols_));
  }
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += other.sums_[i];
  count_ += other.count_;
}

double InputMoments::mean(std::size_t i, std::size_t j) const noexcept {
  if (count_ == 0 || i / block_ != j / block_) return 0;
  if (i < j) std::swap(i, j);
  return sums_[row_at(i) + j % block_] / static_cast<double>(count_);
}

bool InputMoments::any() const noexcept {
  for (std::size_t i = 0; i < cols_; ++i) {
    if (mean(i, i) > 0) return true;
  }
  return false;
}

void InputMoments::set_sums(std::span<const double> sums, std::uint64_t count) {
  if (sums.size() != sums_.size()) {
    throw Error(fault(Errc::shape, "input moments", sums.size(), sums_.size()));
  }
  std::copy(sums.begin(), sums.end(), sums_.begin());
  count_ = count;
}

namespace {

// Replaces a [n][n], of which the lower triangle is read, by its factor: a = R R^T with R[j][i], i
// >= j, left in a[i][j]. Columns of R are found from the last to the first, in panels; each
// element's subtractions run in one order, whatever the threads.
void factor_in_place(std::vector<double>& a, std::size_t n, double least, unsigned threads) {
  constexpr std::size_t panel = 32;
  for (std::size_t end = n; end > 0;) {
    const std::size_t begin = end > panel ? end - panel : 0;
    for (std::size_t j = end; j-- > begin;) {  // row j of a is column j of R
      double* row = a.data() + j * n;
      for (std::size_t k = end; k-- > j + 1;) {
        const double* later = a.data() + k * n;
        const double factor = later[j];
        for (std::size_t i = 0; i <= j; ++i) row[i] -= factor * later[i];
      }
      const double pivot = std::sqrt(std::max(row[j], least));
      row[j] = pivot;
      const double inverse = 1.0 / pivot;
      for (std::size_t i = 0; i < j; ++i) row[i] *= inverse;
    }
    parallel_for(ceil_div<std::size_t>(begin, panel), threads, [&](std::size_t task) {
      const std::size_t last = std::min(begin, (task + 1) * panel);
      for (std::size_t r = task * panel; r < last; ++r) {
        double* row = a.data() + r * n;
        for (std::size_t k = end; k-- > begin;) {
          const double* column = a.data() + k * n;
          const double factor = column[r];
          for (std::size_t i = 0; i <= r; ++i) row[i] -= factor * column[i];
        }
      }
    });
    end = begin;
  }
}

}  // namespace

MomentFactor::MomentFactor(const InputMoments& moments, double damping, unsigned threads)
    : cols_(moments.cols()), block_(std::max<std::size_t>(1, moments.block())) {
  double trace = 0;
  for (std::size_t i = 0; i < cols_; ++i) trace += moments.mean(i, i);
  if (!(trace > 0) || !std::isfinite(trace) || !(damping > 0)) {
    throw Error(fault(Errc::bad_argument, "input moments"), {},
                "wanted moments of some input that is not zero and a positive damping");
  }
  const double floor = damping * trace / static_cast<double>(cols_);
  values_.resize(cols_ * block_);
  std::vector<double> a;
  for (std::size_t first = 0; first < cols_; first += block_) {
    const std::size_t n = std::min(block_, cols_ - first);
    a.assign(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) a[i * n + j] = moments.mean(first + i, first + j);
      a[i * n + i] += floor;
    }
    factor_in_place(a, n, 1e-6 * floor, threads);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        values_[(first + j) * block_ + i] = static_cast<float>(a[i * n + j]);
      }
    }
  }
}

}  // namespace waste::quant
