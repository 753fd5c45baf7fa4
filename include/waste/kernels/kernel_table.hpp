// The kernels of one tier as function pointers: the boundary between tiers and everything else.
#pragma once

#include "waste/arch/cpu.hpp"
#include "waste/kernels/encode_kernels.hpp"
#include "waste/kernels/matrix_kernels.hpp"
#include "waste/kernels/step_kernels.hpp"

namespace waste::kernels {

/// All kernels compiled for one tier. Tables of different tiers have the same contracts, and those
/// of tiers with fused multiply-add give the same bits.
struct KernelTable {
  arch::Tier tier;
  const MatrixKernels* matrix;
  const StepKernels* step;
  const EncodeKernels* encode;
};

/// The table of a tier. Throws Error (unsupported) when it cannot run here.
const KernelTable& kernel_table(arch::Tier tier);

/// The table of arch::active_tier().
const KernelTable& active_kernels();

}  // namespace waste::kernels
