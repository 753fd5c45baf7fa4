// A small random source whose stream is the same on every machine and compiler.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace waste::quant {

/// One step of splitmix64 (Steele, Lea, Flood 2014): a bijective mix of 64 bits.
constexpr std::uint64_t splitmix64(std::uint64_t& state) noexcept {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// One seed out of a seed and any numbers that tell streams apart, e.g. {layer, kind}.
constexpr std::uint64_t mix_seed(std::uint64_t seed,
                                 std::initializer_list<std::uint64_t> words) noexcept {
  for (const std::uint64_t word : words) {
    std::uint64_t state = seed ^ (word + 0x632be59bd9b4e019u);
    seed = splitmix64(state);
  }
  return seed;
}

/// xoshiro256** (Blackman, Vigna 2018), seeded by splitmix64. Integer arithmetic and exact
/// conversions only, so that no library function and no rounding mode can change a value.
class Random {
 public:
  constexpr explicit Random(std::uint64_t seed) noexcept {
    for (std::uint64_t& word : state_) word = splitmix64(seed);
  }

  constexpr std::uint64_t next() noexcept {
    const std::uint64_t out = rotate(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return out;
  }

  /// Uniform in [0, bound), 0 < bound <= 2^32; the bias is below bound / 2^32.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    return (next() >> 32) * bound >> 32;
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  constexpr double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Mean 0, variance 1, |x| < 6: the centred sum of twelve uniform 16-bit numbers.
  constexpr double normal() noexcept {
    std::int64_t total = 0;
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t word = next();
      for (int k = 0; k < 64; k += 16) total += static_cast<std::int64_t>(word >> k & 0xffffu);
    }
    return static_cast<double>(total - 6 * 65535) * 0x1p-16;
  }

 private:
  static constexpr std::uint64_t rotate(std::uint64_t x, int k) noexcept {
    return (x << k) | (x >> (64 - k));
  }
  std::uint64_t state_[4] = {};
};

}  // namespace waste::quant
