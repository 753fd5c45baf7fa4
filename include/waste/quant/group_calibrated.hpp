// Group formats quantized against the error of the output instead of the weights.
#pragma once

#include <cstdint>

#include "waste/core/matrix_view.hpp"
#include "waste/format/constants.hpp"
#include "waste/quant/input_moments.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::quant {

/// As quantize_groups(fmt, w, payload, scales, GroupScale::search), for the factor R of the inputs'
/// moments: columns are rounded from left to right, each aimed at the error that earlier ones have
/// left in |E R|^2, and a group's scale is searched for the weights that would cancel that error,
/// column j weighed by R[j][j]^2. A diagonal R feeds nothing forward.
/// The sums returned are |E R|^2 and |W R|^2. Rows are independent; the bytes do not depend on
/// options.threads or options.tier, and no other option is read.
/// Throws Error as quantize_groups does, and (shape) unless factor.cols() == w.cols.
EncodeStats quantize_groups_calibrated(format::Fmt fmt, MatrixView<const float> w,
                                       const MomentFactor& factor, const EncodeOptions& options,
                                       std::uint8_t* payload, std::uint8_t* scales);

}  // namespace waste::quant
