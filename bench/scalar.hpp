// Matrix kernels without vectors: what a forward pass on the library's kernels is compared with.
#pragma once

#include "waste/kernels/kernel_table.hpp"

namespace waste::bench {

/// `base` with plain loops for trunk products and exact VQ tables, and gather() for VQ products.
/// Runs at Precision::exact only, on what gather() takes.
kernels::KernelTable scalar_kernels(const kernels::KernelTable& base);

}  // namespace waste::bench
