// What each effort of the VQ encoder means in numbers.
#pragma once

#include <cstddef>

#include "waste/kernels/kernel_table.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::quant {

struct EffortPlan {
  std::size_t beam;            ///< of encoding
  int recode_rounds;           ///< codings of a row for its refitted scale
  std::size_t sample_vectors;  ///< of training, at most
  int means_rounds;            ///< Lloyd rounds of each stage
  int joint_rounds;            ///< rounds of joint refit with `joint_beam`
  std::size_t joint_beam;
  int final_rounds;  ///< and with the beam of encoding
  double noise;      ///< of annealing in the joint rounds; 0: none
};

inline EffortPlan effort_plan(Effort effort) noexcept {
  switch (effort) {
    case Effort::fast:
      return {1, 0, 300000, 12, 10, 1, 0, 0};
    case Effort::standard:
      return {16, 0, 300000, 8, 8, 4, 8, 0.15};
    case Effort::best:
      return {32, 2, 300000, 8, 16, 8, 8, 0.15};
  }
  return {};
}

inline const kernels::EncodeKernels& encode_kernels(const EncodeOptions& options) {
  return *(options.tier ? kernels::kernel_table(*options.tier) : kernels::active_kernels()).encode;
}

}  // namespace waste::quant
