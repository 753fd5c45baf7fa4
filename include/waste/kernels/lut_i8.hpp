// Builds the byte tables of a VQ product: f32 entries, their ranges and their codes in one pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/bytes.hpp"
#include "waste/arch/ops.hpp"
#include "waste/kernels/vq_table.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// How a precision spends its two sums of bytes. split8: stage 0 (with five stages or more also
/// stage 1, which is then no smaller than the rest together) has a byte and a step of its own, the
/// later and smaller stages share the other. hilo14: codes of 8 + low_bits bits, their high bits in
/// sum 0 and their low bits in sum 1; low_bits is as large as lets a position's low parts sum to
/// 255.
template <class Traits, bool HiLo>
struct byte_plan {
  static constexpr std::size_t split = Traits::stages <= 4 ? 1 : 2;
  static constexpr int low_bits = Traits::stages == 1   ? 8
                                  : Traits::stages == 2 ? 7
                                  : Traits::stages <= 4 ? 6
                                                        : 5;
  static_assert(Traits::stages * ((1 << low_bits) - 1) <= 255);
  static constexpr std::size_t planes = HiLo ? 2 : 1;  ///< of one stage
  /// Stages whose codes share a step.
  static constexpr std::size_t group_of(std::size_t stage) noexcept {
    return HiLo || stage < split ? 0 : 1;
  }
  /// What a position's range is scaled to. Each of n codes may round up by a half; the sum of a
  /// position must not pass 255 (hilo14: 256 * 2^low_bits - 1).
  static constexpr float limit(std::size_t group) noexcept {
    if (HiLo) return static_cast<float>(256 << low_bits) - 2.0f - 0.5f * Traits::stages;
    const std::size_t n = group == 0 ? split : Traits::stages - split;
    return n == 1 ? 255.0f : 255.0f - 0.5f * static_cast<float>(n);
  }
};

/// For each chunk of 32 positions and each group of stages,
///     code = rint((LUT - min) * (limit / range)),  step = range / limit,
/// min being the least entry of the position and stage, range the largest over the chunk's
/// positions of the sum over the group's stages of (max - min). The sum of all minima of the chunk
/// is its bias. Everything but the products of LUT is the same arithmetic on every tier.
template <class Traits, class Arch, bool HiLo>
struct byte_table_build {
  using plan = byte_plan<Traits, HiLo>;
  using batch = arch::f32_batch<Arch>;
  static constexpr std::size_t S = Traits::stages, E = Traits::entries;

  /// f32 entries of one chunk and the extremes of each position and stage.
  struct chunk_entries {
    alignas(64) float lut[chunk_positions][S][E];
    float min[chunk_positions][S], max[chunk_positions][S];
  };

  static WASTE_INLINE void compute(const float* codebooks, const float* x, std::size_t n,
                                   chunk_entries& out) noexcept {
    for (std::size_t s = 0; s < S; ++s) {
      batch low[chunk_positions], high[chunk_positions];
      for (std::size_t e = 0; e < E; e += batch::size) {
        batch c[8];
        arch::load_transposed8<Arch>(codebooks + 8 * (s * E + e), c);
        for (std::size_t v = 0; v < n; ++v) {
          const float* xv = x + 8 * v;
          batch sum = c[0] * batch(xv[0]);
          for (std::size_t d = 1; d < 8; ++d) sum = arch::fma<Arch>(c[d], batch(xv[d]), sum);
          sum.store_aligned(&out.lut[v][s][e]);
          low[v] = e == 0 ? sum : xsimd::min(low[v], sum);
          high[v] = e == 0 ? sum : xsimd::max(high[v], sum);
        }
      }
      for (std::size_t v = 0; v < n; ++v) {
        float lanes[2][batch::size];
        low[v].store_unaligned(lanes[0]);
        high[v].store_unaligned(lanes[1]);
        float least = lanes[0][0], most = lanes[1][0];
        for (std::size_t i = 1; i < batch::size; ++i) {
          least = lanes[0][i] < least ? lanes[0][i] : least;
          most = lanes[1][i] > most ? lanes[1][i] : most;
        }
        out.min[v][s] = least;
        out.max[v][s] = most;
      }
    }
  }

  WASTE_KERNEL static void chunk(const float* codebooks, const float* x, std::size_t n,
                                 ChunkSteps& steps, std::uint8_t* planes) noexcept {
    chunk_entries t;
    compute(codebooks, x, n, t);
    float range[2] = {0, 0}, bias = 0;
    for (std::size_t v = 0; v < n; ++v) {
      float sum[2] = {0, 0};
      for (std::size_t s = 0; s < S; ++s) {
        sum[plan::group_of(s)] += t.max[v][s] - t.min[v][s];
        bias += t.min[v][s];
      }
      for (std::size_t g = 0; g < 2; ++g) range[g] = sum[g] > range[g] ? sum[g] : range[g];
    }
    float inverse[2];
    for (std::size_t g = 0; g < 2; ++g) {
      steps.steps[g] = range[g] / plan::limit(g);
      inverse[g] = steps.steps[g] > 0 ? plan::limit(g) / range[g] : 0.0f;
    }
    if constexpr (HiLo) {
      steps.steps[1] = steps.steps[0];
      steps.steps[0] *= static_cast<float>(1 << plan::low_bits);
    }
    steps.bias = bias;
    steps.unused = 0;
    for (std::size_t v = 0; v < n; ++v) {
      for (std::size_t s = 0; s < S; ++s) {
        const auto least = arch::broadcast16<Arch>(t.min[v][s]);
        const auto scale = arch::broadcast16<Arch>(inverse[plan::group_of(s)]);
        for (std::size_t e = 0; e < E; e += 16) {
          const auto q = (arch::load_f32<Arch>(&t.lut[v][s][e]) - least) * scale;
          if constexpr (HiLo) {
            arch::store_high_low<Arch, plan::low_bits>(planes + e, planes + E + e, q);
          } else {
            arch::store_u8(planes + e, q);
          }
        }
        for (std::size_t p = 0; p < plan::planes; ++p, planes += E) {
          arch::prepare_table<Arch>(planes, E);
        }
      }
    }
  }
};

}  // namespace waste::kernels
