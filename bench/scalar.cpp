// Compiled with vectorisation off, as gather.cpp is.
#include "scalar.hpp"

#include <algorithm>

#include "gather.hpp"
#include "waste/core/half.hpp"

namespace waste::bench {
namespace {

/// sum over c of W[r][c] x[c] with `code(row bytes, c)` the stored number.
template <class Code>
float row_product(const TrunkMatrix& w, const float* x, std::size_t row, const Code& code) {
  const std::uint8_t* at = w.payload + row * format::trunk_row_bytes(w.fmt, w.n_cols);
  float total = 0;
  for (std::size_t g = 0; g < w.groups(); ++g) {
    const std::size_t begin = g * format::group, end = std::min(begin + format::group, w.n_cols);
    float sum = 0;
    for (std::size_t c = begin; c < end; ++c) sum += static_cast<float>(code(at, c)) * x[c];
    if (format::is_grouped(w.fmt)) {
      sum *= f16_to_f32(load_le<std::uint16_t>(w.scales + 2 * (row * w.groups() + g)));
    }
    total += sum;
  }
  return total;
}

float row_product(const TrunkMatrix& w, const float* x, std::size_t row) {
  const auto product = [&](const auto& code) { return row_product(w, x, row, code); };
  switch (w.fmt) {
    case format::Fmt::f32:
      return product(
          [](const std::uint8_t* at, std::size_t c) { return load_le<float>(at + 4 * c); });
    case format::Fmt::f16:
      return product([](const std::uint8_t* at, std::size_t c) {
        return f16_to_f32(load_le<std::uint16_t>(at + 2 * c));
      });
    case format::Fmt::q8g:
      return product([](const std::uint8_t* at, std::size_t c) {
        return static_cast<int>(static_cast<std::int8_t>(at[c]));
      });
    case format::Fmt::q4g:
      return product([](const std::uint8_t* at, std::size_t c) {
        return (at[c / 2] >> 4 * (c % 2) & 15) - 8;
      });
    default:  // Q3G; a row has a byte more than its codes
      return product([](const std::uint8_t* at, std::size_t c) {
        return (load_le<std::uint16_t>(at + 3 * c / 8) >> 3 * c % 8 & 7) - 4;
      });
  }
}

void trunk_matvec(const TrunkMatrix& w, const float* x, float* y, std::size_t row_begin,
                  std::size_t row_end) noexcept {
  for (std::size_t r = row_begin; r < row_end; ++r) y[r] = row_product(w, x, r);
}

void trunk_matmul(const TrunkMatrix& w, const float* x, std::size_t ldx, std::size_t tokens,
                  float* y, std::size_t ldy, std::size_t row_begin, std::size_t row_end) noexcept {
  for (std::size_t t = 0; t < tokens; ++t) {
    trunk_matvec(w, x + t * ldx, y + t * ldy, row_begin, row_end);
  }
}

void vq_table_build(kernels::Precision, const format::ExpertQuant& quant, const float* codebooks,
                    const float* x, std::size_t cols, void* table, std::size_t chunk_begin,
                    std::size_t chunk_end) noexcept {
  const std::size_t entries = std::size_t{quant.stages} << quant.index_bits;
  const std::size_t first = chunk_begin * 32;
  const std::size_t last = std::min(chunk_end * 32, cols / format::vec_dim);
  float* to = static_cast<float*>(table) + first * entries;
  for (std::size_t v = first; v < last; ++v) {
    for (std::size_t e = 0; e < entries; ++e) {
      float sum = 0;
      for (std::size_t d = 0; d < format::vec_dim; ++d) {
        sum += x[format::vec_dim * v + d] * codebooks[format::vec_dim * e + d];
      }
      *to++ = sum;
    }
  }
}

void vq_matvec(kernels::Precision, const VqMatrix& w, const void* table, float* y,
               std::size_t row_begin, std::size_t row_end) noexcept {
  gather(w, static_cast<const float*>(table), y, row_begin, row_end);
}

}  // namespace

kernels::KernelTable scalar_kernels(const kernels::KernelTable& base) {
  static kernels::MatrixKernels matrix;
  matrix = *base.matrix;
  matrix.trunk_matvec = trunk_matvec;
  matrix.trunk_matmul = trunk_matmul;
  matrix.vq_table_build = vq_table_build;
  matrix.vq_matvec = vq_matvec;
  kernels::KernelTable out = base;
  out.matrix = &matrix;
  return out;
}

}  // namespace waste::bench
