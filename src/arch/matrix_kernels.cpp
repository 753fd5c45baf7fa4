// The matrix kernels of one tier: Meson compiles this file once per tier with its -march.
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12's AVX-512 headers pass variables that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "waste/kernels/instantiate.hpp"

#define WASTE_JOIN_(a, b) a##b
#define WASTE_JOIN(a, b) WASTE_JOIN_(a, b)

namespace waste::kernels {
extern template struct vq_entries<arch::WASTE_TIER>;  // vq_kernels.cpp
extern const MatrixKernels WASTE_JOIN(matrix_kernels_, WASTE_TIER);
constinit const MatrixKernels WASTE_JOIN(matrix_kernels_,
                                         WASTE_TIER) = make_matrix_kernels<arch::WASTE_TIER>();
}  // namespace waste::kernels
