// Up to sixteen positions of the gated delta rule at once: the state is read and written once.
#pragma once

#include <cmath>
#include <cstddef>

#include "waste/kernels/elementwise.hpp"
#include "waste/kernels/lanes.hpp"
#include "waste/kernels/step_kernels.hpp"

namespace waste::kernels {

/// The recurrence of kda_step over `tokens` <= 16 positions of one head, unrolled. With G_t the sum
/// of g_log up to position t, qn and kn normalised as there, and S the state before:
///   A_ti = sum over k of kn_t[k] kn_i[k] e^(G_t - G_i)[k],  B_ti the same of qn_t and kn_i
///   u_t  = beta_t (v_t - (kn_t e^G_t) S - sum over i < t of A_ti u_i)
///   o_t  = (qn_t e^G_t) S + sum over i <= t of B_ti u_i
///   S   <- diag(e^G_last) S + sum over i of (kn_i e^(G_last - G_i)) u_i
/// No exponent is above 0. Equal to the step form but for rounding. Rows of q, k, v and g_log are
/// ld floats apart, elements of beta ldb, rows of o ldo; `work` holds kda_chunk_scratch(dim)
/// floats. Nothing may alias. Derivation: the chunk form of the gated delta rule (Yang et al.
/// 2024), with a decay per key channel as in Kimi Linear.
struct kda_chunk {
  static constexpr std::size_t most = kda_chunk_most;

