// VQ tables and products in every precision: the switch over shapes of index runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"
#include "waste/kernels/lut.hpp"
#include "waste/kernels/lut_i8.hpp"
#include "waste/kernels/vq_bytes.hpp"
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
    const TableLayout layout(precision, quant, cols);
    auto* const bytes = static_cast<std::uint8_t*>(table);
    quant::with_traits(quant, [&](auto traits) {
      using Traits = decltype(traits);
      for (std::size_t c = chunk_begin; c < chunk_end; ++c) {
        const std::size_t v = c * chunk_positions, left = layout.positions - v;
        const std::size_t n = left < chunk_positions ? left : chunk_positions;
        std::uint8_t* const at = bytes + layout.planes_off + v * layout.position_bytes;
        const float* const xv = x + v * Traits::vec_dim;
        auto& steps = static_cast<ChunkSteps*>(table)[c];
        switch (precision) {
          case Precision::exact:
            lut_build::positions<Traits, Arch>(codebooks, xv, n, reinterpret_cast<float*>(at));
            break;
          case Precision::hilo14:
            byte_table_build<Traits, Arch, true>::chunk(codebooks, xv, n, steps, at);
            break;
          case Precision::split8:
            byte_table_build<Traits, Arch, false>::chunk(codebooks, xv, n, steps, at);
            break;
        }
      }
    });
  }
};

/// Rows [row_begin, row_end) of a product with a built table; see MatrixKernels.
struct vq_matvec {
  template <class Arch>
  void operator()(Arch, Precision precision, const VqMatrix& w, const void* table, float* y,
                  std::size_t row_begin, std::size_t row_end) const noexcept {
    quant::with_traits(w.quant, [&](auto traits) {
      using Traits = decltype(traits);
      switch (precision) {
        case Precision::exact:
          return vq_exact::rows<Traits, Arch>(w, static_cast<const float*>(table), y, row_begin,
                                              row_end);
        case Precision::hilo14:
          return vq_bytes<Traits, Arch, true>::rows(w, table, y, row_begin, row_end);
        case Precision::split8:
          return vq_bytes<Traits, Arch, false>::rows(w, table, y, row_begin, row_end);
      }
    });
  }
};

}  // namespace waste::kernels
