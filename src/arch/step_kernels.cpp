#include "waste/kernels/step_kernels.hpp"

#define WASTE_JOIN_(a, b) a##b
#define WASTE_JOIN(a, b) WASTE_JOIN_(a, b)

namespace waste::kernels {
extern const StepKernels WASTE_JOIN(step_kernels_, WASTE_TIER);
const StepKernels WASTE_JOIN(step_kernels_, WASTE_TIER) = {};
}  // namespace waste::kernels
