#include "waste/nn/rope.hpp"

#include <cmath>
#include <string>

#include "waste/core/error.hpp"

namespace waste::nn {

Rope::Rope(std::size_t dim, double theta, std::size_t positions)
    : dim_(dim), positions_(positions) {
  if (dim == 0 || dim % 2 != 0) {
    throw Error(fault(Errc::bad_argument, "rope dim"), {},
                std::to_string(dim) + ", wanted an even number above 0");
  }
  if (!(theta > 0.0) || !std::isfinite(theta)) throw Error(fault(Errc::bad_argument, "rope theta"));
  const std::size_t half = dim / 2;
  cos_.reserve(positions * half);
  sin_.reserve(positions * half);
  for (std::size_t p = 0; p < positions; ++p) {
    for (std::size_t i = 0; i < half; ++i) {
      const double a = static_cast<double>(p) *
                       std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      cos_.push_back(static_cast<float>(std::cos(a)));
      sin_.push_back(static_cast<float>(std::sin(a)));
    }
  }
}

void Rope::operator()(MatrixView<float> x, std::size_t first) const {
  if (dim_ == 0 || x.cols % dim_ != 0) throw Error(fault(Errc::shape, "rope cols", x.cols, dim_));
  if (first > positions_ || x.rows > positions_ - first) {
    throw Error(fault(Errc::out_of_range, "position", first + x.rows, positions_));
  }
  const std::size_t half = dim_ / 2;
  for (std::size_t t = 0; t < x.rows; ++t) {
    const float* c = cos_.data() + (first + t) * half;
    const float* s = sin_.data() + (first + t) * half;
    for (std::size_t at = 0; at < x.cols; at += dim_) {
      float* low = x.row(t).data() + at;
      float* high = low + half;
      for (std::size_t i = 0; i < half; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a * c[i] - b * s[i];
        high[i] = b * c[i] + a * s[i];
      }
    }
  }
}

}  // namespace waste::nn
