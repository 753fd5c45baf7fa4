// Encoding a matrix as residual VQ against the error of its output instead of its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "waste/core/matrix_view.hpp"
#include "waste/quant/input_moments.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::quant {

/// Encodes matrices that share their inputs' moments and their codebooks (the experts of one layer
/// and kind), for which it prepares once. Takes about (stages * 2^index_bits * 36 / 8 + 4 * block)
/// bytes a column.
///
/// For the factor R of the moments, |E R|^2 is minimised position after position: at columns B =
/// 8v .. 8v+7 with the errors E of earlier positions known, the codes minimise
///     | (W_B - scale * sum of entries) R_BB + sum over earlier A of E_A R_AB |^2
/// by beam search over codebooks transformed by R_BB. Row scales are then refitted in the same
/// metric. A diagonal R weighs columns and feeds nothing forward.
class CalibratedEncoder {
 public:
  /// `codebooks` as for encode_matrix; kept by pointer. Throws what encode_matrix throws for the
  /// quantization, and Error (shape) unless factor.cols() is a multiple of 8.
  CalibratedEncoder(MomentFactor factor, const float* codebooks, const EncodeOptions& options);
  ~CalibratedEncoder();
  CalibratedEncoder(CalibratedEncoder&&) noexcept;
  CalibratedEncoder& operator=(CalibratedEncoder&&) noexcept;

  /// Writes the bytes of w [rows][cols] as encode_matrix does. The sums returned are |E R|^2 and
  /// |W R|^2: their relative_error() is that of the output. Safe to call from several threads.
  /// Throws Error: shape for other columns than the factor's, out_of_range as row_scale() does.
  EncodeStats encode(MatrixView<const float> w, std::uint8_t* indices, std::uint8_t* scales) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace waste::quant
