// Checked products of quantized matrices with f32 vectors, on the best tier of this CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <Eigen/Core>
#include <functional>
#include <span>

#include "waste/arch/tags.hpp"
#include "waste/core/aligned_buffer.hpp"
#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/kernels/kernel_table.hpp"

namespace waste {

/// Shown the inputs x [tokens][cols] of a product with a trunk matrix.
using TrunkLook = std::function<void(const TrunkMatrix&, MatrixView<const float>)>;

/// How to run: on which tier, on how many threads, at which precision of VQ tables. The result
/// depends on the precision only: every thread count gives the same bits, and so does every tier
/// with fused multiply-add.
struct Exec {
  const kernels::KernelTable* kernels = nullptr;  ///< null: kernels::active_kernels()
  unsigned threads = 1;                           ///< 0: all that the process may use
  kernels::Precision precision = kernels::Precision::exact;
  /// Products with VQ matrices decode rows and multiply however few inputs there are, where matmul
  /// and nn::moe would use tables: for calls of many inputs. The precision then plays no part.
  bool decode = false;
  const TrunkLook* look = nullptr;  ///< called by matvec and matmul of trunk matrices; null: none

  const kernels::KernelTable& table() const {
    return kernels != nullptr ? *kernels : kernels::active_kernels();
  }
};

/// The lookup table of one input vector for one matrix kind of one layer,
///     LUT[v][s][c] = sum over d of x[8v+d] C_s[c][d],
/// with which every expert's matrix of that kind can be multiplied: build it once for the gates and
/// once for the ups of all experts that a token meets.
class VqTable {
 public:
  VqTable() = default;
  /// Room for inputs of `cols` columns. Throws Error (shape, out_of_range, unsupported) for a
  /// `quant` that the format does not have or columns that are no multiple of 8.
  VqTable(kernels::Precision precision, const format::ExpertQuant& quant, std::size_t cols);

  /// Builds the table of x [cols] for `codebooks`, f32 [stages][2^index_bits][8], which must stay
  /// alive while the table is used. Reuses the memory of earlier builds. exec.precision is ignored:
  /// the table has its own.
  void build(const float* codebooks, std::span<const float> x, const Exec& exec = {});

  /// build() in shares, for threads that build several tables together: one start(), then every
  /// fill() of share 0 .. shares - 1 once, from any threads in any order; the table is ready when
  /// all have returned. `x` and `shares` are the same in all. The same bytes as build().
  void start(const float* codebooks, const Exec& exec = {});
  void fill(std::span<const float> x, std::size_t share, std::size_t shares);

  kernels::Precision precision() const noexcept { return precision_; }
  const format::ExpertQuant& quant() const noexcept { return quant_; }
  std::size_t cols() const noexcept { return cols_; }
  /// Of the last build; null before it.
  const float* codebooks() const noexcept { return codebooks_; }
  const kernels::KernelTable* kernels() const noexcept { return kernels_; }
  const void* data() const noexcept { return bytes_.data(); }
  std::size_t bytes() const noexcept { return bytes_.size(); }

 private:
  kernels::Precision precision_ = kernels::Precision::exact;
  format::ExpertQuant quant_;
  std::size_t cols_ = 0;
  const float* codebooks_ = nullptr;
  const kernels::KernelTable* kernels_ = nullptr;
  AlignedBuffer<std::uint8_t> bytes_;
};

/// y = W x: y[r] = scale[r] * sum over positions v and stages s of LUT[v][s][index(r, v, s)].
/// x has W.cols() elements, y W.rows(); they must not overlap. Builds the table itself. Throws
/// Error (shape) where sizes differ. docs/kernels.md, products of experts.
void matvec(const VqMatrix& w, std::span<const float> x, std::span<float> y, const Exec& exec = {});

/// The same with a table built before; on the tier that built it. Throws Error (shape) where sizes
/// or quantizations differ and (mismatch) where the table was built from other codebooks than w's.
void matvec(const VqMatrix& w, const VqTable& table, std::span<float> y, const Exec& exec = {});

/// Rows [row_begin, row_end) of that, into the same places of y; other elements are not touched.
/// Both are multiples of 64, or row_end is W.rows(). Throws Error (out_of_range) where they are
/// not.
void matvec_rows(const VqMatrix& w, const VqTable& table, std::span<float> y, std::size_t row_begin,
                 std::size_t row_end);

/// y = W x for a trunk matrix of any trunk format, f32 activations, f32 sums in the order that
/// kernels/group_matvec.hpp fixes. Throws Error (shape), and (unsupported) for another format.
void matvec(const TrunkMatrix& w, std::span<const float> x, std::span<float> y,
            const Exec& exec = {});

/// y[t] = W x[t] for every row of x [tokens][cols] into y [tokens][rows], bit for bit what matvec
/// gives for each. x and y must not overlap.
void matmul(const TrunkMatrix& w, MatrixView<const float> x, MatrixView<float> y,
            const Exec& exec = {});

/// From this many inputs on, matmul of a VqMatrix decodes it instead of building tables.
inline constexpr std::size_t decode_from_tokens = 4;

/// y[t] = W x[t] for every row of x [tokens][cols] into y [tokens][rows]. Fewer than
/// decode_from_tokens inputs: what matvec gives for each, tables at exec.precision. From there on,
/// or with exec.decode, W is decoded once for all and multiplied in f32, whatever the precision:
/// close to exact, the same bits for every number of tokens, threads and fused tier. x and y must
/// not overlap.
void matmul(const VqMatrix& w, MatrixView<const float> x, MatrixView<float> y,
            const Exec& exec = {});

/// out[c] = W[row][c]: f32(scale) * code for grouped formats, rounded once. out has W.cols()
/// elements. Throws Error (out_of_range, shape, unsupported).
void dequantize_row(const TrunkMatrix& w, std::size_t row, std::span<float> out,
                    const Exec& exec = {});

/// matvec on a tier of your choice, `matvec<arch::avx2>(w, x, y)`. Throws Error (unsupported) where
/// the tier cannot run.
template <class Arch, class Matrix>
void matvec(const Matrix& w, std::span<const float> x, std::span<float> y, Exec exec = {}) {
  exec.kernels = &kernels::kernel_table(Arch::tier);
  matvec(w, x, y, exec);
}

/// The same products on Eigen vectors: x any vector expression of float, y a vector with unit
/// stride (VectorXf, Map, Ref, segment, a row of a row-major matrix).
template <class Matrix, class X, class Y>
void matvec(const Matrix& w, const Eigen::MatrixBase<X>& x, const Eigen::MatrixBase<Y>& y,
            const Exec& exec = {}) {
  const Eigen::Ref<const Eigen::VectorXf> in(x.derived());
  Eigen::Ref<Eigen::VectorXf> out(const_cast<Y&>(y.derived()));
  matvec(w, std::span<const float>(in.data(), static_cast<std::size_t>(in.size())),
         std::span<float>(out.data(), static_cast<std::size_t>(out.size())), exec);
}

/// matmul on row-major Eigen matrices, one token a row.
using RowMajorMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
inline void matmul(const TrunkMatrix& w, const Eigen::Ref<const RowMajorMatrix>& x,
                   Eigen::Ref<RowMajorMatrix> y, const Exec& exec = {}) {
  const auto size = [](Eigen::Index n) { return static_cast<std::size_t>(n); };
  matmul(w,
         MatrixView<const float>(x.data(), size(x.rows()), size(x.cols()), size(x.outerStride())),
         MatrixView<float>(y.data(), size(y.rows()), size(y.cols()), size(y.outerStride())), exec);
}

}  // namespace waste
