// Sixteen int32 lanes held in as many registers as the tier needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/i32_ops.hpp"
#include "waste/arch/detail/inline.hpp"
#include "waste/arch/tags.hpp"

namespace waste::arch {

/// Lane i is lane i % batch::size of v[i / batch::size]. All operations are exact (modulo 2^32),
/// so lanes hold the same bits on every tier.
template <class Arch>
struct i32x16 {
  using batch = xsimd::batch<std::int32_t, typename Arch::xsimd_arch>;
  static constexpr std::size_t count = 16 / batch::size;
  batch v[count];

  static WASTE_INLINE i32x16 broadcast(std::int32_t value) noexcept {
    i32x16 out;
    for (auto& v : out.v) v = batch(value);
    return out;
  }
  /// Sixteen int32 at any address.
  static WASTE_INLINE i32x16 load(const void* from) noexcept {
    i32x16 out;
    for (std::size_t i = 0; i < count; ++i) {
      out.v[i] = batch::load_unaligned(static_cast<const std::int32_t*>(from) + i * batch::size);
    }
    return out;
  }
  WASTE_INLINE void store(std::int32_t* to) const noexcept {
    for (std::size_t i = 0; i < count; ++i) v[i].store_unaligned(to + i * batch::size);
  }
};

template <class Arch>
WASTE_INLINE i32x16<Arch> operator+(const i32x16<Arch>& a, const i32x16<Arch>& b) noexcept {
  i32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = a.v[i] + b.v[i];
  return out;
}
template <class Arch>
WASTE_INLINE i32x16<Arch> operator&(const i32x16<Arch>& a, const i32x16<Arch>& b) noexcept {
  i32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = a.v[i] & b.v[i];
  return out;
}
template <class Arch>
WASTE_INLINE i32x16<Arch> operator|(const i32x16<Arch>& a, const i32x16<Arch>& b) noexcept {
  i32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = a.v[i] | b.v[i];
  return out;
}
template <class Arch>
WASTE_INLINE i32x16<Arch> min(const i32x16<Arch>& a, const i32x16<Arch>& b) noexcept {
  i32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = xsimd::min(a.v[i], b.v[i]);
  return out;
}
template <class Arch>
WASTE_INLINE i32x16<Arch> shift_left(const i32x16<Arch>& a, int bits) noexcept {
  i32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) out.v[i] = a.v[i] << bits;
  return out;
}
/// In each lane acc + a0 b0 + a1 b1, lanes of a and b being two int16, the first in the low half.
template <class Arch>
WASTE_INLINE i32x16<Arch> dot_i16(const i32x16<Arch>& acc, const i32x16<Arch>& a,
                                  const i32x16<Arch>& b) noexcept {
  i32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) {
    out.v[i] = detail::i32_ops<Arch>::dot(acc.v[i], a.v[i], b.v[i]);
  }
  return out;
}
/// The bits of each lane as f32: for lanes >= 0 they order as the lanes do.
template <class Arch>
WASTE_INLINE i32x16<Arch> float_bits(const i32x16<Arch>& x) noexcept {
  i32x16<Arch> out;
  for (std::size_t i = 0; i < out.count; ++i) {
    out.v[i] = detail::i32_ops<Arch>::float_bits(x.v[i]);
  }
  return out;
}

/// The smallest lane, and the number of the first lane that holds it.
template <class Arch>
WASTE_INLINE std::int32_t first_least(const i32x16<Arch>& x, std::size_t& lane) noexcept {
  using ops = detail::i32_ops<Arch>;
  auto all = x.v[0];
  for (std::size_t i = 1; i < x.count; ++i) all = xsimd::min(all, x.v[i]);
  const std::int32_t least = ops::least(all);
  const typename i32x16<Arch>::batch wanted(least);
  std::uint32_t lanes = 0;
  for (std::size_t i = 0; i < x.count; ++i) {
    lanes |= ops::equal_lanes(x.v[i], wanted) << (i * i32x16<Arch>::batch::size);
  }
  lane = static_cast<std::size_t>(__builtin_ctz(lanes));
  return least;
}

}  // namespace waste::arch
