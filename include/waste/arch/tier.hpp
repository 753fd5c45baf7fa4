// The CPU tiers as run-time values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace waste::arch {

/// Run-time names of the tiers, weakest first within one architecture.
enum class Tier : std::uint8_t { baseline, avx2, avx512bw, icelake, neon64 };

constexpr std::string_view to_string(Tier tier) noexcept {
  constexpr std::string_view names[] = {"baseline", "avx2", "avx512bw", "icelake", "neon64"};
  return names[static_cast<std::size_t>(tier)];
}

}  // namespace waste::arch
