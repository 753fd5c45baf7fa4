// Kernels of the rest of a step, for one tier: norms, activations, attention.
#pragma once

#include <cstddef>

namespace waste::kernels {

/// Kernels are noexcept and check nothing but by assert. No pointer needs an alignment.
struct StepKernels {
  /// out_i = x_i * w_i / sqrt(mean(x^2) + eps), i < n; out may be x.
  void (*rms_norm)(const float* x, const float* w, std::size_t n, float eps, float* out) noexcept;
};

}  // namespace waste::kernels
