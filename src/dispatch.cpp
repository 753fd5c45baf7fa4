#include <cstdlib>
#include <string>

#include "waste/arch/cpu.hpp"
#include "waste/core/error.hpp"
#include "waste/kernels/kernel_table.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace waste::kernels {

#define WASTE_DECLARE_TIER(name)                                                     \
  extern const MatrixKernels matrix_kernels_##name;                                  \
  extern const StepKernels step_kernels_##name;                                      \
  extern const EncodeKernels encode_kernels_##name;                                  \
  static const KernelTable table_##name = {arch::Tier::name, &matrix_kernels_##name, \
                                           &step_kernels_##name, &encode_kernels_##name};

#if defined(WASTE_HAS_TIER_baseline)
WASTE_DECLARE_TIER(baseline)
#endif
#if defined(WASTE_HAS_TIER_avx2)
WASTE_DECLARE_TIER(avx2)
#endif
#if defined(WASTE_HAS_TIER_avx512bw)
WASTE_DECLARE_TIER(avx512bw)
#endif
#if defined(WASTE_HAS_TIER_icelake)
WASTE_DECLARE_TIER(icelake)
#endif
#if defined(WASTE_HAS_TIER_neon64)
WASTE_DECLARE_TIER(neon64)
#endif
#undef WASTE_DECLARE_TIER

namespace {

const KernelTable* built_table(arch::Tier tier) noexcept {
  switch (tier) {
#if defined(WASTE_HAS_TIER_baseline)
    case arch::Tier::baseline:
      return &table_baseline;
#endif
#if defined(WASTE_HAS_TIER_avx2)
    case arch::Tier::avx2:
      return &table_avx2;
#endif
#if defined(WASTE_HAS_TIER_avx512bw)
    case arch::Tier::avx512bw:
      return &table_avx512bw;
#endif
#if defined(WASTE_HAS_TIER_icelake)
    case arch::Tier::icelake:
      return &table_icelake;
#endif
#if defined(WASTE_HAS_TIER_neon64)
    case arch::Tier::neon64:
      return &table_neon64;
#endif
    default:
      return nullptr;
  }
}

}  // namespace

const KernelTable& kernel_table(arch::Tier tier) {
  const KernelTable* table = built_table(tier);
  if (table == nullptr || !arch::can_run(tier)) {
    throw Error(fault(Errc::unsupported, "tier"), {},
                std::string(arch::to_string(tier)) + " cannot run on this machine");
  }
  return *table;
}

const KernelTable& active_kernels() {
  static const KernelTable& table = kernel_table(arch::active_tier());
  return table;
}

}  // namespace waste::kernels

namespace waste::arch {
namespace {

#if defined(__x86_64__)
// The probe of clang 14 does not know this name.
bool has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

bool can_run(Tier tier) noexcept {
  switch (tier) {
    case Tier::baseline:
      return true;
#if defined(__x86_64__)
    // The compiler's probe includes the XGETBV check that the OS saves the wide registers.
    case Tier::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             has_f16c() && __builtin_cpu_supports("bmi2");
    case Tier::avx512bw:
      return can_run(Tier::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case Tier::icelake:
      return can_run(Tier::avx512bw) && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512bitalg") &&
             __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("gfni") &&
             __builtin_cpu_supports("vpclmulqdq");
#endif
#if defined(__aarch64__)
    case Tier::neon64:
      return true;
#endif
    default:
      return false;
  }
}

std::vector<Tier> runnable_tiers() {
  std::vector<Tier> out;
  for (const Tier tier :
       {Tier::baseline, Tier::avx2, Tier::avx512bw, Tier::icelake, Tier::neon64}) {
    if (kernels::built_table(tier) != nullptr && can_run(tier)) out.push_back(tier);
  }
  return out;
}

std::optional<Tier> parse_tier(std::string_view name) noexcept {
  for (const Tier tier :
       {Tier::baseline, Tier::avx2, Tier::avx512bw, Tier::icelake, Tier::neon64}) {
    if (name == to_string(tier)) return tier;
  }
  return std::nullopt;
}

Tier active_tier() {
  static const Tier tier = [] {
    const char* forced = std::getenv("WASTE_ARCH");
    if (forced == nullptr || *forced == '\0') return runnable_tiers().back();
    const std::optional<Tier> named = parse_tier(forced);
    if (!named) {
      throw Error(fault(Errc::bad_argument, "WASTE_ARCH"), {},
                  std::string("unknown tier \"") + forced +
                      "\", wanted baseline, avx2, avx512bw, icelake or neon64");
    }
    return kernels::kernel_table(*named).tier;
  }();
  return tier;
}

}  // namespace waste::arch
