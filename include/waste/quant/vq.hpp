// The shapes of residual VQ as compile-time constants, and the switch that reaches them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/format/constants.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/format/vq_view.hpp"

namespace waste::quant {

/// Constants of one kind of index run: what kernels are generated from.
template <std::size_t Stages, std::size_t IndexBits, std::size_t VecDim = format::vec_dim>
struct VqTraits {
  static_assert(VecDim == format::vec_dim, "format 0 has 8-dimensional vectors");
  static_assert((IndexBits == 8 && Stages >= 1 && Stages <= format::max_stages) ||
                (IndexBits == 6 && Stages == 4));
  static constexpr std::size_t stages = Stages;
  static constexpr std::size_t index_bits = IndexBits;
  static constexpr std::size_t vec_dim = VecDim;
  static constexpr std::size_t entries = std::size_t{1} << IndexBits;  ///< of a codebook table
  static constexpr std::size_t run = Stages * IndexBits / 8;           ///< bytes of one vector
};

using Vq2r = VqTraits<2, 8>;
using Vq3r = VqTraits<3, 8>;
using Vq4p = VqTraits<4, 6>;

/// Calls f(VqTraits<...>{}) for `quant`, which validate(ExpertQuant) accepted. Every pair that the
/// format allows is instantiated: one that was left out would run on a slow path in silence.
template <class F>
inline __attribute__((always_inline)) void with_traits(const format::ExpertQuant& quant,
                                                       const F& f) noexcept {
  if (quant.index_bits == 6) return f(Vq4p{});
  switch (quant.stages) {
    case 1:
      return f(VqTraits<1, 8>{});
    case 2:
      return f(VqTraits<2, 8>{});
    case 3:
      return f(VqTraits<3, 8>{});
    case 4:
      return f(VqTraits<4, 8>{});
    case 5:
      return f(VqTraits<5, 8>{});
    case 6:
      return f(VqTraits<6, 8>{});
    case 7:
      return f(VqTraits<7, 8>{});
    case 8:
      return f(VqTraits<8, 8>{});
    default:
      return;
  }
}

}  // namespace waste::quant
