// The group formats of the trunk: float rows to Q8G, Q4G, Q3G bytes and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/core/matrix_view.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/trunk_view.hpp"

namespace waste::quant {

/// How the scale of a group of 128 columns is chosen.
///   absmax  scale32 = max(max|x|, 1e-8) / q, code = clamp(round_half_even(x / scale32)) with the
///           unrounded scale32 (q = 127, 7, 3), stored scale = f16(scale32): the bytes that the
///           format's specification describes
///   search  the f16 scale, of either sign, with the least squared error found, codes rounded
///           against that f16 value. Never worse than absmax in any group
enum class GroupScale : std::uint8_t { absmax, search };

/// The lowest and highest code of a group format and the divisor q of its absmax scale.
struct GroupCodes {
  int lowest;
  int highest;
  int divisor;
};
/// Precondition: format::is_grouped(fmt).
constexpr GroupCodes group_codes(format::Fmt fmt) noexcept {
  if (fmt == format::Fmt::q8g) return {-127, 127, 127};
  if (fmt == format::Fmt::q4g) return {-8, 7, 7};
  return {-4, 3, 3};
}

/// Quantizes w [rows][cols], finite, to `fmt` (Q8G, Q4G or Q3G). Writes rows *
/// format::trunk_row_bytes(fmt, cols) bytes to `payload` and rows * ceil(cols/128) f16 scales to
/// `scales`; columns past `cols` hold code 0. Rows are independent, so callers may split them.
/// Outputs may have any alignment and must not overlap the input.
/// Throws Error: bad_argument for another format; out_of_range for a value that is not finite or a
/// scale beyond the largest f16.
void quantize_groups(format::Fmt fmt, MatrixView<const float> w, std::uint8_t* payload,
                     std::uint8_t* scales, GroupScale choice = GroupScale::absmax);

/// Row `row` of a grouped tensor: out[c] = f32(scale[c / 128]) * code[c], out[0 .. cols).
/// Precondition: format::is_grouped(w.fmt).
void dequantize_group_row(const TrunkMatrix& w, std::size_t row, float* out) noexcept;

/// Packs the codes [ceil(cols/128) * 128] of one row into its payload bytes.
void pack_group_row(format::Fmt fmt, const std::int8_t* codes, std::size_t cols,
                    std::uint8_t* payload) noexcept;
/// The inverse of pack_group_row.
void unpack_group_row(format::Fmt fmt, const std::uint8_t* payload, std::size_t cols,
                      std::int8_t* codes) noexcept;

/// The best scale found for x [128] and its codes against that f16 value, by squared error; starts
/// from `scale` and `codes` (absmax) and keeps them unless something is strictly better. Returns
/// f16 bits.
std::uint16_t search_group_scale(format::Fmt fmt, const float* x, std::uint16_t scale,
                                 std::int8_t* codes) noexcept;

/// The f16 scale (bits) whose nearest codes give the least sum of weight[i] * error[i]^2 found over
/// x [128]; `weight` null: all 1. 0 where no f16 scale other than 0 serves.
std::uint16_t best_group_scale(format::Fmt fmt, const float* x, const float* weight) noexcept;

}  // namespace waste::quant
