// Where the indices of a row and vector position lie, and how they are packed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "waste/core/checked.hpp"
#include "waste/format/expert_quant.hpp"

namespace waste::format {

/// Index bytes of one [rows][cols] matrix. With P = cols / vec_dim vector positions and blocks of
/// B = index_block rows, the run of (row r, position v) starts at
///     ((r / B * P + v) * B + r % B) * run,      rows padded to a multiple of B with zero bytes;
/// with index_block 0 at (r * P + v) * run, no padding. Position v covers columns 8v .. 8v+7.
struct IndexLayout {
  std::size_t rows = 0;
  std::size_t positions = 0;
  std::size_t run = 0;
  std::size_t block = 0;

  constexpr IndexLayout() = default;
  constexpr IndexLayout(const ExpertQuant& q, std::size_t matrix_rows, std::size_t cols) noexcept
      : rows(matrix_rows), positions(cols / vec_dim), run(q.run_bytes()), block(q.index_block) {}

  constexpr std::size_t padded_rows() const noexcept {
    return block == 0 ? rows : round_up(rows, block);
  }
  /// Bytes of the whole matrix, padding rows included.
  constexpr std::size_t bytes() const noexcept { return padded_rows() * positions * run; }
  constexpr std::size_t offset(std::size_t row, std::size_t position) const noexcept {
    if (block == 0) return (row * positions + position) * run;
    return ((row / block * positions + position) * block + row % block) * run;
  }
};

/// Four 6-bit indices as three bytes: stage s in bits 6s .. 6s+5 of a little-endian 24-bit word.
constexpr std::array<std::uint8_t, 3> pack6(const std::uint8_t* s) noexcept {
  const std::uint32_t word =
      (s[0] & 63u) | (s[1] & 63u) << 6 | (s[2] & 63u) << 12 | (s[3] & 63u) << 18;
  return {static_cast<std::uint8_t>(word), static_cast<std::uint8_t>(word >> 8),
          static_cast<std::uint8_t>(word >> 16)};
}

/// The inverse of pack6.
constexpr std::array<std::uint8_t, 4> unpack6(const std::uint8_t* b) noexcept {
  const std::uint32_t word =
      b[0] | static_cast<std::uint32_t>(b[1]) << 8 | static_cast<std::uint32_t>(b[2]) << 16;
  return {static_cast<std::uint8_t>(word & 63u), static_cast<std::uint8_t>(word >> 6 & 63u),
          static_cast<std::uint8_t>(word >> 12 & 63u), static_cast<std::uint8_t>(word >> 18)};
}

/// Index of `stage` in a run.
constexpr std::uint8_t index_at(const std::uint8_t* run, std::size_t stage,
                                std::uint32_t index_bits) noexcept {
  return index_bits == 6 ? unpack6(run)[stage] : run[stage];
}

}  // namespace waste::format
