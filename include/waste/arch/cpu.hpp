// Which tiers this CPU and operating system can run, and which one is in force.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "waste/arch/tier.hpp"

namespace waste::arch {

/// Whether this process may execute the tier: built for this architecture, present in the CPU and
/// enabled by the operating system.
bool can_run(Tier tier) noexcept;

/// Every tier that is built into the library and can run here, weakest first.
std::vector<Tier> runnable_tiers();

/// The tier of a name such as "avx2"; nothing for an unknown one.
std::optional<Tier> parse_tier(std::string_view name) noexcept;

/// The tier in force: the best runnable one, or the one that the environment variable WASTE_ARCH
/// names. Read once. Throws Error (bad_argument) for an unknown name and (unsupported) for a tier
/// that cannot run here; a forced tier is never silently replaced.
Tier active_tier();

}  // namespace waste::arch
