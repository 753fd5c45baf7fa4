// The scalar f32-table gather that every VQ kernel is compared with.
#pragma once

#include <cstddef>

#include "waste/format/vq_view.hpp"

namespace waste::bench {

/// Rows [row_begin, row_end) of y = W x for a matrix in 64-row blocks of 2 or 3 stages of 8 bits or
/// 4 stages of 6, from its exact table.
void gather(const VqMatrix& w, const float* table, float* y, std::size_t row_begin,
            std::size_t row_end) noexcept;

}  // namespace waste::bench
