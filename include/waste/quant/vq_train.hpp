// Codebooks for residual VQ: a sample of weight vectors and the training on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "waste/core/matrix_view.hpp"
#include "waste/format/constants.hpp"
#include "waste/quant/random.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::quant {

/// Vectors of 8 weights, each divided by its row's scale (row_scale), gathered from matrices one
/// at a time so that no caller holds more than one. The same matrices in the same order with the
/// same seed give the same sample.
class VectorSample {
 public:
  explicit VectorSample(std::uint64_t seed) noexcept : random_(seed) {}

  /// Appends min(count, rows * cols / 8) vectors of w [rows][cols]: one from each of `count` equal
  /// strata of the matrix, or all in order. Vectors of rows whose scale is 0 are left out.
  /// Throws Error (shape) for cols that 8 does not divide, (out_of_range) for values not finite.
  void append(MatrixView<const float> w, std::size_t count);

  std::size_t size() const noexcept { return values_.size() / format::vec_dim; }
  /// [size()][8].
  MatrixView<const float> view() const noexcept {
    return {values_.data(), size(), format::vec_dim};
  }

 private:
  std::vector<float> values_;
  Random random_;
};

/// Codebooks f32 [stages][2^index_bits][8] for `sample` [n][8], entries past quant.entries zero,
/// every value exactly f16. Depends on the sample, quant, effort and seed alone.
/// Throws Error: bad_argument for a sample of fewer vectors than entries or not 8 columns wide,
/// out_of_range for values that are not finite or beyond f16, and what validate(quant) finds.
std::vector<float> train_codebooks(MatrixView<const float> sample, const EncodeOptions& options);

}  // namespace waste::quant
