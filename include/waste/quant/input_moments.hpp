// Second moments of a matrix's inputs: what an error of a weight costs at the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "waste/core/matrix_view.hpp"

namespace waste::quant {

/// Sums of x x^T over the inputs x [cols] of one matrix, in square blocks of `block` columns along
/// the diagonal (the last may be smaller): block == cols keeps the full matrix, 1 the diagonal.
/// With H = mean of x x^T, a weight error E [rows][cols] costs tr(E H E^T) of squared output.
/// Takes about 8 * cols * block bytes.
class InputMoments {
 public:
  InputMoments() = default;
  /// Throws Error (bad_argument) unless 0 < block <= cols and block is 1, cols or a multiple of 8.
  InputMoments(std::size_t cols, std::size_t block);

  /// Adds the inputs x [tokens][cols]. Throws Error: shape, or out_of_range for values that are not
  /// finite (nothing is added then).
  void add(MatrixView<const float> x);
  /// Adds what another object has seen. Throws Error (shape) where cols or block differ.
  void add(const InputMoments& other);

  std::size_t cols() const noexcept { return cols_; }
  std::size_t block() const noexcept { return block_; }
  /// Inputs seen.
  std::uint64_t count() const noexcept { return count_; }
  /// Mean of x[i] x[j], i and j < cols(); 0 outside the blocks and where nothing was seen.
  double mean(std::size_t i, std::size_t j) const noexcept;
  /// True when some input was not zero: what a MomentFactor needs.
  bool any() const noexcept;
  /// The lower triangles of the blocks as sums, block after block, [i][0 .. i] row by row: what a
  /// file holds. set_sums() is the inverse and throws Error (shape) for another size.
  std::span<const double> sums() const noexcept { return sums_; }
  void set_sums(std::span<const double> sums, std::uint64_t count);

 private:
  // Index of the first stored element of row i.
  std::size_t row_at(std::size_t i) const noexcept;

  std::size_t cols_ = 0;
  std::size_t block_ = 0;
  std::uint64_t count_ = 0;
  std::vector<double> sums_;
};

/// An upper triangular R with R R^T = H + damping * mean(diag H) * I, so that
/// tr(E H' E^T) = |E R|^2: column j of E R depends on columns 0 .. j of E alone, and an encoder
/// that goes from left to right can aim each column at the error that earlier ones have left. (This
/// is the update of GPTQ, Frantar et al. 2022, without the inverse: its Cholesky factor of H^-1 is
/// R^-1.)
class MomentFactor {
 public:
  MomentFactor() = default;
  /// Throws Error (bad_argument) for moments of no inputs, of zeros only, or a damping that is not
  /// positive. The same bits for any `threads`.
  MomentFactor(const InputMoments& moments, double damping, unsigned threads);

  std::size_t cols() const noexcept { return cols_; }
  /// The columns [begin, end) of the block that column i belongs to.
  std::size_t block_begin(std::size_t i) const noexcept { return i / block_ * block_; }
  std::size_t block_end(std::size_t i) const noexcept {
    const std::size_t end = block_begin(i) + block_;
    return end < cols_ ? end : cols_;
  }
  /// &R[i][block_begin(i)], i < cols(): elements left of the diagonal are zero.
  const float* row(std::size_t i) const noexcept { return values_.data() + i * block_; }
  /// Elements from one row to the next.
  std::size_t row_stride() const noexcept { return block_; }
  /// R[i][j], i and j < cols().
  float at(std::size_t i, std::size_t j) const noexcept {
    return block_begin(i) == block_begin(j) ? row(i)[j - block_begin(i)] : 0.0f;
  }

 private:
  std::size_t cols_ = 0;
  std::size_t block_ = 1;
  std::vector<float> values_;  ///< [cols][block]
};

}  // namespace waste::quant
