// A view of one trunk tensor in any trunk format: bytes and shape, no arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "waste/core/checked.hpp"
#include "waste/format/constants.hpp"

namespace waste {

/// A trunk tensor seen as [rows][cols], cols the tensor's last dimension. Formats:
///   F32  rows*cols f32                       F16  rows*cols IEEE binary16
///   Q8G  per row P int8, P = ceil(cols/128)*128
///   Q4G  per row P/2 bytes, element 2i in the low nibble, 2i+1 in the high, stored code + 8
///   Q3G  per row 3P/8 + 1 bytes, element i at bit 3i of the row, stored code + 4, LSB first
/// and for the quantized ones f16 scales [rows][ceil(cols/128)]; value = f32(scale) * code.
/// `payload` and `scales` may have any alignment; F32 payloads of a loaded trunk are 64-byte
/// aligned. Nothing is owned.
struct TrunkMatrix {
  format::Fmt fmt = format::Fmt::f32;
  const std::uint8_t* payload = nullptr;
  const std::uint8_t* scales = nullptr;
  std::size_t n_rows = 0;
  std::size_t n_cols = 0;

  std::size_t rows() const noexcept { return n_rows; }
  std::size_t cols() const noexcept { return n_cols; }
  std::size_t groups() const noexcept { return ceil_div(n_cols, format::group); }
};

namespace format {

/// Payload bytes of one row of `cols` columns, scales not counted; 0 for a format that no trunk
/// may hold.
constexpr std::uint64_t trunk_row_bytes(Fmt fmt, std::uint64_t cols) noexcept {
  const std::uint64_t padded = round_up<std::uint64_t>(cols, group);
  switch (fmt) {
    case Fmt::f32:
      return 4 * cols;
    case Fmt::f16:
      return 2 * cols;
    case Fmt::q8g:
      return padded;
    case Fmt::q4g:
      return padded / 2;
    case Fmt::q3g:
      return 3 * padded / 8 + 1;
    default:
      return 0;
  }
}

constexpr bool is_grouped(Fmt fmt) noexcept {
  return fmt == Fmt::q8g || fmt == Fmt::q4g || fmt == Fmt::q3g;
}

/// Bytes of a tensor in the trunk: all rows' payloads, then all rows' scales.
struct TrunkSizes {
  std::uint64_t payload = 0;
  std::uint64_t scales = 0;
  constexpr std::uint64_t total() const noexcept { return payload + scales; }
};

/// Bytes of the f16 scales of one row: 2 per group for grouped formats, else 0.
constexpr std::uint64_t trunk_row_scale_bytes(Fmt fmt, std::uint64_t cols) noexcept {
  return is_grouped(fmt) ? 2 * ceil_div<std::uint64_t>(cols, group) : 0;
}

/// Sizes of a [rows][cols] tensor; the caller has bounded rows * cols (to 2^46, say), so nothing
/// overflows.
constexpr TrunkSizes trunk_sizes(Fmt fmt, std::uint64_t rows, std::uint64_t cols) noexcept {
  return {rows * trunk_row_bytes(fmt, cols), rows * trunk_row_scale_bytes(fmt, cols)};
}

}  // namespace format
}  // namespace waste