  template <class Arch>
  void operator()(Arch, float* state, const float* q, const float* k, const float* v,
                  const float* g_log, std::size_t ld, const float* beta, std::size_t ldb, float eps,
                  std::size_t dim, std::size_t tokens, float* work, float* o,
                  std::size_t ldo) const noexcept {
    using L = Lanes<Arch>;
    const Arrays a(work, dim);
    normalise<Arch>(a, q, k, g_log, ld, eps, dim, tokens);
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t i = 0; i <= t; ++i) correlate<Arch>(a, dim, t, i);
    }
    to_the_end<Arch>(a, dim, tokens);
    constexpr std::size_t wide = L::parts == 1 ? 4 : 2;
    std::size_t c = 0;
    for (; c + wide * L::size <= dim; c += wide * L::size) {
      columns<Arch, wide>(a, state + c, v + c, ld, beta, ldb, dim, tokens, L::size, o + c, ldo);
    }
    for (; c < dim; c += L::size) {
      columns<Arch, 1>(a, state + c, v + c, ld, beta, ldb, dim, tokens, dim - c, o + c, ldo);
    }
  }

 private:
  /// Rows of dim floats, one a position: g the sums G_t; qn, kn; qd, kd those times e^G_t. Then kk
  /// [16][16] = A, qk = B, and a copy of some columns of the state.
  struct Arrays {
    Arrays(float* p, std::size_t dim) noexcept
        : g(p),
          qn(g + most * dim),
          kn(qn + most * dim),
          qd(kn + most * dim),
          kd(qd + most * dim),
          kk(kd + most * dim),
          qk(kk + most * most),
          s(qk + most * most) {}
    float *g, *qn, *kn, *qd, *kd, *kk, *qk, *s;
  };

  template <class Arch>
  static void normalise(const Arrays& a, const float* q, const float* k, const float* g_log,
                        std::size_t ld, float eps, std::size_t dim, std::size_t tokens) noexcept {
    using L = Lanes<Arch>;
    const float root = std::sqrt(static_cast<float>(dim));
    for (std::size_t t = 0; t < tokens; ++t) {
      const float *qt = q + t * ld, *kt = k + t * ld, *gt = g_log + t * ld;
      const L q_scale = L::splat(1.0f / std::sqrt(sum_of_squares<Arch>(qt, dim) + eps) / root);
      const L k_scale = L::splat(1.0f / std::sqrt(sum_of_squares<Arch>(kt, dim) + eps));
      for (std::size_t c = 0; c < dim; c += L::size) {
        const std::size_t n = dim - c, at = t * dim + c;
        L g = L::load(gt + c, n);
        if (t > 0) g = g + L::load(a.g + at - dim, n);
        const L decay = exp(g);
        const L qn = L::load(qt + c, n) * q_scale, kn = L::load(kt + c, n) * k_scale;
        g.store(a.g + at, n);
        qn.store(a.qn + at, n);
        kn.store(a.kn + at, n);
        (qn * decay).store(a.qd + at, n);
        (kn * decay).store(a.kd + at, n);
      }
    }
  }

  /// kk and qk of one pair of positions, i <= t.
  template <class Arch>
  static void correlate(const Arrays& a, std::size_t dim, std::size_t t, std::size_t i) noexcept {
    using L = Lanes<Arch>;
    L kk = L::splat(0.0f), qk = kk;
    for (std::size_t c = 0; c < dim; c += L::size) {
      const std::size_t n = dim - c, at = t * dim + c, from = i * dim + c;
      L key = L::load(a.kn + from, n);
      if (i < t) key = key * exp(L::load(a.g + at, n) - L::load(a.g + from, n));
      kk = fma(L::load(a.kn + at, n), key, kk);
      qk = fma(L::load(a.qn + at, n), key, qk);
    }
    a.kk[t * most + i] = sum(kk);
    a.qk[t * most + i] = sum(qk);
  }

  /// kn_i e^(G_last - G_i) in the place of kn, e^G_last in the place of g's first row.
  template <class Arch>
  static void to_the_end(const Arrays& a, std::size_t dim, std::size_t tokens) noexcept {
    using L = Lanes<Arch>;
    const float* const last = a.g + (tokens - 1) * dim;
    for (std::size_t c = 0; c < dim; c += L::size) {
      const std::size_t n = dim - c;
      const L end = L::load(last + c, n);
      for (std::size_t i = 0; i < tokens; ++i) {
        float* const kn = a.kn + i * dim + c;
        (L::load(kn, n) * exp(end - L::load(a.g + i * dim + c, n))).store(kn, n);
      }
      exp(end).store(a.g + c, n);
    }
  }

  /// Value channels [0, (N-1)*16 + min(last, 16)) of state, v and o. Their part of the state is
  /// first copied together: as columns of the whole its rows fall on few sets of the first-level
  /// cache.
  template <class Arch, std::size_t N>
  static void columns(const Arrays& a, float* state, const float* v, std::size_t ld,
                      const float* beta, std::size_t ldb, std::size_t dim, std::size_t tokens,
                      std::size_t last, float* o, std::size_t ldo) noexcept {
    using L = Lanes<Arch>;
    constexpr std::size_t width = N * L::size;
    const auto count = [&](std::size_t i) { return i + 1 < N ? L::size : last; };
    for (std::size_t row = 0; row < dim; ++row) {
      for (std::size_t i = 0; i < N; ++i) {
        L::load(state + row * dim + i * L::size, count(i)).store(a.s + row * width + i * L::size);
      }
    }
    float us[most * width];
    for (std::size_t t = 0; t < tokens; ++t) {
      L seen[N], out[N];
      for (std::size_t i = 0; i < N; ++i) seen[i] = out[i] = L::splat(0.0f);
      for (std::size_t row = 0; row < dim; ++row) {
        const L key = L::splat(a.kd[t * dim + row]), query = L::splat(a.qd[t * dim + row]);
        for (std::size_t i = 0; i < N; ++i) {
          const L s = L::load(a.s + row * width + i * L::size);
          seen[i] = fma(key, s, seen[i]);
          out[i] = fma(query, s, out[i]);
        }
      }
      for (std::size_t j = 0; j < t; ++j) {  // forward substitution
        const L key = L::splat(a.kk[t * most + j]), query = L::splat(a.qk[t * most + j]);
        for (std::size_t i = 0; i < N; ++i) {
          const L u = L::load(us + j * width + i * L::size);
          seen[i] = fma(key, u, seen[i]);
          out[i] = fma(query, u, out[i]);
        }
      }
      const L factor = L::splat(beta[t * ldb]), own = L::splat(a.qk[t * most + t]);
      for (std::size_t i = 0; i < N; ++i) {
        const L u = factor * (L::load(v + t * ld + i * L::size, count(i)) - seen[i]);
        u.store(us + t * width + i * L::size);
        fma(own, u, out[i]).store(o + t * ldo + i * L::size, count(i));
      }
    }
    for (std::size_t row = 0; row < dim; ++row) {
      L next[N];
      const L decay = L::splat(a.g[row]);
      for (std::size_t i = 0; i < N; ++i) {
        next[i] = L::load(a.s + row * width + i * L::size) * decay;
      }
      for (std::size_t t = 0; t < tokens; ++t) {
        const L key = L::splat(a.kn[t * dim + row]);
        for (std::size_t i = 0; i < N; ++i) {
          next[i] = fma(key, L::load(us + t * width + i * L::size), next[i]);
        }
      }
      for (std::size_t i = 0; i < N; ++i) {
        next[i].store(state + row * dim + i * L::size, count(i));
      }
    }
  }
};

}  // namespace waste::kernels
