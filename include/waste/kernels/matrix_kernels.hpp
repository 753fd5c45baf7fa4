// Matrix kernels of one tier: trunk products, VQ tables and VQ products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/format/trunk_view.hpp"
#include "waste/format/vq_view.hpp"

namespace waste::kernels {

/// How a VQ product looks its table up.
///   exact   f32 table; the sum of the formula in f32
///   hilo14  two byte planes of a 14-bit table; about 0.05 % output error
///   split8  two byte groups with a step of their own; about 1.5 % output error, fastest
enum class Precision : std::uint8_t { exact, hilo14, split8 };

/// Kernels are noexcept and check nothing but by assert: shapes are checked once a call by the
/// functions of nn/. No pointer needs an alignment; none may alias an output. Row ranges are
/// [row_begin, row_end), and `y` is indexed by the absolute row; a VQ row range begins and ends at
/// a multiple of 64 or at the last row.
struct MatrixKernels {
  /// y[r] = sum over c of W[r][c] x[c], f32. Sixteen partial sums, one for each column modulo 16,
  /// accumulated with fused multiply-add in column order, then one fixed tree.
  void (*trunk_matvec)(const TrunkMatrix& w, const float* x, float* y, std::size_t row_begin,
                       std::size_t row_end) noexcept;
  /// The same for `tokens` inputs x + t * ldx into y + t * ldy: bit for bit what trunk_matvec
  /// gives.
  void (*trunk_matmul)(const TrunkMatrix& w, const float* x, std::size_t ldx, std::size_t tokens,
                       float* y, std::size_t ldy, std::size_t row_begin,
                       std::size_t row_end) noexcept;
  /// Row `row` dequantized: out[0 .. cols).
  void (*trunk_row)(const TrunkMatrix& w, std::size_t row, float* out) noexcept;

  /// Builds the table of one input vector for one matrix kind (exact):
  ///   LUT[v][s][c] = sum over d = 0..7, in that order, of x[8v+d] * C_s[c][d].
  /// `codebooks` is f32 [stages][2^index_bits][8]; `table` has vq_table_bytes() bytes, 64-byte
  /// aligned.
  void (*vq_table_build)(Precision precision, const format::ExpertQuant& quant,
                         const float* codebooks, const float* x, std::size_t cols,
                         void* table) noexcept;
  /// y[r] = scale[r] * sum over v, s of LUT[v][s][index(r, v, s)], from a table built with the same
  /// precision, quantization and cols.
  void (*vq_matvec)(Precision precision, const VqMatrix& w, const void* table, float* y,
                    std::size_t row_begin, std::size_t row_end) noexcept;
};

/// Bytes of a table for `cols` input columns.
std::size_t vq_table_bytes(Precision precision, const format::ExpertQuant& quant,
                           std::size_t cols) noexcept;

}  // namespace waste::kernels
