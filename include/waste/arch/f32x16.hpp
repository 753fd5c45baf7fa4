// Sixteen f32 lanes held in as many registers as the tier needs.
#pragma once

#include <cstddef>

#include "waste/arch/tags.hpp"

namespace waste::arch {

template <class Arch>
using f32_batch = xsimd::batch<float, typename Arch::xsimd_arch>;

/// Lane i is lane i % batch::size of v[i / batch::size], whatever the register width: sums that
/// keep one partial a lane have the same bits on every tier.
template <class Arch>
struct f32x16 {
  using batch = f32_batch<Arch>;
  static constexpr std::size_t count = 16 / batch::size;
  batch v[count];
};

}  // namespace waste::arch
