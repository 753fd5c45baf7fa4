// Step kernels of every tier that runs here, against double-precision formulas and each other.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/bits_hash.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/kernels/kernel_table.hpp"

using waste::arch::runnable_tiers;
using waste::arch::Tier;
using waste::kernels::kernel_table;
using waste::kernels::StepKernels;
using waste::test::Golden;
using Floats = std::vector<float>;

namespace {

const Golden& units() {
  static const Golden golden = waste::test::read_golden("units");
  return golden;
}

/// One numbered case of a formula.
struct Case {
  std::string name;
  Floats in(const std::string& field) const { return units().get<float>(name + "/" + field); }
  std::vector<double> want(const std::string& field) const {
    return units().get<double>(name + "/" + field);
  }
  std::size_t dim(const std::string& field, std::size_t axis) const {
    return units()[name + "/" + field].shape.at(axis);
  }
  bool has(const std::string& parameter) const {
    return units().metadata.count(name + "/" + parameter) != 0;
  }
  float value(const std::string& parameter) const {
    return std::stof(units().metadata.at(name + "/" + parameter));
  }
};

std::vector<Case> cases(const std::string& formula) {
  std::vector<Case> out;
  const int count = std::stoi(units().metadata.at(formula + "/count"));
  for (int i = 0; i < count; ++i) out.push_back({formula + "." + std::to_string(i)});
  REQUIRE(!out.empty());
  return out;
}

/// |got - want| <= relative * |want| + absolute, everywhere.
void require_close(const Floats& got, const std::vector<double>& want, double relative,
                   double absolute) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i, got[i], want[i]);
    REQUIRE(std::abs(got[i] - want[i]) <= relative * std::abs(want[i]) + absolute);
  }
}

template <class F>
void on_every_tier(F&& f) {
  for (const Tier tier : runnable_tiers()) {
    CAPTURE(waste::arch::to_string(tier));
    f(*kernel_table(tier).step);
  }
}

/// A repeatable sequence in [-1, 1).
class Noise {
 public:
  float next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(static_cast<double>(state_ >> 40) / 8388608.0 - 1.0);
  }
  Floats fill(std::size_t n, float scale = 1.0f) {
    Floats out(n);
    for (float& v : out) v = scale * next();
    return out;
  }

 private:
  std::uint64_t state_ = 7;
};

}  // namespace

TEST_CASE("norms and softmax agree with double precision") {
  on_every_tier([](const StepKernels& k) {
    for (const Case& c : cases("rms_norm")) {
      const std::size_t n = c.dim("w", 0);
      const Floats x = c.in("x"), w = c.in("w");
      Floats y(x.size());
      for (std::size_t r = 0; r < x.size() / n; ++r) {
        k.rms_norm(&x[r * n], w.data(), n, c.value("eps"), &y[r * n]);
      }
      require_close(y, c.want("y"), 1e-6, 1e-12);
      Floats gated(n), in_place(x.begin(), x.begin() + n);
      const Floats gate(n, 0.0f);  // sigmoid(0) = 1/2
      k.gated_rms_norm(x.data(), w.data(), gate.data(), n, c.value("eps"), gated.data());
      k.rms_norm(in_place.data(), w.data(), n, c.value("eps"), in_place.data());
      for (std::size_t i = 0; i < n; ++i) {
        REQUIRE(gated[i] == 0.5f * y[i]);
        REQUIRE(in_place[i] == y[i]);
      }
    }
    for (const Case& c : cases("softmax")) {
      Floats x = c.in("x");
      const std::size_t n = c.dim("x", 1);
      for (std::size_t r = 0; r < x.size() / n; ++r) k.softmax(&x[r * n], n);
      // x - max, rounded to f32, is off by up to 4e-6 where it is below 64; farther out e^x is 0.
      require_close(x, c.want("y"), 5e-6, 1e-27);
    }
  });
}

