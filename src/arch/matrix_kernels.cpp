#include "waste/kernels/matrix_kernels.hpp"

#define WASTE_JOIN_(a, b) a##b
#define WASTE_JOIN(a, b) WASTE_JOIN_(a, b)

namespace waste::kernels {
extern const MatrixKernels WASTE_JOIN(matrix_kernels_, WASTE_TIER);
const MatrixKernels WASTE_JOIN(matrix_kernels_, WASTE_TIER) = {};
}  // namespace waste::kernels
