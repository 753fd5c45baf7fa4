// The CPU tiers that kernels are built for, as tag types.
#pragma once

#include <xsimd/xsimd.hpp>

#include "waste/arch/tier.hpp"

namespace waste::arch {

#if defined(__aarch64__)
/// What every CPU of the architecture has: here NEON, which includes fused multiply-add.
struct baseline {
  static constexpr Tier tier = Tier::baseline;
  using xsimd_arch = xsimd::neon64;
  static constexpr bool has_fma = true;
};
#else
/// What every CPU of the architecture has: here SSE2, without fused multiply-add.
struct baseline {
  static constexpr Tier tier = Tier::baseline;
  using xsimd_arch = xsimd::sse2;
  static constexpr bool has_fma = false;
};
#endif

/// AVX2 with FMA and F16C (x86-64-v3).
struct avx2 {
  static constexpr Tier tier = Tier::avx2;
  using xsimd_arch = xsimd::fma3<xsimd::avx2>;
  static constexpr bool has_fma = true;
};
/// AVX-512 F, BW, CD, DQ, VL (x86-64-v4).
struct avx512bw {
  static constexpr Tier tier = Tier::avx512bw;
  using xsimd_arch = xsimd::avx512bw;
  static constexpr bool has_fma = true;
};
/// AVX-512 with VBMI and VNNI. xsimd's own arch stays avx512bw: its newer tags change no
/// arithmetic.
struct icelake {
  static constexpr Tier tier = Tier::icelake;
  using xsimd_arch = xsimd::avx512bw;
  static constexpr bool has_fma = true;
};
/// AArch64 NEON with byte table lookup.
struct neon64 {
  static constexpr Tier tier = Tier::neon64;
  using xsimd_arch = xsimd::neon64;
  static constexpr bool has_fma = true;
};

}  // namespace waste::arch