TEST_CASE("activations agree with double precision") {
  on_every_tier([](const StepKernels& k) {
    for (const Case& c : cases("sigmoid")) {
      Floats x = c.in("x");
      k.sigmoid(x.data(), x.size(), x.data());
      require_close(x, c.want("y"), 4e-7, 1e-37);
    }
    for (const Case& c : cases("silu_pair")) {
      const Floats g = c.in("g"), u = c.in("u");
      Floats y(g.size());
      k.silu_pair(g.data(), u.data(), g.size(), y.data());
      require_close(y, c.want("y"), 5e-7, 1e-34);
    }
    for (const Case& c : cases("situ_pair")) {
      const Floats g = c.in("g"), u = c.in("u");
      Floats y(g.size());
      k.situ_pair(g.data(), u.data(), g.size(), c.value("beta"), c.value("linear_beta"), y.data());
      require_close(y, c.want("y"), 1e-6, 1e-34);
    }
    // softplus is what an unbounded decay with A_log = 0 gives, negated.
    for (const Case& c : cases("softplus")) {
      const Floats x = c.in("x"), zero(x.size(), 0.0f);
      std::vector<double> want = c.want("y");
      for (double& v : want) v = -v;
      Floats y(x.size());
      k.kda_decay(x.data(), zero.data(), 0.0f, false, 0.0f, x.size(), y.data());
      require_close(y, want, 6e-7, 1e-37);
    }
  });
}

TEST_CASE("exponentials are accurate over their whole range") {
  on_every_tier([](const StepKernels& k) {
    Floats x;
    for (int i = -8700; i <= 8700; ++i) x.push_back(0.01f * static_cast<float>(i));
    Noise noise;
    for (int i = 0; i < 4000; ++i) x.push_back(90.0f * noise.next());
    for (float tiny = 1e-7f; tiny < 1.0f; tiny *= 1.7f) x.insert(x.end(), {tiny, -tiny});
    Floats y(x.size());
    k.sigmoid(x.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      const double want = 1.0 / (1.0 + std::exp(-static_cast<double>(x[i])));
      REQUIRE(std::abs(y[i] - want) <= 4e-7 * want + 1e-37);
    }
    const Floats one(x.size(), 1.0f);
    k.situ_pair(x.data(), one.data(), x.size(), 1.0f, 0.0f, y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      const double v = x[i], want = std::tanh(v) / (1.0 + std::exp(-v));
      REQUIRE(std::abs(y[i] - want) <= 8e-7 * std::abs(want) + 1e-37);
    }
  });
}

TEST_CASE("infinite and undefined inputs stay what they are") {
  const float inf = std::numeric_limits<float>::infinity();
  on_every_tier([&](const StepKernels& k) {
    Floats x = {inf, -inf, std::nanf(""), 200.0f, -200.0f};
    k.sigmoid(x.data(), x.size(), x.data());
    REQUIRE(x[0] == 1.0f);
    REQUIRE(std::abs(x[1]) < 1e-37f);
    REQUIRE(std::isnan(x[2]));
    REQUIRE(x[3] == 1.0f);
    REQUIRE(std::abs(x[4]) < 1e-37f);
    Floats s = {-inf, 0.0f, -inf, 0.0f};
    k.softmax(s.data(), s.size());
    REQUIRE(s == Floats{0.0f, 0.5f, 0.0f, 0.5f});
  });
}

