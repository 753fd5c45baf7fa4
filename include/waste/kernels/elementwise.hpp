// Norms, activations, softmax and small sums of a step, on sixteen lanes.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "waste/kernels/lanes.hpp"

namespace waste::kernels {

/// e^r - 1 - r = r^2 q(r) on |r| <= ln 2 / 2, q of degree 4 (fitted for least relative error of
/// e^r - 1: 4e-9). `n` receives the exponent of two as floats: x = n ln 2 + r.
template <class Arch>
inline Lanes<Arch> expm1_reduced(const Lanes<Arch>& x, Lanes<Arch>& n) noexcept {
  using L = Lanes<Arch>;
  // Adding 1.5 * 2^23 rounds to an integer, half to even, on every tier.
  const L shifter = L::splat(12582912.0f);
  n = fma(x, L::splat(1.44269504f), shifter) - shifter;
  // ln 2 in two parts; the first has few bits, so that n times it is exact.
  L r = fma(n, L::splat(-0.693359375f), x);
  r = fma(n, L::splat(2.12194440e-4f), r);
  L q = fma(L::splat(1.388172386e-3f), r, L::splat(8.370268159e-3f));
  q = fma(q, r, L::splat(4.1667357087e-2f));
  q = fma(q, r, L::splat(1.6666507721e-1f));
  q = fma(q, r, L::splat(0.49999997020f));
  return fma(r * r, q, r);
}

/// a * 2^n for integral n in [-126, 127].
template <class Arch>
inline Lanes<Arch> scale_by_power(const Lanes<Arch>& a, const Lanes<Arch>& n) noexcept {
  Lanes<Arch> out;
  for (std::size_t i = 0; i < Lanes<Arch>::parts; ++i) {
    out.v[i] = xsimd::ldexp(a.v[i], xsimd::to_int(n.v[i]));
  }
  return out;
}

/// e^x within 2 units in the last place for -87.3 <= x <= 88; below, 0; above, e^88 (1.65e38); NaN
/// stays NaN.
template <class Arch>
inline Lanes<Arch> exp(const Lanes<Arch>& x) noexcept {
  using L = Lanes<Arch>;
  using Batch = typename L::Batch;
  L n;
  const L em1 = expm1_reduced(clamp(x, -87.3f, 88.0f), n);
  const L e = scale_by_power(em1 + L::splat(1.0f), n);
  const Batch low(-87.3f), zero(0.0f);
  return L::map([&](const Batch& a, const Batch& b) { return xsimd::select(a < low, zero, b); }, x,
                e);
}

/// 1 / (1 + e^-x).
template <class Arch>
inline Lanes<Arch> sigmoid(const Lanes<Arch>& x) noexcept {
  using L = Lanes<Arch>;
  const L one = L::splat(1.0f);
  return one / (one + exp(L::splat(0.0f) - x));
}

/// tanh(x) = (e^2x - 1) / (e^2x + 1), relative error a few units in the last place also near 0.
template <class Arch>
inline Lanes<Arch> tanh(const Lanes<Arch>& x) noexcept {
  using L = Lanes<Arch>;
  const L c = clamp(x, -10.0f, 10.0f);
  L n;
  const L em1 = expm1_reduced(c + c, n);
  const L power = scale_by_power(L::splat(1.0f), n);
  const L e = fma(power, em1, power - L::splat(1.0f));
  return e / (e + L::splat(2.0f));
}

/// log(1 + u) for 0 <= u <= 1: 2 atanh(s), s = u / (2 + u), a polynomial of degree 4 in s^2
/// (1e-10).
template <class Arch>
inline Lanes<Arch> log1p_unit(const Lanes<Arch>& u) noexcept {
  using L = Lanes<Arch>;
  const L s = u / (L::splat(2.0f) + u);
  const L z = s * s;
  L p = fma(L::splat(0.12150468677f), z, L::splat(0.10713828355f));
  p = fma(p, z, L::splat(0.14308442175f));
  p = fma(p, z, L::splat(0.19999438524f));
  p = fma(p, z, L::splat(0.33333337307f));
  const L twice = s + s;
  return fma(twice * z, p, twice);
}

/// log(1 + e^x) = max(x, 0) + log1p(e^-|x|).
template <class Arch>
inline Lanes<Arch> softplus(const Lanes<Arch>& x) noexcept {
  using L = Lanes<Arch>;
  const L zero = L::splat(0.0f);
  return larger(x, zero) + log1p_unit(exp(zero - abs(x)));
}

/// x sigmoid(x).
template <class Arch>
inline Lanes<Arch> silu(const Lanes<Arch>& x) noexcept {
  return x * sigmoid(x);
}

/// The sum of x_i^2, i < n: sixteen partial sums and the tree.
template <class Arch>
inline float sum_of_squares(const float* x, std::size_t n) noexcept {
  using L = Lanes<Arch>;
  L acc = L::splat(0.0f);
  for (std::size_t i = 0; i < n; i += L::size) {
    const L a = L::load(x + i, n - i);
    acc = fma(a, a, acc);
  }
  return sum(acc);
}

/// 1 / sqrt(mean(x^2) + eps).
template <class Arch>
inline float inverse_rms(const float* x, std::size_t n, float eps) noexcept {
  return 1.0f / std::sqrt(sum_of_squares<Arch>(x, n) / static_cast<float>(n) + eps);
}

/// out[i] = f(lanes of x[i]) for i < n; out may be x.
template <class Arch, class F>
inline void transform(const float* x, std::size_t n, float* out, F&& f) noexcept {
  using L = Lanes<Arch>;
  for (std::size_t i = 0; i < n; i += L::size) f(L::load(x + i, n - i)).store(out + i, n - i);
}
/// out[i] = f(lanes of a[i], lanes of b[i]) for i < n; out may be a or b.
template <class Arch, class F>
inline void transform(const float* a, const float* b, std::size_t n, float* out, F&& f) noexcept {
  using L = Lanes<Arch>;
  for (std::size_t i = 0; i < n; i += L::size) {
    f(L::load(a + i, n - i), L::load(b + i, n - i)).store(out + i, n - i);
  }
}

/// out_i = x_i w_i / sqrt(mean(x^2) + eps).
struct rms_norm {
  template <class Arch>
  void operator()(Arch, const float* x, const float* w, std::size_t n, float eps,
                  float* out) const noexcept {
    using L = Lanes<Arch>;
    const L scale = L::splat(inverse_rms<Arch>(x, n, eps));
    transform<Arch>(x, w, n, out, [&](const L& a, const L& b) { return a * scale * b; });
  }
};

/// out_i = x_i w_i / sqrt(mean(x^2) + eps) * sigmoid(gate_i): the output norm of a KDA head.
struct gated_rms_norm {
  template <class Arch>
  void operator()(Arch, const float* x, const float* w, const float* gate, std::size_t n, float eps,
                  float* out) const noexcept {
    using L = Lanes<Arch>;
    const L scale = L::splat(inverse_rms<Arch>(x, n, eps));
    for (std::size_t i = 0; i < n; i += L::size) {
      const L a = L::load(x + i, n - i) * scale * L::load(w + i, n - i);
      (a * sigmoid(L::load(gate + i, n - i))).store(out + i, n - i);
    }
  }
};

/// Returns (sum of x_i w_i) / sqrt(mean(x^2) + eps): the score of one row of attention residuals.
struct rms_dot {
  template <class Arch>
  float operator()(Arch, const float* x, const float* w, std::size_t n, float eps) const noexcept {
    using L = Lanes<Arch>;
    L squares = L::splat(0.0f), dot = squares;
    for (std::size_t i = 0; i < n; i += L::size) {
      const L a = L::load(x + i, n - i);
      squares = fma(a, a, squares);
      dot = fma(a, L::load(w + i, n - i), dot);
    }
    return sum(dot) / std::sqrt(sum(squares) / static_cast<float>(n) + eps);
  }
};

/// In place: x_i = e^(x_i - m) / sum over j of e^(x_j - m), m the largest. n >= 1.
struct softmax {
  template <class Arch>
  void operator()(Arch, float* x, std::size_t n) const noexcept {
    using L = Lanes<Arch>;
    constexpr float least = -std::numeric_limits<float>::infinity();
    L top = L::splat(least);
    for (std::size_t i = 0; i < n; i += L::size) top = larger(L::load(x + i, n - i, least), top);
    const L m = L::splat(max_of(top));
    L total = L::splat(0.0f);
    for (std::size_t i = 0; i < n; i += L::size) {
      const L e = exp(L::load(x + i, n - i, least) - m);
      e.store(x + i, n - i);
      total = total + e;
    }
    const L scale = L::splat(1.0f / sum(total));
    transform<Arch>(x, n, x, [&](const L& a) { return a * scale; });
  }
};

/// out_i = sigmoid(x_i).
struct sigmoid_array {
  template <class Arch>
  void operator()(Arch, const float* x, std::size_t n, float* out) const noexcept {
    transform<Arch>(x, n, out, [](const Lanes<Arch>& a) { return sigmoid(a); });
  }
};

/// out_i = x_i sigmoid(gate_i).
struct gate_array {
  template <class Arch>
  void operator()(Arch, const float* x, const float* gate, std::size_t n,
                  float* out) const noexcept {
    using L = Lanes<Arch>;
    transform<Arch>(x, gate, n, out, [](const L& a, const L& g) { return a * sigmoid(g); });
  }
};

/// out_i = silu(g_i) u_i.
struct silu_pair {
  template <class Arch>
  void operator()(Arch, const float* g, const float* u, std::size_t n, float* out) const noexcept {
    using L = Lanes<Arch>;
    transform<Arch>(g, u, n, out, [](const L& a, const L& b) { return silu(a) * b; });
  }
};

/// out_i = beta tanh(g_i / beta) sigmoid(g_i) * (linear_beta > 0 ? linear_beta tanh(u_i /
/// linear_beta) : u_i).
struct situ_pair {
  template <class Arch>
  void operator()(Arch, const float* g, const float* u, std::size_t n, float beta,
                  float linear_beta, float* out) const noexcept {
    using L = Lanes<Arch>;
    const L b = L::splat(beta), lb = L::splat(linear_beta);
    const auto gated = [&](const L& x) { return b * tanh(x / b) * sigmoid(x); };
    if (linear_beta > 0.0f) {
      transform<Arch>(g, u, n, out,
                      [&](const L& x, const L& y) { return gated(x) * (lb * tanh(y / lb)); });
    } else {
      transform<Arch>(g, u, n, out, [&](const L& x, const L& y) { return gated(x) * y; });
    }
  }
};

/// y_i += a x_i, fused.
struct axpy {
  template <class Arch>
  void operator()(Arch, float a, const float* x, std::size_t n, float* y) const noexcept {
    using L = Lanes<Arch>;
    const L scale = L::splat(a);
    transform<Arch>(x, y, n, y, [&](const L& p, const L& q) { return fma(scale, p, q); });
  }
};

/// out_i = a_i + b_i.
struct add {
  template <class Arch>
  void operator()(Arch, const float* a, const float* b, std::size_t n, float* out) const noexcept {
    using L = Lanes<Arch>;
    transform<Arch>(a, b, n, out, [](const L& p, const L& q) { return p + q; });
  }
};

}  // namespace waste::kernels
