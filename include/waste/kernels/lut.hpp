// Builds the exact (f32) table of a VQ product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"
#include "waste/kernels/vq_table.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// table[v][s][c] = sum over d = 0..7, in that order, of x[8v+d] C_s[c][d]: a product, then seven
/// fused multiply-adds, for `n` positions. One entry a lane; a block of entries is transposed once
/// and meets all positions, which the caller keeps few so that the stores stay in cache.
struct lut_build {
  template <class Traits, class Arch>
  WASTE_KERNEL static void positions(const float* codebooks, const float* x, std::size_t n,
                                     float* table) noexcept {
    using batch = arch::f32_batch<Arch>;
    constexpr std::size_t position_floats = Traits::stages * Traits::entries;
    for (std::size_t e = 0; e < position_floats; e += batch::size) {
      batch c[8];
      arch::load_transposed8<Arch>(codebooks + 8 * e, c);
      for (std::size_t v = 0; v < n; ++v) {
        const float* xv = x + 8 * v;
        batch sum = c[0] * batch(xv[0]);
        for (std::size_t d = 1; d < 8; ++d) sum = arch::fma<Arch>(c[d], batch(xv[d]), sum);
        sum.store_unaligned(table + v * position_floats + e);
      }
    }
  }
};

}  // namespace waste::kernels
