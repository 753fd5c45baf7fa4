// The VQ kernels of one tier: Meson compiles this file once per tier with its -march.
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12's AVX-512 headers pass variables that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "waste/kernels/instantiate.hpp"

namespace waste::kernels {
template struct vq_entries<arch::WASTE_TIER>;
}  // namespace waste::kernels
