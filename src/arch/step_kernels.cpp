// g++ 12's AVX-512 headers pass variables that they leave undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "waste/kernels/step_kernels.hpp"

#include "waste/kernels/attention.hpp"
#include "waste/kernels/elementwise.hpp"
#include "waste/kernels/kda.hpp"
#include "waste/kernels/kda_chunk.hpp"

#define WASTE_JOIN_(a, b) a##b
#define WASTE_JOIN(a, b) WASTE_JOIN_(a, b)

namespace waste::kernels {
namespace {

using Tier = arch::WASTE_TIER;

/// The functor Kernel on this tier as a plain function of the pointer type it is assigned to.
template <class Kernel>
struct Entry {
  template <class R, class... Args>
  using Pointer = R (*)(Args...) noexcept;
  template <class R, class... Args>
  static R call(Args... args) noexcept {
    return Kernel{}(Tier{}, args...);
  }
  template <class R, class... Args>
  constexpr operator Pointer<R, Args...>() const noexcept {
    return &call<R, Args...>;
  }
};

}  // namespace

extern const StepKernels WASTE_JOIN(step_kernels_, WASTE_TIER);
const StepKernels WASTE_JOIN(step_kernels_, WASTE_TIER) = {
    .rms_norm = Entry<rms_norm>{},
    .gated_rms_norm = Entry<gated_rms_norm>{},
    .rms_dot = Entry<rms_dot>{},
    .softmax = Entry<softmax>{},
    .sigmoid = Entry<sigmoid_array>{},
    .gate = Entry<gate_array>{},
    .silu_pair = Entry<silu_pair>{},
    .situ_pair = Entry<situ_pair>{},
    .axpy = Entry<axpy>{},
    .add = Entry<add>{},
    .mix_rows = Entry<mix_rows>{},
    .short_conv = Entry<short_conv>{},
    .kda_decay = Entry<kda_decay>{},
    .kda_step = Entry<kda_step>{},
    .kda_chunk = Entry<kda_chunk>{},
    .attention_scores = Entry<attention_scores>{},
    .attention_mix = Entry<attention_mix>{},
};

}  // namespace waste::kernels