TEST_CASE("short convolution walks its ring") {
  on_every_tier([](const StepKernels& k) {
    for (const Case& c : cases("short_conv")) {
      const std::size_t steps = c.dim("x", 0), channels = c.dim("x", 1), taps = c.dim("w", 1);
      const Floats x = c.in("x"), w = c.in("w"), before = c.in("ring"), after = c.in("ring_after");
      Floats wt(w.size()), ring(before.size()), y(x.size());
      for (std::size_t ch = 0; ch < channels; ++ch) {
        for (std::size_t j = 0; j < taps; ++j) wt[j * channels + ch] = w[ch * taps + j];
        for (std::size_t j = 0; j + 1 < taps; ++j) {
          ring[j * channels + ch] = before[ch * (taps - 1) + j];
        }
      }
      const std::size_t half = channels / 2;
      for (std::size_t t = 0; t < steps; ++t) {
        const float* in = &x[t * channels];
        k.short_conv(wt.data(), ring.data(), taps, channels, in, 0, half, &y[t * channels]);
        k.short_conv(wt.data(), ring.data(), taps, channels, in, half, channels, &y[t * channels]);
      }
      require_close(y, c.want("silu"), 1e-6, 1e-6);
      for (std::size_t ch = 0; ch < channels; ++ch) {
        for (std::size_t j = 0; j + 1 < taps; ++j) {
          REQUIRE(ring[j * channels + ch] == after[ch * (taps - 1) + j]);
        }
      }
    }
  });
}

TEST_CASE("KDA decay and step agree with double precision within 1e-6") {
  on_every_tier([](const StepKernels& k) {
    for (const Case& c : cases("kda_decay")) {
      const std::size_t steps = c.dim("g", 0), heads = c.dim("g", 1), d = c.dim("g", 2);
      const Floats g = c.in("g"), bias = c.in("dt_bias"), a_log = c.in("a_log");
      const bool bounded = c.has("lower_bound");
      const float bound = bounded ? c.value("lower_bound") : 0.0f;
      Floats out(g.size());
      for (std::size_t t = 0; t < steps; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          const std::size_t at = (t * heads + h) * d;
          k.kda_decay(&g[at], &bias[h * d], a_log[h], bounded, bound, d, &out[at]);
        }
      }
      require_close(out, c.want("g_log"), 1e-6, 1e-9);
    }
    for (const Case& c : cases("kda_step")) {
      const std::size_t steps = c.dim("q", 0), heads = c.dim("q", 1), d = c.dim("q", 2);
      const Floats q = c.in("q"), key = c.in("k"), v = c.in("v"), g = c.in("g_log");
      const Floats beta = c.in("beta");
      Floats state = c.in("state"), o(q.size()), scratch(3 * d);
      for (std::size_t t = 0; t < steps; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          const std::size_t at = (t * heads + h) * d;
          k.kda_step(&state[h * d * d], &q[at], &key[at], &v[at], &g[at], beta[t * heads + h],
                     c.value("l2_eps"), d, scratch.data(), &o[at]);
        }
      }
      const std::vector<double> want = c.want("o");
      double largest = 0;
      for (const double w : want) largest = std::max(largest, std::abs(w));
      require_close(o, want, 0, 1e-6 * largest);
      const Floats after = c.in("state_after");
      require_close(state, {after.begin(), after.end()}, 1e-6, 1e-6);
    }
  });
}

TEST_CASE("KDA in chunks agrees with double precision and with steps within 1e-5") {
  on_every_tier([](const StepKernels& k) {
    for (const Case& c : cases("kda_step")) {
      const std::size_t steps = c.dim("q", 0), heads = c.dim("q", 1), d = c.dim("q", 2);
      const Floats q = c.in("q"), key = c.in("k"), v = c.in("v"), g = c.in("g_log");
      const Floats beta = c.in("beta"), after = c.in("state_after");
      const std::vector<double> want = c.want("o");
      double largest = 0;
      for (const double w : want) largest = std::max(largest, std::abs(w));
      for (const std::size_t chunk : {1u, 3u, 16u}) {
        Floats state = c.in("state"), o(q.size());
        Floats scratch(waste::kernels::kda_chunk_scratch(d));
        for (std::size_t t = 0; t < steps; t += chunk) {
          const std::size_t n = std::min(chunk, steps - t);
          for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t at = (t * heads + h) * d;
            k.kda_chunk(&state[h * d * d], &q[at], &key[at], &v[at], &g[at], heads * d,
                        &beta[t * heads + h], heads, c.value("l2_eps"), d, n, scratch.data(),
                        &o[at], heads * d);
          }
        }
        CAPTURE(chunk);
        require_close(o, want, 0, 2e-6 * largest);
        require_close(state, {after.begin(), after.end()}, 2e-6, 2e-6);
      }
    }
  });
}

