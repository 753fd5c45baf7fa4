// Random weights and inputs for the quantizers' tests.
#pragma once

#include <cstdint>
#include <vector>

#include "waste/quant/random.hpp"

namespace waste::test {

inline std::vector<float> gaussian(std::size_t n, std::uint64_t seed) {
  quant::Random random(seed);
  std::vector<float> out(n);
  for (float& v : out) v = static_cast<float>(random.normal());
  return out;
}

/// Inputs [tokens][cols] that mix `cols` independent sources of falling power: strongly correlated.
inline std::vector<float> correlated(std::size_t tokens, std::size_t cols, std::uint64_t seed) {
  const auto mix = gaussian(cols * cols, 99), sources = gaussian(tokens * cols, seed);
  std::vector<float> out(tokens * cols);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t k = 0; k < cols; ++k) {
      const float power = sources[t * cols + k] / static_cast<float>(1 + k);
      for (std::size_t c = 0; c < cols; ++c) out[t * cols + c] += power * mix[k * cols + c];
    }
  }
  return out;
}

}  // namespace waste::test
