// Rotary position embedding: pairs of a head's elements turned by an angle that grows with the
// position.
#pragma once

#include <cstddef>
#include <vector>

#include "waste/core/matrix_view.hpp"

namespace waste::nn {

/// RoPE in the half-split form of LLaMA, OLMoE, Qwen and Mixtral: at position p, for i < dim / 2,
///     a = p theta^(-2i / dim)
///     (x_i, x_{i + dim/2}) -> (x_i cos a - x_{i + dim/2} sin a, x_{i + dim/2} cos a + x_i sin a)
/// so that the product of a query and a key depends on the distance of their positions. Angles,
/// sines and cosines are computed in f64 and rounded to f32 once. Su et al., arXiv 2104.09864.
class Rope {
 public:
  Rope() = default;
  /// For heads of `dim` elements at positions 0 .. positions - 1; 4 * dim * positions bytes. Throws
  /// Error (bad_argument) where dim is 0 or odd, or theta is not above 0.
  Rope(std::size_t dim, double theta, std::size_t positions);

  /// Turns every head of x [tokens][heads * dim] in place; row t stands at position first + t.
  /// Throws Error (shape) where x.cols is no multiple of dim, (out_of_range) past the last
  /// position.
  void operator()(MatrixView<float> x, std::size_t first) const;

  std::size_t dim() const noexcept { return dim_; }
  std::size_t positions() const noexcept { return positions_; }

 private:
  std::size_t dim_ = 0, positions_ = 0;
  std::vector<float> cos_, sin_;  ///< [positions][dim / 2]
};

}  // namespace waste::nn
