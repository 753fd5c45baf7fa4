// What the formats mean, slowly and obviously: the oracle of every kernel test.
#pragma once

#include <cassert>
#include <cmath>
#include <cstddef>
#include <span>

#include "waste/core/half.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/format/vq_view.hpp"

namespace waste::quant::reference {

/// The stored number of element (row, col): a code for grouped formats, else the value.
inline double stored(const TrunkMatrix& w, std::size_t row, std::size_t col) noexcept {
  const std::uint8_t* at = w.payload + row * format::trunk_row_bytes(w.fmt, w.n_cols);
  switch (w.fmt) {
    case format::Fmt::f32:
      return load_le<float>(at + 4 * col);
    case format::Fmt::f16:
      return f16_to_f32(load_le<std::uint16_t>(at + 2 * col));
    case format::Fmt::q8g:
      return static_cast<std::int8_t>(at[col]);
    case format::Fmt::q4g:
      return static_cast<int>(col % 2 == 0 ? at[col / 2] & 15 : at[col / 2] >> 4) - 8;
    case format::Fmt::q3g: {
      int code = 0;
      for (std::size_t b = 0; b < 3; ++b) {
        const std::size_t bit = 3 * col + b;
        code |= (at[bit / 8] >> bit % 8 & 1) << b;
      }
      return code - 4;
    }
    default:
      assert(false && "no trunk format");
      return std::nan("");
  }
}

/// W[row][col]: f32(scale) * code for grouped formats (exact in f64), else the stored value.
inline double element(const TrunkMatrix& w, std::size_t row, std::size_t col) noexcept {
  if (!format::is_grouped(w.fmt)) return stored(w, row, col);
  const std::size_t at = row * w.groups() + col / format::group;
  return static_cast<double>(f16_to_f32(load_le<std::uint16_t>(w.scales + 2 * at))) *
         stored(w, row, col);
}

/// W[row][col] = f32(scale[row]) * (C_0[i0][d] + C_1[i1][d] + ..) in f64, d = col % 8.
inline double element(const VqMatrix& w, std::size_t row, std::size_t col) noexcept {
  const std::size_t position = col / format::vec_dim, d = col % format::vec_dim;
  double sum = 0;
  for (std::size_t s = 0; s < w.quant.stages; ++s) {
    const std::size_t entry = s * w.table_entries() + w.index(row, position, s);
    sum += w.codebooks[entry * format::vec_dim + d];
  }
  return static_cast<double>(w.scale(row)) * sum;
}

/// Every element rounded once to f32; out is [rows][cols].
template <class Matrix>
void dequantize(const Matrix& w, MatrixView<float> out) noexcept {
  assert(out.rows == w.rows() && out.cols == w.cols());
  for (std::size_t r = 0; r < w.rows(); ++r) {
    for (std::size_t c = 0; c < w.cols(); ++c) out(r, c) = static_cast<float>(element(w, r, c));
  }
}

/// y = W x with every product and sum in f64; x has cols elements, y rows.
template <class Matrix>
void matvec(const Matrix& w, std::span<const float> x, std::span<double> y) noexcept {
  assert(x.size() == w.cols() && y.size() == w.rows());
  for (std::size_t r = 0; r < w.rows(); ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < w.cols(); ++c) sum += element(w, r, c) * double{x[c]};
    y[r] = sum;
  }
}

/// sum over c of |W[r][c]| |x[c]|: what a tolerance for row r is scaled by.
template <class Matrix>
double magnitude(const Matrix& w, std::span<const float> x, std::size_t row) noexcept {
  double sum = 0;
  for (std::size_t c = 0; c < w.cols(); ++c) sum += std::fabs(element(w, row, c) * double{x[c]});
  return sum;
}

}  // namespace waste::quant::reference
