// Sixteen f32 lanes on every tier: what makes sums and functions the same bits everywhere.
#pragma once

#include <cstddef>

#include "waste/arch/ops.hpp"

namespace waste::kernels {

/// Sixteen floats in as many batches as the tier needs (1 on AVX-512, 2 on AVX2, 4 on SSE2 and
/// NEON). Lane i of a vector that walks an array holds the elements i modulo 16, so a sum kept in
/// Lanes and folded by sum() has one order of additions on every tier. Where the tier fuses
/// multiply-add, every operation here is correctly rounded, hence bit-identical between such tiers.
template <class Arch>
struct Lanes {
  using Batch = arch::f32_batch<Arch>;
  static constexpr std::size_t size = 16;
  static constexpr std::size_t parts = size / Batch::size;

  Batch v[parts];

  static Lanes splat(float x) noexcept {
    Lanes out;
    for (std::size_t i = 0; i < parts; ++i) out.v[i] = Batch(x);
    return out;
  }
  static Lanes load(const float* p) noexcept {
    Lanes out;
    for (std::size_t i = 0; i < parts; ++i) {
      out.v[i] = Batch::load_unaligned(p + i * Batch::size);
    }
    return out;
  }
  /// The first n lanes from memory, the others `fill`; reads nothing past p + n.
  static Lanes load(const float* p, std::size_t n, float fill = 0.0f) noexcept {
    if (n >= size) return load(p);
    float buffer[size];
    for (std::size_t i = 0; i < size; ++i) buffer[i] = i < n ? p[i] : fill;
    return load(buffer);
  }
  void store(float* p) const noexcept {
    for (std::size_t i = 0; i < parts; ++i) v[i].store_unaligned(p + i * Batch::size);
  }
  /// The first n lanes to memory; writes nothing past p + n.
  void store(float* p, std::size_t n) const noexcept {
    if (n >= size) return store(p);
    float buffer[size];
    store(buffer);
    for (std::size_t i = 0; i < n; ++i) p[i] = buffer[i];
  }

  template <class F>
  static Lanes map(F&& f, const Lanes& a) noexcept {
    Lanes out;
    for (std::size_t i = 0; i < parts; ++i) out.v[i] = f(a.v[i]);
    return out;
  }
  template <class F>
  static Lanes map(F&& f, const Lanes& a, const Lanes& b) noexcept {
    Lanes out;
    for (std::size_t i = 0; i < parts; ++i) out.v[i] = f(a.v[i], b.v[i]);
    return out;
  }

  friend Lanes operator+(const Lanes& a, const Lanes& b) noexcept {
    return map([](const Batch& x, const Batch& y) { return x + y; }, a, b);
  }
  friend Lanes operator-(const Lanes& a, const Lanes& b) noexcept {
    return map([](const Batch& x, const Batch& y) { return x - y; }, a, b);
  }
  friend Lanes operator*(const Lanes& a, const Lanes& b) noexcept {
    return map([](const Batch& x, const Batch& y) { return x * y; }, a, b);
  }
  /// Correctly rounded: of the registers themselves, as xsimd 8.1 divides by an estimated
  /// reciprocal on AArch64.
  friend Lanes operator/(const Lanes& a, const Lanes& b) noexcept {
    using Register = typename Batch::register_type;
    return map(
        [](const Batch& x, const Batch& y) {
          return Batch(static_cast<Register>(x) / static_cast<Register>(y));
        },
        a, b);
  }
};

/// a * b + c, fused where the tier can (Arch::has_fma), else rounded twice.
template <class Arch>
inline Lanes<Arch> fma(const Lanes<Arch>& a, const Lanes<Arch>& b, const Lanes<Arch>& c) noexcept {
  Lanes<Arch> out;
  for (std::size_t i = 0; i < Lanes<Arch>::parts; ++i) {
    out.v[i] = arch::fma<Arch>(a.v[i], b.v[i], c.v[i]);
  }
  return out;
}
template <class Arch>
inline Lanes<Arch> abs(const Lanes<Arch>& a) noexcept {
  using Batch = typename Lanes<Arch>::Batch;
  return Lanes<Arch>::map([](const Batch& x) { return xsimd::abs(x); }, a);
}
/// Per lane a where a > b, else b (also where either is NaN, unlike the tiers' own maxima).
template <class Arch>
inline Lanes<Arch> larger(const Lanes<Arch>& a, const Lanes<Arch>& b) noexcept {
  using Batch = typename Lanes<Arch>::Batch;
  return Lanes<Arch>::map([](const Batch& x, const Batch& y) { return xsimd::select(x > y, x, y); },
                          a, b);
}
/// Per lane lo where a < lo, hi where a > hi, else a; NaN stays NaN.
template <class Arch>
inline Lanes<Arch> clamp(const Lanes<Arch>& a, float lo, float hi) noexcept {
  using Batch = typename Lanes<Arch>::Batch;
  const Batch low(lo), high(hi);
  return Lanes<Arch>::map(
      [&](const Batch& x) { return xsimd::select(x < low, low, xsimd::select(x > high, high, x)); },
      a);
}

/// The sum of the lanes by the one reduction tree (arch::sum_tree).
template <class Arch>
inline float sum(const Lanes<Arch>& a) noexcept {
  arch::f32x16<Arch> x;
  for (std::size_t i = 0; i < Lanes<Arch>::parts; ++i) x.v[i] = a.v[i];
  return arch::sum_tree(x);
}
/// The largest lane; the order of comparisons does not show in the result.
template <class Arch>
inline float max_of(const Lanes<Arch>& a) noexcept {
  float lane[16];
  a.store(lane);
  float best = lane[0];
  for (int i = 1; i < 16; ++i) best = lane[i] > best ? lane[i] : best;
  return best;
}

}  // namespace waste::kernels
