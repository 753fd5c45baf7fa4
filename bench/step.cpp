// The rest of a step: norms, activations, delta attention, latent attention.
#include <algorithm>
#include <cmath>
#include <memory>

#include "data.hpp"
#include "registry.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/kernels/kernel_table.hpp"

namespace waste::bench {
namespace {

using kernels::StepKernels;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

/// One kernel at one size: its inputs, its output, and the output in f64.
struct Work {
  double products = 0;  ///< multiply-adds a run
  double bytes = 0;     ///< read and written a run
  std::function<void(const StepKernels&, Floats& out)> run;
  std::function<Doubles()> truth;
  std::size_t out = 0;
  double tolerance = 1e-5;
};

void add_work(const char* op, const std::string& shape, std::function<Work()> make) {
  Group group;
  for (const auto tier : arch::runnable_tiers()) {
    group.labels.push_back({op, "F32", shape, std::string(to_string(tier))});
  }
  group.make = [make = std::move(make)] {
    const auto work = std::make_shared<Work>(make());
    const auto want = std::make_shared<Doubles>(work->truth());
    std::vector<Case> cases;
    for (const auto tier : arch::runnable_tiers()) {
      const auto out = std::make_shared<Floats>(work->out);
      const StepKernels* const k = kernels::kernel_table(tier).step;
      Case c;
      c.run = [work, out, k] { work->run(*k, *out); };
      c.weights = work->products;
      c.payload_bytes = work->bytes;
      c.error = [out, want] { return relative_error(*out, *want); };
      c.tolerance = work->tolerance;
      cases.push_back(std::move(c));
    }
    return cases;
  };
  add(std::move(group));
}

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

void add_elementwise() {
  add_work("rms_norm", "7168", [] {
    const Floats x = random_inputs(7168, 1), w = random_inputs(7168, 2);
    Work work;
    work.out = x.size();
    work.bytes = 12.0 * 7168;
    work.run = [x, w](const StepKernels& k, Floats& out) {
      k.rms_norm(x.data(), w.data(), x.size(), 1e-5f, out.data());
    };
    work.truth = [x, w] {
      double sum = 0;
      for (const float v : x) sum += double(v) * v;
      const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + double(1e-5f));
      Doubles out(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * w[i];
      return out;
    };
    return work;
  });
  add_work("softmax", "4096", [] {
    const Floats x = random_inputs(4096, 3);
    Work work;
    work.out = x.size();
    work.bytes = 8.0 * 4096;
    work.run = [x](const StepKernels& k, Floats& out) {
      std::copy(x.begin(), x.end(), out.begin());
      k.softmax(out.data(), out.size());
    };
    work.truth = [x] {
      double sum = 0;
      for (const float v : x) sum += std::exp(double(v));
      Doubles out;
      for (const float v : x) out.push_back(std::exp(double(v)) / sum);
      return out;
    };
    return work;
  });
  for (const bool situ : {false, true}) {
    add_work(situ ? "situ" : "silu", "3072", [situ] {
      const Floats g = random_inputs(3072, 4), u = random_inputs(3072, 5);
      Work work;
      work.out = g.size();
      work.bytes = 12.0 * 3072;
      work.run = [g, u, situ](const StepKernels& k, Floats& out) {
        if (situ) {
          k.situ_pair(g.data(), u.data(), g.size(), 4.0f, 25.0f, out.data());
        } else {
          k.silu_pair(g.data(), u.data(), g.size(), out.data());
        }
      };
      work.truth = [g, u, situ] {
        Doubles out(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) {
          out[i] = situ ? 4 * std::tanh(g[i] / 4.0) * sigmoid(g[i]) * 25 * std::tanh(u[i] / 25.0)
                        : g[i] * sigmoid(g[i]) * u[i];
        }
        return out;
      };
      return work;
    });
  }
}

/// Sixteen positions of some heads of 128, one at a time or in one chunk. The state decays by half
/// a position, so that it stays the same size however often it runs.
struct Delta {
  static constexpr std::size_t dim = 128, tokens = 16, row = dim * dim;
  explicit Delta(std::size_t n)
      : heads(n),
        q(random_inputs(n * tokens * dim, 6)),
        k(random_inputs(n * tokens * dim, 7)),
        v(random_inputs(n * tokens * dim, 8)),
        g_log(n * tokens * dim, -0.7f),
        beta(n * tokens, 0.5f),
        state(n * row),
        scratch(kernels::kda_chunk_scratch(dim)) {}
  void run(const StepKernels& kernel, bool chunk, Floats& out) {
    std::fill(state.begin(), state.end(), 0.0f);
    const std::size_t ld = heads * dim;
    for (std::size_t h = 0; h < heads; ++h) {
      float* const s = &state[h * row];
      if (chunk) {
        kernel.kda_chunk(s, &q[h * dim], &k[h * dim], &v[h * dim], &g_log[h * dim], ld, &beta[h],
                         heads, 1e-6f, dim, tokens, scratch.data(), &out[h * dim], ld);
        continue;
      }
      for (std::size_t t = 0; t < tokens; ++t) {
        const std::size_t at = t * ld + h * dim;
        kernel.kda_step(s, &q[at], &k[at], &v[at], &g_log[at], beta[t * heads + h], 1e-6f, dim,
                        scratch.data(), &out[at]);
      }
    }
  }
  Doubles truth() const {
    Doubles out(q.size());
    const std::size_t ld = heads * dim;
    for (std::size_t h = 0; h < heads; ++h) {
      Doubles s(row, 0.0);
      for (std::size_t t = 0; t < tokens; ++t) {
        const std::size_t at = t * ld + h * dim;
        double qq = 1e-6, kk = 1e-6;
        for (std::size_t i = 0; i < dim; ++i) {
          qq += double(q[at + i]) * q[at + i];
          kk += double(k[at + i]) * k[at + i];
        }
        const double qs = 1 / std::sqrt(qq * dim), ks = 1 / std::sqrt(kk);
        for (std::size_t c = 0; c < dim; ++c) {
          double seen = 0, o = 0;
          for (std::size_t i = 0; i < dim; ++i) {
            s[i * dim + c] *= std::exp(double(g_log[at + i]));
            seen += s[i * dim + c] * k[at + i] * ks;
          }
          const double d = beta[t * heads + h] * (v[at + c] - seen);
          for (std::size_t i = 0; i < dim; ++i) {
            s[i * dim + c] += k[at + i] * ks * d;
            o += s[i * dim + c] * q[at + i] * qs;
          }
          out[at + c] = o;
        }
      }
    }
    return out;
  }
  std::size_t heads;
  Floats q, k, v, g_log, beta, state, scratch;
};

void add_delta(std::size_t heads) {
  for (const bool chunk : {false, true}) {
    add_work(chunk ? "kda_chunk" : "kda_step", "16x" + std::to_string(heads) + "x128x128",
             [heads, chunk] {
               const auto data = std::make_shared<Delta>(heads);
               Work work;
               work.out = data->q.size();
               work.products = 3.0 * static_cast<double>(heads * Delta::tokens * Delta::row);
               work.bytes = 8.0 * static_cast<double>(heads * Delta::row * (chunk ? 1 : 16));
               work.run = [data, chunk](const StepKernels& k, Floats& out) {
                 data->run(k, chunk, out);
               };
               work.truth = [data] { return data->truth(); };
               return work;
             });
  }
}

void add_latent(std::size_t heads, std::size_t positions) {
  constexpr std::size_t width = 576, rank = 512;
  const std::string shape = std::to_string(heads) + "x" + std::to_string(positions) + "x576";
  const auto cost = [=](Work& work, std::size_t columns) {
    work.products = static_cast<double>(heads * positions * columns);
    work.bytes = 4.0 * static_cast<double>(positions * columns);
  };
  add_work("attention_scores", shape, [=] {
    const Floats q = random_inputs(heads * width, 9), cache = random_inputs(positions * width, 10);
    Work work;
    work.out = heads * positions;
    cost(work, width);
    work.run = [=](const StepKernels& k, Floats& out) {
      k.attention_scores(q.data(), width, heads, cache.data(), width, width, positions, 0.0625f,
                         out.data(), positions);
    };
    work.truth = [=] {
      Doubles out(heads * positions);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const float *a = &q[i / positions * width], *b = &cache[i % positions * width];
        for (std::size_t j = 0; j < width; ++j) out[i] += 0.0625 * a[j] * b[j];
      }
      return out;
    };
    return work;
  });
  add_work("attention_mix", shape, [=] {
    const Floats p = random_inputs(heads * positions, 11),
                 cache = random_inputs(positions * width, 12);
    Work work;
    work.out = heads * rank;
    cost(work, rank);
    work.run = [=](const StepKernels& k, Floats& out) {
      k.attention_mix(p.data(), positions, heads, cache.data(), width, rank, positions, out.data(),
                      rank);
    };
    work.truth = [=] {
      Doubles out(heads * rank, 0.0);
      for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t s = 0; s < positions; ++s) {
          const double weight = p[h * positions + s];
          for (std::size_t j = 0; j < rank; ++j) out[h * rank + j] += weight * cache[s * width + j];
        }
      }
      return out;
    };
    return work;
  });
}

}  // namespace

void add_step() {
  add_elementwise();
  add_delta(4);
  add_delta(32);
  add_latent(32, 256);
  add_latent(32, 2048);
}

}  // namespace waste::bench
