// One tier's matrix kernels as a table of function pointers.
#pragma once

#include "waste/kernels/convert.hpp"
#include "waste/kernels/group_matmul.hpp"
#include "waste/kernels/group_matvec.hpp"
#include "waste/kernels/matrix_kernels.hpp"
#include "waste/kernels/vq_matmul.hpp"
#include "waste/kernels/vq_matvec.hpp"

namespace waste::kernels {

/// Functor Kernel on tier Arch as a plain function. Flattened: whatever the kernel calls is
/// compiled into it for this tier.
template <class Kernel, class Arch>
struct entry {
  template <class... Args>
  WASTE_FLATTEN static void call(Args... args) noexcept {
    Kernel{}(Arch{}, args...);
  }
  template <class... Args>
  using pointer = void (*)(Args...) noexcept;
  template <class... Args>
  constexpr operator pointer<Args...>() const noexcept {
    return &call<Args...>;
  }
};

/// The VQ kernels of a tier. Most of the compile time is theirs, so that src/arch instantiates them
/// in a file of their own.
template <class Arch>
struct vq_entries {
  static void table_build(Precision precision, const format::ExpertQuant& quant,
                          const float* codebooks, const float* x, std::size_t cols, void* table,
                          std::size_t chunk_begin, std::size_t chunk_end) noexcept;
  static void matvec(Precision precision, const VqMatrix& w, const void* table, float* y,
                     std::size_t row_begin, std::size_t row_end) noexcept;
  static void matmul(const VqMatrix& w, const float* x, std::size_t ldx, std::size_t tokens,
                     float* y, std::size_t ldy, std::size_t row_begin,
                     std::size_t row_end) noexcept;
};

template <class Arch>
WASTE_FLATTEN void vq_entries<Arch>::table_build(
    Precision precision, const format::ExpertQuant& quant, const float* codebooks, const float* x,
    std::size_t cols, void* table, std::size_t chunk_begin, std::size_t chunk_end) noexcept {
  vq_table_build{}(Arch{}, precision, quant, codebooks, x, cols, table, chunk_begin, chunk_end);
}
template <class Arch>
WASTE_FLATTEN void vq_entries<Arch>::matvec(Precision precision, const VqMatrix& w,
                                            const void* table, float* y, std::size_t row_begin,
                                            std::size_t row_end) noexcept {
  vq_matvec{}(Arch{}, precision, w, table, y, row_begin, row_end);
}
template <class Arch>
WASTE_FLATTEN void vq_entries<Arch>::matmul(const VqMatrix& w, const float* x, std::size_t ldx,
                                            std::size_t tokens, float* y, std::size_t ldy,
                                            std::size_t row_begin, std::size_t row_end) noexcept {
  vq_matmul{}(Arch{}, w, x, ldx, tokens, y, ldy, row_begin, row_end);
}

/// The table of a tier, for src/arch and for programs that compile the kernels themselves with
/// their own -march.
template <class Arch>
constexpr MatrixKernels make_matrix_kernels() noexcept {
  return {
      .trunk_matvec = entry<trunk_matvec, Arch>{},
      .trunk_matmul = entry<trunk_matmul, Arch>{},
      .trunk_row = entry<trunk_row, Arch>{},
      .vq_table_build = &vq_entries<Arch>::table_build,
      .vq_matvec = &vq_entries<Arch>::matvec,
      .vq_matmul = &vq_entries<Arch>::matmul,
      .f16_to_f32 = entry<f16_array, Arch>{},
      .bf16_to_f32 = entry<bf16_array, Arch>{},
      .mxfp4_row = entry<mxfp4_row, Arch>{},
  };
}

}  // namespace waste::kernels
