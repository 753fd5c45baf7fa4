// Encoding a matrix as residual VQ: row scales and indices for given codebooks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "waste/arch/tier.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/format/expert_quant.hpp"

namespace waste::quant {

/// How much work choosing indices and codebooks may cost.
///   fast      greedy: stage after stage, nearest entry
///   standard  beam search of width 16, codebooks of all stages fitted together
///   best      width 32, longer fitting, rows coded again for their refitted scales
enum class Effort : std::uint8_t { fast, standard, best };

struct EncodeOptions {
  format::ExpertQuant quant = format::vq3r;
  Effort effort = Effort::standard;
  std::uint64_t seed = 0;          ///< of training; encoding draws no random numbers
  unsigned threads = 1;            ///< 0: available_threads(). Never changes a byte
  std::optional<arch::Tier> tier;  ///< empty: arch::active_tier(). Never changes a byte
};

/// Sums over a matrix, in units of squared weights: |W - decoded|^2 and |W|^2.
struct EncodeStats {
  double squared_error = 0;
  double squared_norm = 0;

  /// Relative Frobenius error, |W - decoded| / |W|; 0 for a zero matrix decoded exactly.
  double relative_error() const noexcept;
  EncodeStats& operator+=(const EncodeStats& other) noexcept {
    squared_error += other.squared_error;
    squared_norm += other.squared_norm;
    return *this;
  }
};

/// Encodes w [rows][cols], cols a multiple of 8, all values finite, with
///   W[r][8v+d] ~ f32(scale[r]) * sum over s of codebooks[s][index(r, v, s)][d].
/// `codebooks` is f32 [stages][2^index_bits][8] with values that are exactly f16 (what
/// train_codebooks returns and a reader decodes). Indices are chosen against those values and the
/// f16 scale that the reader will see, to minimise the squared error of each row.
/// Writes IndexLayout(quant, rows, cols).bytes() index bytes (row padding zeroed) and rows f16
/// scales, at any alignment. The bytes depend on w, codebooks, quant and effort alone: not on
/// threads, tier or the rows that surround a row.
/// Throws Error: bad_argument or unsupported for a quantization the format cannot hold, shape for
/// cols that vec_dim does not divide, out_of_range for values that are not finite or too large for
/// an f16 scale.
EncodeStats encode_matrix(MatrixView<const float> w, const float* codebooks,
                          const EncodeOptions& options, std::uint8_t* indices,
                          std::uint8_t* scales);

/// The scale by which a row is divided before its vectors are compared with codebooks: its root
/// mean square, rounded to f16 (as bits); 0 for a row whose rms rounds to 0.
/// Throws Error (out_of_range) for values that are not finite or an rms beyond f16.
std::uint16_t row_scale(const float* row, std::size_t cols);

}  // namespace waste::quant
