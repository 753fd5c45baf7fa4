// Kimi delta attention: the short convolution, the decay and one position of the delta rule.
#pragma once

#include <cmath>
#include <cstddef>

#include "waste/kernels/elementwise.hpp"
#include "waste/kernels/lanes.hpp"

namespace waste::kernels {

/// Causal depthwise convolution of one position and SiLU, for channels [begin, end):
///   y_c = sum over j < taps-1 of ring[j][c] w[j][c] + x_c w[taps-1][c];  out_c = silu(y_c)
/// then the ring (inputs before this one, oldest first) drops its oldest row and takes x.
/// w is [taps][channels], ring [taps-1][channels], x and out [channels]. out may be x.
struct short_conv {
  template <class Arch>
  void operator()(Arch, const float* w, float* ring, std::size_t taps, std::size_t channels,
                  const float* x, std::size_t begin, std::size_t end, float* out) const noexcept {
    using L = Lanes<Arch>;
    for (std::size_t c = begin; c < end; c += L::size) {
      const std::size_t n = end - c;
      const L in = L::load(x + c, n);
      L acc = L::splat(0.0f);
      for (std::size_t j = 0; j + 1 < taps; ++j) {
        const L old = L::load(ring + j * channels + c, n);
        acc = fma(old, L::load(w + j * channels + c, n), acc);
        if (j > 0) old.store(ring + (j - 1) * channels + c, n);
      }
      acc = fma(in, L::load(w + (taps - 1) * channels + c, n), acc);
      if (taps > 1) in.store(ring + (taps - 2) * channels + c, n);
      silu(acc).store(out + c, n);
    }
  }
};

/// Logarithm of one head's decay, z = g + dt_bias, i < n:
///   bounded:  g_log_i = bound * sigmoid(e^a_log z_i)       (bound < 0)
///   else:     g_log_i = -e^a_log * softplus(z_i)
struct kda_decay {
  template <class Arch>
  void operator()(Arch, const float* g, const float* dt_bias, float a_log, bool bounded,
                  float bound, std::size_t n, float* g_log) const noexcept {
    using L = Lanes<Arch>;
    const L a = exp(L::splat(a_log));
    const L factor = bounded ? L::splat(bound) : L::splat(0.0f) - a;
    transform<Arch>(g, dt_bias, n, g_log, [&](const L& x, const L& bias) {
      const L z = x + bias;
      return factor * (bounded ? sigmoid(a * z) : softplus(z));
    });
  }
};

/// One position of the gated delta rule for one head, S [dim][dim] row-major by key channel:
///   qn = q / sqrt(|q|^2 + eps) / sqrt(dim);  kn = k / sqrt(|k|^2 + eps)
///   S[k][:] *= e^g_log[k];  d = beta (v - sum_k S[k][:] kn[k]);  S[k][:] += kn[k] d
///   o = sum_k S[k][:] qn[k]
/// Lanes hold value channels, k runs in ascending order with fused multiply-add. `scratch` holds
/// 3 * dim floats. Nothing may alias.
struct kda_step {
  template <class Arch>
  void operator()(Arch, float* state, const float* q, const float* k, const float* v,
                  const float* g_log, float beta, float eps, std::size_t dim, float* scratch,
                  float* o) const noexcept {
    using L = Lanes<Arch>;
    float* qn = scratch;
    float* kn = qn + dim;
    float* decay = kn + dim;
    const L q_scale = L::splat(1.0f / std::sqrt(sum_of_squares<Arch>(q, dim) + eps) /
                               std::sqrt(static_cast<float>(dim)));
    const L k_scale = L::splat(1.0f / std::sqrt(sum_of_squares<Arch>(k, dim) + eps));
    transform<Arch>(q, dim, qn, [&](const L& a) { return a * q_scale; });
    transform<Arch>(k, dim, kn, [&](const L& a) { return a * k_scale; });
    transform<Arch>(g_log, dim, decay, [](const L& a) { return exp(a); });
    constexpr std::size_t wide = L::parts == 1 ? 4 : 2;  // what the registers hold
    std::size_t c = 0;
    for (; c + wide * L::size <= dim; c += wide * L::size) {
      columns<Arch, wide>(state, qn, kn, decay, v, beta, dim, c, L::size, o);
    }
    for (; c < dim; c += L::size) {
      columns<Arch, 1>(state, qn, kn, decay, v, beta, dim, c, dim - c, o);
    }
  }

 private:
  /// The value channels [c, c + (N-1)*16 + min(last, 16)).
  template <class Arch, std::size_t N>
  static void columns(float* state, const float* qn, const float* kn, const float* decay,
                      const float* v, float beta, std::size_t dim, std::size_t c, std::size_t last,
                      float* o) noexcept {
    using L = Lanes<Arch>;
    const auto count = [&](std::size_t i) { return i + 1 < N ? L::size : last; };
    L seen[N], out[N], delta[N];
    for (std::size_t i = 0; i < N; ++i) seen[i] = out[i] = L::splat(0.0f);
    for (std::size_t row = 0; row < dim; ++row) {
      const float* s = state + row * dim + c;
      const L factor = L::splat(decay[row]), key = L::splat(kn[row]);
      for (std::size_t i = 0; i < N; ++i) {
        seen[i] = fma(L::load(s + i * L::size, count(i)) * factor, key, seen[i]);
      }
    }
    for (std::size_t i = 0; i < N; ++i) {
      delta[i] = L::splat(beta) * (L::load(v + c + i * L::size, count(i)) - seen[i]);
    }
    for (std::size_t row = 0; row < dim; ++row) {
      float* s = state + row * dim + c;
      const L factor = L::splat(decay[row]), key = L::splat(kn[row]), query = L::splat(qn[row]);
      for (std::size_t i = 0; i < N; ++i) {
        const L next = fma(key, delta[i], L::load(s + i * L::size, count(i)) * factor);
        next.store(s + i * L::size, count(i));
        out[i] = fma(next, query, out[i]);
      }
    }
    for (std::size_t i = 0; i < N; ++i) out[i].store(o + c + i * L::size, count(i));
  }
};

}  // namespace waste::kernels
