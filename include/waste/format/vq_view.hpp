// Views of quantized matrices: bytes and shapes, no arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/core/half.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/format/index_layout.hpp"

namespace waste {

/// One residual-VQ matrix [rows][cols], borrowed from a record and its layer's codebooks:
///   W[r][8v+d] = f32(scale[r]) * sum over s = 0..stages-1 of codebooks[s][index(r, v, s)][d].
/// `indices` follow IndexLayout; `scales` are f16, one a row, at any alignment; `codebooks` are
/// f32 [stages][entries][8], 64-byte aligned. Nothing is owned.
///
/// An index may exceed `entries` only where entries is below 256 (8-bit) or 64 (6-bit). Codebook
/// tables are therefore allocated with 256 (64) entries a stage, the unused ones zero
/// (`table_entries`), so a wild index reads a zero vector and never another's memory.
struct VqMatrix {
  const std::uint8_t* indices = nullptr;
  const std::uint8_t* scales = nullptr;
  const float* codebooks = nullptr;
  std::size_t n_rows = 0;
  std::size_t n_cols = 0;
  format::ExpertQuant quant;

  std::size_t rows() const noexcept { return n_rows; }
  std::size_t cols() const noexcept { return n_cols; }
  std::size_t positions() const noexcept { return n_cols / format::vec_dim; }
  format::IndexLayout layout() const noexcept { return {quant, n_rows, n_cols}; }
  /// Entries allocated per stage in `codebooks`: 2^index_bits.
  std::size_t table_entries() const noexcept { return std::size_t{1} << quant.index_bits; }
  float scale(std::size_t row) const noexcept {
    return f16_to_f32(load_le<std::uint16_t>(scales + 2 * row));
  }
  std::uint8_t index(std::size_t row, std::size_t position, std::size_t stage) const noexcept {
    return format::index_at(indices + layout().offset(row, position), stage, quant.index_bits);
  }
};

/// The three matrices of one expert.
struct ExpertView {
  VqMatrix gate;
  VqMatrix up;
  VqMatrix down;
};

}  // namespace waste
