// One tier's matrix kernels as a table of function pointers.
#pragma once

#include "waste/kernels/group_matmul.hpp"
#include "waste/kernels/group_matvec.hpp"
#include "waste/kernels/matrix_kernels.hpp"
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

/// The table of a tier, for src/arch and for programs that compile the kernels themselves with
/// their own -march.
template <class Arch>
constexpr MatrixKernels make_matrix_kernels() noexcept {
  return {
      .trunk_matvec = entry<trunk_matvec, Arch>{},
      .trunk_matmul = entry<trunk_matmul, Arch>{},
      .trunk_row = entry<trunk_row, Arch>{},
      .vq_table_build = entry<vq_table_build, Arch>{},
      .vq_matvec = entry<vq_matvec, Arch>{},
  };
}

}  // namespace waste::kernels
