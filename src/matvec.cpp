#include "waste/nn/matvec.hpp"

#include <algorithm>

#include "waste/core/parallel.hpp"

namespace waste {
namespace {

/// Below this many payload bytes a thread's share costs less than waking it.
constexpr std::size_t task_bytes = 1u << 18;

void check_size(const char* what, std::size_t got, std::size_t want) {
  if (got != want) throw Error(fault(Errc::shape, what, got, want));
}

void check_trunk(const TrunkMatrix& w) {
  if (format::trunk_row_bytes(w.fmt, 1) == 0) {
    throw Error(fault(Errc::unsupported, "fmt"), {},
                std::string(to_string(w.fmt)) + " is no trunk format");
  }
}

/// Calls body(row_begin, row_end) over [0, rows) in tasks of whole 64-row blocks.
template <class Body>
void over_rows(std::size_t rows, std::uint64_t bytes, unsigned threads, const Body& body) {
  if (threads == 0) threads = available_threads();
  const std::size_t blocks = ceil_div<std::size_t>(rows, 64);
  const std::size_t tasks =
      std::min<std::uint64_t>({blocks, 4ull * threads, 1 + bytes / task_bytes});
  if (threads == 1 || tasks <= 1) {
    if (rows != 0) body(std::size_t{0}, rows);
    return;
  }
  parallel_for(tasks, threads, [&](std::size_t i) {
    body(64 * (blocks * i / tasks), std::min(rows, 64 * (blocks * (i + 1) / tasks)));
  });
}

}  // namespace

VqTable::VqTable(kernels::Precision precision, const format::ExpertQuant& quant, std::size_t cols)
    : precision_(precision), quant_(quant), cols_(cols) {
  check(validate(quant));
  if (cols % format::vec_dim != 0 || cols > format::limits::dimension) {
    throw Error(fault(Errc::shape, "cols", cols, round_up(cols, format::vec_dim)));
  }
  bytes_ = AlignedBuffer<std::uint8_t>(kernels::vq_table_bytes(precision, quant, cols), 64);
}

void VqTable::build(const float* codebooks, std::span<const float> x, const Exec& exec) {
  check_size("x", x.size(), cols_);
  start(codebooks, exec);
  const std::size_t chunks = kernels::TableLayout(precision_, quant_, cols_).chunks;
  const std::size_t shares = bytes_.size() < task_bytes || exec.threads == 1 ? 1 : chunks;
  parallel_for(shares, exec.threads, [&](std::size_t i) { fill(x, i, shares); });
}

void VqTable::start(const float* codebooks, const Exec& exec) {
  codebooks_ = codebooks;
  kernels_ = &exec.table();
}

void VqTable::fill(std::span<const float> x, std::size_t share, std::size_t shares) {
  check_size("x", x.size(), cols_);
  if (kernels_ == nullptr) throw Error(fault(Errc::bad_argument, "start"));
  if (share >= shares) throw Error(fault(Errc::out_of_range, "share", share, shares));
  const std::size_t chunks = kernels::TableLayout(precision_, quant_, cols_).chunks;
  kernels_->matrix->vq_table_build(precision_, quant_, codebooks_, x.data(), cols_, bytes_.data(),
                                   chunks * share / shares, chunks * (share + 1) / shares);
}

namespace {

void check_table(const VqMatrix& w, const VqTable& table, std::span<float> y) {
  check_size("cols", w.n_cols, table.cols());
  check_size("y", y.size(), w.n_rows);
  if (!(w.quant == table.quant())) throw Error(fault(Errc::shape, "expert_quant"));
  if (table.kernels() == nullptr || table.codebooks() != w.codebooks) {
    throw Error(fault(Errc::mismatch, "codebooks"), {},
                "the table was not built from this matrix's codebooks");
  }
}

}  // namespace

void matvec(const VqMatrix& w, const VqTable& table, std::span<float> y, const Exec& exec) {
  check_table(w, table, y);
  const auto* const matrix = table.kernels()->matrix;
  over_rows(w.n_rows, w.layout().bytes(), exec.threads, [&](std::size_t begin, std::size_t end) {
    matrix->vq_matvec(table.precision(), w, table.data(), y.data(), begin, end);
  });
}

void matvec_rows(const VqMatrix& w, const VqTable& table, std::span<float> y, std::size_t row_begin,
                 std::size_t row_end) {
  check_table(w, table, y);
  if (row_end > w.n_rows || (row_end % 64 != 0 && row_end != w.n_rows)) {
    throw Error(fault(Errc::out_of_range, "row_end", row_end, w.n_rows));
  }
  if (row_begin > row_end || row_begin % 64 != 0) {
    throw Error(fault(Errc::out_of_range, "row_begin", row_begin, row_end / 64 * 64));
  }
  if (row_begin == row_end) return;
  table.kernels()->matrix->vq_matvec(table.precision(), w, table.data(), y.data(), row_begin,
                                     row_end);
}

void matvec(const VqMatrix& w, std::span<const float> x, std::span<float> y, const Exec& exec) {
  check_size("x", x.size(), w.n_cols);
  check_size("y", y.size(), w.n_rows);
  VqTable table(exec.precision, w.quant, w.n_cols);
  table.build(w.codebooks, x, exec);
  matvec(w, table, y, exec);
}

void matvec(const TrunkMatrix& w, std::span<const float> x, std::span<float> y, const Exec& exec) {
  check_trunk(w);
  check_size("x", x.size(), w.n_cols);
  check_size("y", y.size(), w.n_rows);
  if (exec.look != nullptr) (*exec.look)(w, {x.data(), 1, x.size()});
  const auto* const matrix = exec.table().matrix;
  over_rows(w.n_rows, w.n_rows * format::trunk_row_bytes(w.fmt, w.n_cols), exec.threads,
            [&](std::size_t begin, std::size_t end) {
              matrix->trunk_matvec(w, x.data(), y.data(), begin, end);
            });
}

void matmul(const TrunkMatrix& w, MatrixView<const float> x, MatrixView<float> y,
            const Exec& exec) {
  check_trunk(w);
  check_size("x", x.cols, w.n_cols);
  check_size("y", y.cols, w.n_rows);
  check_size("tokens", y.rows, x.rows);
  if (x.rows == 0) return;
  if (exec.look != nullptr) (*exec.look)(w, x);
  const auto* const matrix = exec.table().matrix;
  over_rows(w.n_rows, x.rows * w.n_rows * format::trunk_row_bytes(w.fmt, w.n_cols), exec.threads,
            [&](std::size_t begin, std::size_t end) {
              if (x.rows == 1) return matrix->trunk_matvec(w, x.data, y.data, begin, end);
              matrix->trunk_matmul(w, x.data, x.stride, x.rows, y.data, y.stride, begin, end);
            });
}

void matmul(const VqMatrix& w, MatrixView<const float> x, MatrixView<float> y, const Exec& exec) {
  check(validate(w.quant));
  check_size("x", x.cols, w.n_cols);
  check_size("y", y.cols, w.n_rows);
  check_size("tokens", y.rows, x.rows);
  if (x.rows < decode_from_tokens && !exec.decode) {
    VqTable table(exec.precision, w.quant, w.n_cols);
    for (std::size_t t = 0; t < x.rows; ++t) {
      table.build(w.codebooks, x.row(t), exec);
      matvec(w, table, y.row(t), exec);
    }
    return;
  }
  const auto* const matrix = exec.table().matrix;
  over_rows(w.n_rows, x.rows * w.layout().bytes(), exec.threads,
            [&](std::size_t begin, std::size_t end) {
              matrix->vq_matmul(w, x.data, x.stride, x.rows, y.data, y.stride, begin, end);
            });
}

void dequantize_row(const TrunkMatrix& w, std::size_t row, std::span<float> out, const Exec& exec) {
  check_trunk(w);
  if (row >= w.n_rows) throw Error(fault(Errc::out_of_range, "row", row, w.n_rows - 1));
  check_size("out", out.size(), w.n_cols);
  exec.table().matrix->trunk_row(w, row, out.data());
}

}  // namespace waste
