// Damages to the bytes of one file, each named by a few bytes of a fuzzer's input.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fuzz_target.hpp"

namespace waste::fuzz {

using Bytes = std::vector<std::uint8_t>;

/// Numbers at the edges of the fields that files have.
inline constexpr std::array<std::uint64_t, 24> interesting = {
    0,          1,          2,          3,           7,          8,
    63,         64,         65,         127,         128,        255,
    256,        4095,       4096,       65535,       65536,      (1u << 20) + 1,
    0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 1ull << 62, 0xffffffffffffffff};

struct Damage {
  std::uint8_t file, kind;
  std::uint32_t at;
  std::uint16_t value;
};

/// The next eight bytes of an input.
inline Damage take_damage(Input& in) noexcept {
  Damage d;
  d.file = static_cast<std::uint8_t>(in.take(1));
  d.kind = static_cast<std::uint8_t>(in.take(1));
  d.at = static_cast<std::uint32_t>(in.take(4));
  d.value = static_cast<std::uint16_t>(in.take(2));
  return d;
}

/// Replaces the n-th run of digits in a JSON text.
inline void replace_number(Bytes& text, std::size_t n, std::uint64_t value) {
  std::vector<std::pair<std::size_t, std::size_t>> numbers;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (end > i) numbers.emplace_back(i, end);
    i = end + 1;
  }
  if (numbers.empty()) return;
  const auto [from, to] = numbers[n % numbers.size()];
  const std::string digits = std::to_string(value);
  text.erase(text.begin() + static_cast<std::ptrdiff_t>(from),
             text.begin() + static_cast<std::ptrdiff_t>(to));
  text.insert(text.begin() + static_cast<std::ptrdiff_t>(from), digits.begin(), digits.end());
}

/// Flip, overwrite by 2 or 4 bytes, cut, grow, zero, another number in a text, erase.
inline void damage(Bytes& bytes, const Damage& d) {
  const std::size_t n = bytes.size();
  if (n == 0) return;
  const std::size_t at = d.at % n;
  const std::uint64_t number = interesting[d.value % interesting.size()];
  switch (d.kind % 8) {
    case 0:
      bytes[at] ^= static_cast<std::uint8_t>(1u << (d.value & 7));
      break;
    case 1:
      std::memcpy(&bytes[at], &d.value, std::min<std::size_t>(2, n - at));
      break;
    case 2:
      std::memcpy(&bytes[at], &number, std::min<std::size_t>(4, n - at));
      break;
    case 3:
      bytes.resize(at);
      break;
    case 4:
      bytes.resize(n + d.value % 8192);
      break;
    case 5:
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                bytes.begin() + static_cast<std::ptrdiff_t>(std::min(n, at + d.value)),
                std::uint8_t{0});
      break;
    case 6:
      replace_number(bytes, d.at, number);
      break;
    case 7:
      bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                  bytes.begin() + static_cast<std::ptrdiff_t>(std::min(n, at + d.value % 64)));
      break;
  }
}

/// The files that the damages in the rest of an input hit, at most 16 of them: file number to
/// bytes. `original(file)` is a file as it was; `apply(damage, file, bytes)` does each.
template <typename Original, typename Apply>
std::map<std::size_t, Bytes> take_damages(Input& in, std::size_t files, const Original& original,
                                          const Apply& apply) {
  std::map<std::size_t, Bytes> changed;
  for (int n = 0; n < 16 && in.left() > 0; ++n) {
    const Damage d = take_damage(in);
    const std::size_t file = d.file % files;
    const auto [it, first] = changed.try_emplace(file);
    if (first) it->second = original(file);
    apply(d, file, it->second);
  }
  return changed;
}

}  // namespace waste::fuzz