TEST_CASE("latent attention agrees with double precision") {
  on_every_tier([](const StepKernels& k) {
    for (const Case& c : cases("mla")) {
      const std::size_t steps = c.dim("q", 0), heads = c.dim("q", 1), qd = c.dim("q", 2);
      const std::size_t positions = c.dim("c", 0), rank = c.dim("c", 1), rope = c.dim("kr", 1);
      const std::size_t v_dim = c.dim("o", 2), nope = qd - rope, width = rank + rope;
      const std::size_t first = static_cast<std::size_t>(c.value("first"));
      const Floats q = c.in("q"), lat = c.in("c"), kr = c.in("kr"), kv_b = c.in("kv_b");
      Floats cache(positions * width), o(steps * heads * v_dim);
      for (std::size_t s = 0; s < positions; ++s) {
        std::copy_n(&lat[s * rank], rank, &cache[s * width]);
        std::copy_n(&kr[s * rope], rope, &cache[s * width + rank]);
      }
      for (std::size_t t = 0; t < steps; ++t) {
        const std::size_t seen = first + t + 1;
        Floats qt(heads * width, 0.0f), p(heads * seen), mixed(heads * rank);
        for (std::size_t h = 0; h < heads; ++h) {
          const float* head_q = &q[(t * heads + h) * qd];
          const float* rows = &kv_b[h * (nope + v_dim) * rank];
          for (std::size_t i = 0; i < nope; ++i) {
            k.axpy(head_q[i], rows + i * rank, rank, &qt[h * width]);
          }
          std::copy_n(head_q + nope, rope, &qt[h * width + rank]);
        }
        k.attention_scores(qt.data(), width, heads, cache.data(), width, width, seen,
                           1.0f / std::sqrt(static_cast<float>(qd)), p.data(), seen);
        for (std::size_t h = 0; h < heads; ++h) k.softmax(&p[h * seen], seen);
        k.attention_mix(p.data(), seen, heads, cache.data(), width, rank, seen, mixed.data(), rank);
        for (std::size_t h = 0; h < heads; ++h) {
          for (std::size_t i = 0; i < v_dim; ++i) {
            const float* row = &kv_b[(h * (nope + v_dim) + nope + i) * rank];
            double sum = 0;
            for (std::size_t j = 0; j < rank; ++j) sum += double(row[j]) * mixed[h * rank + j];
            o[(t * heads + h) * v_dim + i] = static_cast<float>(sum);
          }
        }
      }
      require_close(o, c.want("o"), 2e-6, 2e-6);
    }
  });
}

TEST_CASE("attention residuals mix raw rows by normed scores") {
  on_every_tier([](const StepKernels& k) {
    for (const Case& c : cases("attn_res")) {
      const std::size_t tokens = c.dim("live", 0), n = c.dim("live", 1);
      const std::size_t blocks = c.dim("blocks", 0);
      const Floats live = c.in("live"), block = c.in("blocks");
      const Floats norm = c.in("norm"), proj = c.in("proj");
      Floats w(n), y(live.size());
      for (std::size_t i = 0; i < n; ++i) w[i] = norm[i] * proj[i];
      for (std::size_t t = 0; t < tokens; ++t) {
        std::vector<const float*> rows;
        for (std::size_t b = 0; b < blocks; ++b) rows.push_back(&block[(b * tokens + t) * n]);
        rows.push_back(&live[t * n]);
        Floats p;
        for (const float* row : rows) p.push_back(k.rms_dot(row, w.data(), n, c.value("eps")));
        k.softmax(p.data(), p.size());
        k.mix_rows(rows.data(), p.data(), rows.size(), n, &y[t * n]);
      }
      require_close(y, c.want("y"), 3e-6, 3e-6);
    }
  });
}

