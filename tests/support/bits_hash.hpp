// FNV-1a over the bits of floats: one number that says whether two machines computed the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace waste::test {

/// Pinned numbers hold on x86-64 with fused multiply-add and on AArch64 alike. Every NaN counts as
/// the same: the sign of a new one is the machine's.
class BitsHash {
 public:
  void add(std::span<const float> values) {
    for (const float v : values) {
      std::uint32_t bits = 0x7fc00000u;
      if (v == v) std::memcpy(&bits, &v, sizeof bits);
      for (int i = 0; i < 32; i += 8) hash_ = (hash_ ^ (bits >> i & 255u)) * 0x100000001b3u;
    }
    used_ = used_ || !values.empty();
  }
  /// Whether nothing was added (no tier here fuses) or the hash is `want`.
  bool is(std::uint64_t want) const { return !used_ || hash_ == want; }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
  bool used_ = false;
};

}  // namespace waste::test
