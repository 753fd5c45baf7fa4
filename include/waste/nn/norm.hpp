// RMSNorm over the rows of a matrix, and row ranges of trunk matrices.
#pragma once

#include <cstddef>
#include <span>

#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/nn/matvec.hpp"

namespace waste::nn {

/// Throws Error (shape) naming `what` where got != want.
inline void require_size(const char* what, std::size_t got, std::size_t want) {
  if (got != want) throw Error(fault(Errc::shape, what, got, want));
}

/// The threads worth waking for so many multiply-adds: one below about forty microseconds of work,
/// where a fork and join on a busy machine costs more than it saves.
inline unsigned threads_for(std::size_t operations, const Exec& exec) noexcept {
  return operations < (std::size_t{1} << 18) ? 1 : exec.threads;
}

/// out[t][i] = x[t][i] w[i] / sqrt(mean(x[t]^2) + eps). x and out [tokens][n], w [n]; out may be
/// x. Throws Error (shape).
inline void rms_norm(MatrixView<const float> x, std::span<const float> w, float eps,
                     MatrixView<float> out, const Exec& exec) {
  require_size("norm weight", w.size(), x.cols);
  require_size("norm output", out.cols, x.cols);
  require_size("norm tokens", out.rows, x.rows);
  const kernels::StepKernels& k = *exec.table().step;
  parallel_for(x.rows, threads_for(x.rows * x.cols, exec), [&](std::size_t t) {
    k.rms_norm(x.row(t).data(), w.data(), x.cols, eps, out.row(t).data());
  });
}

/// Rows [first, first + count) of a trunk matrix, as a view of the same bytes.
inline TrunkMatrix rows_of(const TrunkMatrix& w, std::size_t first, std::size_t count) noexcept {
  TrunkMatrix out = w;
  out.payload += first * format::trunk_row_bytes(w.fmt, w.n_cols);
  if (w.scales != nullptr) out.scales += first * format::trunk_row_scale_bytes(w.fmt, w.n_cols);
  out.n_rows = count;
  return out;
}

}  // namespace waste::nn
