#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "support/catch.hpp"
#include "support/matrices.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/arch/ops.hpp"
#include "waste/core/error.hpp"
#include "waste/kernels/kernel_table.hpp"
#include "waste/nn/matvec.hpp"

using namespace waste;

namespace {

/// What the child wrote: the tier in force and the bits of one product of it.
struct Report {
  int error = -1;  ///< an Errc, or 0
  int tier = -1;
  std::uintptr_t kernel = 0;
  float y[3] = {};
};

Report compute() {
  Report out;
  try {
    out.tier = static_cast<int>(arch::active_tier());
    const auto& table = kernels::active_kernels();
    if (static_cast<int>(table.tier) != out.tier) return out;
    out.kernel = reinterpret_cast<std::uintptr_t>(table.matrix->trunk_matvec);
    const auto w = test::make_trunk(format::Fmt::f32, 3, 5000, test::Scales::ordinary, 1);
    const auto x = test::Random(2).bells(5000);
    matvec(w.view, x, out.y);
    out.error = 0;
  } catch (const Error& e) {
    out.error = static_cast<int>(e.code());
  }
  return out;
}

/// Runs compute() in a child process whose environment forces `tier`: active_tier() is read once a
/// process.
Report with_forced(const char* tier) {
  int fds[2];
  REQUIRE(pipe(fds) == 0);
  const pid_t child = fork();
  if (child == 0) {
    setenv("WASTE_ARCH", tier, 1);
    const Report r = compute();
    _exit(write(fds[1], &r, sizeof r) == sizeof r ? 0 : 1);
  }
  close(fds[1]);
  Report r;
  const bool whole = read(fds[0], &r, sizeof r) == sizeof r;
  close(fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(whole);
  return r;
}

}  // namespace

TEST_CASE("tier names and values are one list", "[arch]") {
  for (const auto tier : {arch::Tier::baseline, arch::Tier::avx2, arch::Tier::avx512bw,
                          arch::Tier::icelake, arch::Tier::neon64}) {
    CHECK(arch::parse_tier(arch::to_string(tier)) == tier);
  }
  CHECK(arch::parse_tier("AVX2") == std::nullopt);
  CHECK(arch::parse_tier("") == std::nullopt);
}

TEST_CASE("runnable tiers begin with the baseline and each has its table", "[arch]") {
  const auto tiers = arch::runnable_tiers();
  REQUIRE(!tiers.empty());
  CHECK(tiers.front() == arch::Tier::baseline);
  CHECK(std::is_sorted(tiers.begin(), tiers.end()));
  std::vector<const kernels::MatrixKernels*> seen;
  for (const auto tier : tiers) {
    CHECK(arch::can_run(tier));
    const auto& table = kernels::kernel_table(tier);
    CHECK(table.tier == tier);
    CHECK(std::count(seen.begin(), seen.end(), table.matrix) == 0);
    seen.push_back(table.matrix);
  }
}

TEST_CASE("WASTE_ARCH forces a tier, and the forced tier's kernels run", "[arch]") {
  std::vector<std::uintptr_t> seen;
  Report fused;
  for (const auto tier : arch::runnable_tiers()) {
    INFO(arch::to_string(tier));
    const Report r = with_forced(std::string(arch::to_string(tier)).c_str());
    REQUIRE(r.error == 0);
    CHECK(r.tier == static_cast<int>(tier));
    // The child is a fork: its table holds this process's own addresses.
    CHECK(r.kernel ==
          reinterpret_cast<std::uintptr_t>(kernels::kernel_table(tier).matrix->trunk_matvec));
    CHECK(std::count(seen.begin(), seen.end(), r.kernel) == 0);
    seen.push_back(r.kernel);
#if defined(__x86_64__)
    // Behaviour tells the two families apart: without fused multiply-add some bit differs.
    if (tier == arch::Tier::avx2) fused = r;
    if (tier > arch::Tier::avx2) CHECK(std::equal(r.y, r.y + 3, fused.y));
#endif
  }
#if defined(__x86_64__)
  if (arch::can_run(arch::Tier::avx2)) {
    CHECK_FALSE(std::equal(fused.y, fused.y + 3, with_forced("baseline").y));
  }
#endif
}

TEST_CASE("a tier that is unknown or cannot run is an error, never a substitute", "[arch]") {
  CHECK(with_forced("avx9").error == static_cast<int>(Errc::bad_argument));
  for (const auto tier :
       {arch::Tier::avx2, arch::Tier::avx512bw, arch::Tier::icelake, arch::Tier::neon64}) {
    if (arch::can_run(tier)) continue;
    CHECK(with_forced(std::string(arch::to_string(tier)).c_str()).error ==
          static_cast<int>(Errc::unsupported));
    CHECK_THROWS_AS(kernels::kernel_table(tier), Error);
  }
  CHECK(with_forced("").tier == static_cast<int>(arch::runnable_tiers().back()));
}
