// Overflow-safe arithmetic on sizes that come from files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace waste {

/// a * b, or nothing where it does not fit in 64 bits.
constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

/// a + b, or nothing where it does not fit in 64 bits.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

/// The smallest integer not below a / b; b must not be 0.
template <class T>
constexpr T ceil_div(T a, T b) noexcept {
  return a / b + (a % b != 0 ? T{1} : T{0});
}

/// `a` rounded up to a multiple of `b`; the caller knows that it fits.
template <class T>
constexpr T round_up(T a, T b) noexcept {
  return ceil_div(a, b) * b;
}

/// Accumulates a size and remembers whether any step overflowed.
class CheckedSize {
 public:
  constexpr explicit CheckedSize(std::uint64_t v = 0) noexcept : value_(v) {}
  constexpr CheckedSize& add(std::uint64_t v) noexcept {
    ok_ = ok_ && !__builtin_add_overflow(value_, v, &value_);
    return *this;
  }
  constexpr CheckedSize& mul(std::uint64_t v) noexcept {
    ok_ = ok_ && !__builtin_mul_overflow(value_, v, &value_);
    return *this;
  }
  constexpr bool ok() const noexcept { return ok_; }
  constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0;
  bool ok_ = true;
};

}  // namespace waste
