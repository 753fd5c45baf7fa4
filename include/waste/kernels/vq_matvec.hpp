// VQ tables and products in every precision: the switch over shapes of index runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"
#include "waste/kernels/lut.hpp"
#include "waste/kernels/vq_exact.hpp"
#include "waste/kernels/vq_table.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// Builds chunks [chunk_begin, chunk_end) of a table; see MatrixKernels.
struct vq_table_build {
  template <class Arch>
  void operator()(Arch, Precision precision, const format::ExpertQuant& quant,
                  const float* codebooks, const float* x, std::size_t cols, void* table,
                  std::size_t chunk_begin, std::size_t chunk_end) const noexcept {
    (void)precision;
    quant::with_traits(quant, [&](auto traits) {
      using Traits = decltype(traits);
      const std::size_t positions = cols / Traits::vec_dim;
      for (std::size_t c = chunk_begin; c < chunk_end; ++c) {
        const std::size_t v0 = c * chunk_positions;
        const std::size_t v1 = v0 + chunk_positions < positions ? v0 + chunk_positions : positions;
        lut_build::positions<Traits, Arch>(codebooks, x, v0, v1, static_cast<float*>(table));
      }
    });
  }
};

/// Rows [row_begin, row_end) of a product with a built table; see MatrixKernels.
struct vq_matvec {
  template <class Arch>
  void operator()(Arch, Precision precision, const VqMatrix& w, const void* table, float* y,
                  std::size_t row_begin, std::size_t row_end) const noexcept {
    (void)precision;
    quant::with_traits(w.quant, [&](auto traits) {
      vq_exact::rows<decltype(traits), Arch>(w, static_cast<const float*>(table), y, row_begin,
                                             row_end);
    });
  }
};

}  // namespace waste::kernels
