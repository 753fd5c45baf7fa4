// Matrix kernels of one tier: trunk products, VQ tables and VQ products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/format/trunk_view.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/kernels/vq_table.hpp"

namespace waste::kernels {

/// Kernels are noexcept and check nothing but by assert: shapes are checked once a call by the
/// functions of nn/. No pointer needs an alignment; none may alias an output. Row ranges are
/// [row_begin, row_end), and `y` is indexed by the absolute row; a VQ row range begins and ends at
/// a multiple of 64 or at the last row.
struct MatrixKernels {
  /// y[r] = sum over c of W[r][c] x[c], f32. Sixteen partial sums in groups of 128 columns, then
  /// one fixed tree; group_matvec.hpp fixes the order of every operation.
  void (*trunk_matvec)(const TrunkMatrix& w, const float* x, float* y, std::size_t row_begin,
                       std::size_t row_end) noexcept;
  /// The same for `tokens` inputs x + t * ldx into y + t * ldy: bit for bit what trunk_matvec
  /// gives.
  void (*trunk_matmul)(const TrunkMatrix& w, const float* x, std::size_t ldx, std::size_t tokens,
                       float* y, std::size_t ldy, std::size_t row_begin,
                       std::size_t row_end) noexcept;
  /// Row `row` dequantized: out[0 .. cols).
  void (*trunk_row)(const TrunkMatrix& w, std::size_t row, float* out) noexcept;

  /// Builds chunks [chunk_begin, chunk_end) of the table of one input vector for one matrix kind:
  ///   LUT[v][s][c] = sum over d = 0..7, in that order, of x[8v+d] * C_s[c][d].
  /// A chunk is 32 vector positions (256 columns); chunks are independent, so threads may share a
  /// build. `codebooks` is f32 [stages][2^index_bits][8]; `table` has vq_table_bytes() bytes,
  /// 64-byte aligned.
  void (*vq_table_build)(Precision precision, const format::ExpertQuant& quant,
                         const float* codebooks, const float* x, std::size_t cols, void* table,
                         std::size_t chunk_begin, std::size_t chunk_end) noexcept;
  /// y[r] = scale[r] * sum over v, s of LUT[v][s][index(r, v, s)], from a table built with the same
  /// precision, quantization and cols.
  void (*vq_matvec)(Precision precision, const VqMatrix& w, const void* table, float* y,
                    std::size_t row_begin, std::size_t row_end) noexcept;
  /// y[t][r] for `tokens` inputs x + t * ldx without tables: rows are decoded once for all and
  /// multiplied in f32. Rounds like a dense product, so it is close to Precision::exact and not
  /// equal to it; vq_matmul.hpp fixes the order.
  void (*vq_matmul)(const VqMatrix& w, const float* x, std::size_t ldx, std::size_t tokens,
                    float* y, std::size_t ldy, std::size_t row_begin, std::size_t row_end) noexcept;

  /// to[i] = narrow number i at any address, exactly.
  void (*f16_to_f32)(const std::uint8_t* from, std::size_t n, float* to) noexcept;
  void (*bf16_to_f32)(const std::uint8_t* from, std::size_t n, float* to) noexcept;
  /// One row of `cols` (a multiple of 32) MXFP4 numbers: packed [cols/2], scale [cols/32], none
  /// 255.
  void (*mxfp4_row)(const std::uint8_t* packed, const std::uint8_t* scale, std::size_t cols,
                    float* to) noexcept;
};

/// Bytes of a table for `cols` input columns.
constexpr std::size_t vq_table_bytes(Precision precision, const format::ExpertQuant& quant,
                                     std::size_t cols) noexcept {
  return TableLayout(precision, quant, cols).bytes();
}

}  // namespace waste::kernels
