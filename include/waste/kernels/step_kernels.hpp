// Kernels of the rest of a step, for one tier: norms, activations, attention.
#pragma once

#include <cstddef>

namespace waste::kernels {

/// Kernels are noexcept and check nothing but by assert. No pointer needs an alignment; outputs may
/// alias inputs only where it is said. Formulas, orders of summation and shapes are those of the
/// functors of the same names in elementwise.hpp, kda.hpp and attention.hpp. Sums over an array
/// keep sixteen partial sums (element modulo 16) and one fixed tree; exponentials are polynomials
/// with fused multiply-add: tiers that have it give the same bits.
struct StepKernels {
  /// out_i = x_i w_i / sqrt(mean(x^2) + eps), i < n; out may be x.
  void (*rms_norm)(const float* x, const float* w, std::size_t n, float eps, float* out) noexcept;
  /// out_i = x_i w_i / sqrt(mean(x^2) + eps) * sigmoid(gate_i); out may be x.
  void (*gated_rms_norm)(const float* x, const float* w, const float* gate, std::size_t n,
                         float eps, float* out) noexcept;
  /// (sum of x_i w_i) / sqrt(mean(x^2) + eps).
  float (*rms_dot)(const float* x, const float* w, std::size_t n, float eps) noexcept;
  /// In place over n >= 1 elements.
  void (*softmax)(float* x, std::size_t n) noexcept;
  /// out_i = sigmoid(x_i); out may be x.
  void (*sigmoid)(const float* x, std::size_t n, float* out) noexcept;
  /// out_i = x_i sigmoid(gate_i); out may be x.
  void (*gate)(const float* x, const float* gate, std::size_t n, float* out) noexcept;
  /// out_i = silu(g_i) u_i; out may be g or u.
  void (*silu_pair)(const float* g, const float* u, std::size_t n, float* out) noexcept;
  /// out_i = beta tanh(g_i/beta) sigmoid(g_i) (lb > 0 ? lb tanh(u_i/lb) : u_i); out may be g or u.
  void (*situ_pair)(const float* g, const float* u, std::size_t n, float beta, float linear_beta,
                    float* out) noexcept;
  /// y_i += a x_i.
  void (*axpy)(float a, const float* x, std::size_t n, float* y) noexcept;
  /// out_i = a_i + b_i; out may be a or b.
  void (*add)(const float* a, const float* b, std::size_t n, float* out) noexcept;
  /// out_j = sum over i < count of p[i] rows[i][j]; out may be one of the rows.
  void (*mix_rows)(const float* const* rows, const float* p, std::size_t count, std::size_t n,
                   float* out) noexcept;

  /// Short convolution and SiLU of channels [begin, end): w [taps][channels], ring
  /// [taps-1][channels] (moved on), x and out [channels]; out may be x.
  void (*short_conv)(const float* w, float* ring, std::size_t taps, std::size_t channels,
                     const float* x, std::size_t begin, std::size_t end, float* out) noexcept;
  /// g_log of one head: bounded ? bound sigmoid(e^a_log z) : -e^a_log softplus(z), z = g + dt_bias.
  void (*kda_decay)(const float* g, const float* dt_bias, float a_log, bool bounded, float bound,
                    std::size_t n, float* g_log) noexcept;
  /// One position of one head; state [dim][dim], scratch 3 * dim floats.
  void (*kda_step)(float* state, const float* q, const float* k, const float* v, const float* g_log,
                   float beta, float eps, std::size_t dim, float* scratch, float* o) noexcept;
  /// At most 16 positions of one head at once; rows of q, k, v, g_log ld floats apart, beta ldb, o
  /// ldo; scratch kda_chunk_scratch(dim) floats. Agrees with kda_step to rounding.
  void (*kda_chunk)(float* state, const float* q, const float* k, const float* v,
                    const float* g_log, std::size_t ld, const float* beta, std::size_t ldb,
                    float eps, std::size_t dim, std::size_t tokens, float* scratch, float* o,
                    std::size_t ldo) noexcept;

  /// scores[h][s] = scale * q[h] . cache[s].
  void (*attention_scores)(const float* q, std::size_t ldq, std::size_t heads, const float* cache,
                           std::size_t ldc, std::size_t width, std::size_t positions, float scale,
                           float* scores, std::size_t lds) noexcept;
  /// out[h] = sum over s of p[h][s] cache[s].
  void (*attention_mix)(const float* p, std::size_t ldp, std::size_t heads, const float* cache,
                        std::size_t ldc, std::size_t width, std::size_t positions, float* out,
                        std::size_t ldo) noexcept;
};

/// Positions that kda_chunk takes at most, and the floats of its scratch.
inline constexpr std::size_t kda_chunk_most = 16;
constexpr std::size_t kda_chunk_scratch(std::size_t dim) noexcept {
  return (5 * kda_chunk_most + 64) * dim + 2 * kda_chunk_most * kda_chunk_most;
}

}  // namespace waste::kernels
