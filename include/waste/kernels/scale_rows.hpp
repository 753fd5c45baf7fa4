// The end of a VQ product: sums in the order of a tier's lanes become scaled rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "waste/arch/ops.hpp"

namespace waste::kernels {

/// y[row_of[i]] = scale[row_of[i]] sums[i] for those of a block's 64 rows that are below `rows`;
/// `scales` are f16 at any address, y may be where the sums are.
template <class Arch>
WASTE_INLINE void scale_rows(const float* sums, const std::array<std::uint8_t, 64>& row_of,
                             const std::uint8_t* scales, std::size_t rows, float* y) noexcept {
  float ordered[64];
  for (std::size_t i = 0; i < 64; ++i) ordered[row_of[i]] = sums[i];
  std::size_t r = 0;
  for (; r + 16 <= rows; r += 16) {
    arch::store_f32(y + r,
                    arch::load_f16<Arch>(scales + 2 * r) * arch::load_f32<Arch>(ordered + r));
  }
  for (; r < rows; ++r) y[r] = arch::load_one_f16<Arch>(scales + 2 * r) * ordered[r];
}

}  // namespace waste::kernels