TEST_CASE("tiers with fused multiply-add give the same bits") {
  const auto run = [](const StepKernels& k, std::size_t n) {
    Noise noise;
    const Floats a = noise.fill(n, 9.0f), b = noise.fill(n, 3.0f), w = noise.fill(n);
    Floats out;
    const auto keep = [&](const Floats& v) { out.insert(out.end(), v.begin(), v.end()); };
    Floats y(n);
    k.rms_norm(a.data(), w.data(), n, 1e-5f, y.data()), keep(y);
    k.gated_rms_norm(a.data(), w.data(), b.data(), n, 1e-5f, y.data()), keep(y);
    keep({k.rms_dot(a.data(), w.data(), n, 1e-5f)});
    y = a, k.softmax(y.data(), n), keep(y);
    k.sigmoid(a.data(), n, y.data()), keep(y);
    k.gate(a.data(), b.data(), n, y.data()), keep(y);
    k.silu_pair(a.data(), b.data(), n, y.data()), keep(y);
    k.situ_pair(a.data(), b.data(), n, 4.0f, 25.0f, y.data()), keep(y);
    k.situ_pair(a.data(), b.data(), n, 4.0f, 0.0f, y.data()), keep(y);
    y = b, k.axpy(0.7f, a.data(), n, y.data()), keep(y);
    k.add(a.data(), b.data(), n, y.data()), keep(y);
    const float* rows[] = {a.data(), b.data(), w.data()};
    const float p[] = {0.2f, 0.5f, 0.3f};
    k.mix_rows(rows, p, 3, n, y.data()), keep(y);
    Floats ring = noise.fill(3 * n), taps = noise.fill(4 * n);
    k.short_conv(taps.data(), ring.data(), 4, n, a.data(), 0, n, y.data()), keep(y), keep(ring);
    k.kda_decay(a.data(), b.data(), -0.3f, true, -5.0f, n, y.data()), keep(y);
    k.kda_decay(a.data(), b.data(), 0.3f, false, 0.0f, n, y.data()), keep(y);
    Floats state = noise.fill(n * n), scratch(3 * n), decay = y;
    for (int step = 0; step < 2; ++step) {
      k.kda_step(state.data(), a.data(), b.data(), w.data(), decay.data(), 0.4f, 1e-6f, n,
                 scratch.data(), y.data());
      keep(y);
    }
    keep(state);
    Floats queries = noise.fill(3 * n), chunk_o(3 * n), decays = noise.fill(3 * n);
    for (float& d : decays) d = -std::abs(d);
    Floats work(waste::kernels::kda_chunk_scratch(n));
    const float betas[] = {0.3f, 0.9f, 0.5f};
    k.kda_chunk(state.data(), queries.data(), ring.data(), taps.data(), decays.data(), n, betas, 1,
                1e-6f, n, 3, work.data(), chunk_o.data(), n);
    keep(chunk_o), keep(state);
    const std::size_t heads = 7, positions = 37;
    const Floats q = noise.fill(heads * n), cache = noise.fill(positions * n);
    Floats scores(heads * positions), mixed(heads * n);
    k.attention_scores(q.data(), n, heads, cache.data(), n, n, positions, 0.3f, scores.data(),
                       positions);
    k.attention_mix(scores.data(), positions, heads, cache.data(), n, n, positions, mixed.data(),
                    n);
    keep(scores), keep(mixed);
    return out;
  };
  waste::test::BitsHash hash;
  for (const std::size_t n : {1u, 7u, 16u, 31u, 64u, 128u, 200u}) {
    Floats first;
    for (const Tier tier : runnable_tiers()) {
#if !defined(__aarch64__)
      if (tier == Tier::baseline) continue;  // SSE2 does not fuse
#endif
      const Floats got = run(*kernel_table(tier).step, n);
      if (first.empty()) first = got;
      CAPTURE(n, waste::arch::to_string(tier));
      REQUIRE(got.size() == first.size());
      REQUIRE(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)) == 0);
    }
    hash.add(first);
  }
  CAPTURE(hash.value());
  REQUIRE(hash.is(0x23aba647e852eab8u));
}
