// Adds the products of a few 8-vectors with eight rows of a matrix to rows of another.
#pragma once

#include <cstddef>

#include "waste/arch/detail/inline.hpp"
#include "waste/arch/tags.hpp"

namespace waste::kernels {

/// EncodeKernels::feed.
struct feed_error {
  template <class Arch>
  WASTE_INLINE void operator()(Arch, const float* v, std::size_t rows, const float* factor,
                               std::size_t stride, std::size_t count, float* z,
                               std::size_t z_stride) const noexcept {
    std::size_t r = 0;
    for (; r + 2 <= rows; r += 2) {
      add<Arch, 2>(v + 8 * r, factor, stride, count, z + r * z_stride, z_stride);
    }
    if (r < rows) add<Arch, 1>(v + 8 * r, factor, stride, count, z + r * z_stride, z_stride);
  }

 private:
  template <class Arch, std::size_t Rows>
  static WASTE_INLINE void add(const float* v, const float* factor, std::size_t stride,
                               std::size_t count, float* z, std::size_t z_stride) noexcept {
    using batch = xsimd::batch<float, typename Arch::xsimd_arch>;
    constexpr std::size_t width = batch::size;
    std::size_t j = 0;
    for (; j + width <= count; j += width) {
      batch sum[Rows];
      for (std::size_t r = 0; r < Rows; ++r) sum[r] = batch::load_unaligned(z + r * z_stride + j);
      for (std::size_t d = 0; d < 8; ++d) {
        const batch f = batch::load_unaligned(factor + d * stride + j);
        for (std::size_t r = 0; r < Rows; ++r) sum[r] = sum[r] + batch(v[8 * r + d]) * f;
      }
      for (std::size_t r = 0; r < Rows; ++r) sum[r].store_unaligned(z + r * z_stride + j);
    }
    for (; j < count; ++j) {
      for (std::size_t r = 0; r < Rows; ++r) {
        float sum = z[r * z_stride + j];
        for (std::size_t d = 0; d < 8; ++d) sum = sum + v[8 * r + d] * factor[d * stride + j];
        z[r * z_stride + j] = sum;
      }
    }
  }
};

}  // namespace waste::kernels
