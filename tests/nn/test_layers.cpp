// Layers over views and callables: the router's choice, experts from a provider, and what is
// refused.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/nn/attn_res.hpp"
#include "waste/nn/kda.hpp"
#include "waste/nn/mla.hpp"
#include "waste/nn/moe.hpp"
#include "waste/nn/router.hpp"

using namespace waste;
using Floats = std::vector<float>;

namespace {

Floats noise(std::size_t n, std::uint64_t seed) {
  Floats out(n);
  for (float& v : out) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    v = static_cast<float>(static_cast<double>(seed >> 40) / 8388608.0 - 1.0);
  }
  return out;
}

/// An f32 matrix that owns its values.
struct Plain {
  Plain(std::size_t r, std::size_t c, std::uint64_t seed)
      : rows(r), cols(c), w(noise(r * c, seed)) {}
  TrunkMatrix view() const {
    return {format::Fmt::f32, reinterpret_cast<const std::uint8_t*>(w.data()), nullptr, rows, cols};
  }
  std::vector<double> times(const std::vector<double>& x) const {
    std::vector<double> y(rows, 0.0);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < cols; ++c) y[r] += double(w[r * cols + c]) * x[c];
    }
    return y;
  }
  std::size_t rows, cols;
  Floats w;
};

double silu(double v) { return v / (1.0 + std::exp(-v)); }

struct Mlp {
  Mlp(std::size_t inter, std::size_t width, std::uint64_t seed)
      : gate(inter, width, seed), up(inter, width, seed + 1), down(width, inter, seed + 2) {}
  nn::FfnWeights view() const { return {gate.view(), up.view(), down.view()}; }
  std::vector<double> operator()(const std::vector<double>& x) const {
    std::vector<double> g = gate.times(x);
    const std::vector<double> u = up.times(x);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = silu(g[i]) * u[i];
    return down.times(g);
  }
  Plain gate, up, down;
};

/// Experts in memory; counts what it is asked for.
class Provider final : public nn::ExpertProvider {
 public:
  explicit Provider(const std::vector<Mlp>& experts) : experts_(experts) {}
  void prepare(std::span<const ExpertId> order) override {
    for (const ExpertId e : order) prepared.push_back(to_index(e));
  }
  nn::ExpertLease get(ExpertId e) override {
    ++asked[to_index(e)];
    if (to_index(e) == fails) throw Error(fault(Errc::io, "expert"));
    return {experts_.at(to_index(e)).view(), nullptr};
  }
  std::vector<std::uint32_t> prepared;
  std::map<std::uint32_t, int> asked;
  std::uint32_t fails = 1000;

 private:
  const std::vector<Mlp>& experts_;
};

}  // namespace

TEST_CASE("the router chooses by score and bias, and weighs by score") {
  const auto golden = test::read_golden("units");
  const int count = std::stoi(golden.metadata.at("router/count"));
  for (int i = 0; i < count; ++i) {
    const std::string name = "router." + std::to_string(i) + "/";
    CAPTURE(name);
    Floats logits = golden.get<float>(name + "logits");
    const Floats bias = golden.get<float>(name + "bias");
    const std::size_t experts = bias.size(), tokens = logits.size() / experts;
    nn::RouterSpec spec;
    spec.top_k = std::stoul(golden.metadata.at(name + "top_k"));
    spec.renormalize = golden.metadata.at(name + "renormalize") == "1";
    spec.scaling = std::stof(golden.metadata.at(name + "scaling"));
    std::vector<std::uint32_t> ids(tokens * spec.top_k);
    Floats weights(ids.size());
    for (std::size_t t = 0; t < tokens; ++t) {
      nn::route({&logits[t * experts], experts}, bias, spec, {&ids[t * spec.top_k], spec.top_k},
                {&weights[t * spec.top_k], spec.top_k}, {});
    }
    const auto want = golden.get<std::int32_t>(name + "ids");
    REQUIRE(std::equal(ids.begin(), ids.end(), want.begin(), want.end(),
                       [](std::uint32_t a, std::int32_t b) { return a == std::uint32_t(b); }));
    const auto w = golden.get<double>(name + "weights");
    for (std::size_t j = 0; j < w.size(); ++j) REQUIRE(std::abs(weights[j] - w[j]) <= 1e-6 * w[j]);
  }
}

TEST_CASE("a mixture layer is the weighted sum of its experts and the shared one") {
  const std::size_t hidden = 80, inter = 64, count = 6, tokens = 9, top_k = 3;
  std::vector<Mlp> experts;
  for (std::size_t e = 0; e < count; ++e) experts.emplace_back(inter, hidden, 100 + 10 * e);
  const Mlp shared(2 * inter, hidden, 7);
  const Plain router(count, hidden, 3);
  const Floats bias = noise(count, 4), x = noise(tokens * hidden, 5);
  nn::MoeWeights w;
  w.router = router.view();
  w.bias = bias;
  w.spec = {top_k, true, 2.5f};
  w.inter = inter;
  w.shared = shared.view();

  Floats out(tokens * hidden);
  nn::Scratch scratch;
  nn::MoeWorkspace space;
  Provider provider(experts);
  nn::moe(w, provider, {x.data(), tokens, hidden}, {out.data(), tokens, hidden}, scratch, space,
          {});
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::vector<double> in(x.begin() + t * hidden, x.begin() + (t + 1) * hidden);
    std::vector<std::pair<double, std::size_t>> order;
    std::vector<double> score = router.times(in);
    for (std::size_t e = 0; e < count; ++e) {
      score[e] = 1.0 / (1.0 + std::exp(-score[e]));
      order.emplace_back(-(score[e] + bias[e]), e);
    }
    std::sort(order.begin(), order.end());
    double total = 0;
    for (std::size_t j = 0; j < top_k; ++j) total += score[order[j].second];
    std::vector<double> want = shared(in);
    for (std::size_t j = 0; j < top_k; ++j) {
      const std::vector<double> y = experts[order[j].second](in);
      for (std::size_t i = 0; i < hidden; ++i)
        want[i] += 2.5 * score[order[j].second] / total * y[i];
    }
    for (std::size_t i = 0; i < hidden; ++i) {
      REQUIRE(out[t * hidden + i] == Approx(want[i]).epsilon(2e-5).margin(2e-4));
    }
  }
  for (const auto& [e, n] : provider.asked) {
    CAPTURE(e);
    REQUIRE(n == 1);  // however many tokens use it
  }
  REQUIRE(provider.prepared.size() == provider.asked.size());

  for (const unsigned threads : {1u, 4u}) {  // token by token, and on threads: the same bits
    Exec exec;
    exec.threads = threads;
    Floats one(hidden);
    for (std::size_t t = 0; t < tokens; ++t) {
      nn::moe(w, provider, {&x[t * hidden], 1, hidden}, {one.data(), 1, hidden}, scratch, space,
              exec);
      REQUIRE(std::equal(one.begin(), one.end(), out.begin() + t * hidden));
    }
  }

  // An observer sees every input of every expert, in the same order on any number of threads.
  std::vector<Floats> seen[2];
  for (const unsigned threads : {1u, 4u}) {
    nn::MoeObserver observe;
    observe.input = [&](ExpertId e, format::Kind kind, std::span<const float> v) {
      seen[threads == 1 ? 0 : 1].emplace_back(v.begin(), v.end());
      REQUIRE(to_index(e) < count);
      REQUIRE(v.size() == (kind == format::Kind::gate ? hidden : inter));
    };
    Exec exec;
    exec.threads = threads;
    nn::moe(w, provider, {x.data(), tokens, hidden}, {out.data(), tokens, hidden}, scratch, space,
            exec, observe);
  }
  REQUIRE(seen[0].size() == 2 * tokens * top_k);
  REQUIRE(seen[0] == seen[1]);
  const std::vector<double> in(x.begin(), x.begin() + hidden);
  REQUIRE(seen[0][0] == Floats(x.begin(), x.begin() + hidden));  // the first token's first expert
  std::vector<double> act = experts[provider.prepared[0]].gate.times(in);
  const std::vector<double> up = experts[provider.prepared[0]].up.times(in);
  for (std::size_t i = 0; i < inter; ++i) {
    act[i] = silu(act[i]) * up[i];
    REQUIRE(seen[0][1][i] == Approx(act[i]).epsilon(2e-5).margin(2e-5));
  }

  provider.fails = provider.prepared.back();
  Exec threaded;
  threaded.threads = 3;
  REQUIRE_THROWS_AS(nn::moe(w, provider, {x.data(), tokens, hidden}, {out.data(), tokens, hidden},
                            scratch, space, threaded),
                    Error);
}

TEST_CASE("a latent cache without room is refused before anything is written") {
  nn::MlaWeights w;
  w.heads = 2;
  w.nope = 8;
  w.rope = 4;
  w.v_dim = 6;
  w.rank = 16;
  const Plain q(2 * 12, 10, 1), kv_a(20, 10, 2), kv_b(2 * 14, 16, 3), o(10, 12, 4);
  const Floats norm(16, 1.0f), x = noise(30, 9);
  w.q = q.view();
  w.kv_a = kv_a.view();
  w.kv_b = kv_b.view();
  w.o = o.view();
  w.kv_a_norm = norm;
  Floats rows(2 * 20, -7.0f), out(30);
  nn::MlaCache cache{rows.data(), 2, 0};
  nn::Scratch scratch;
  nn::WorkerPool<nn::Scratch> workers;
  REQUIRE_THROWS_AS(nn::mla(w, cache, {x.data(), 3, 10}, {out.data(), 3, 10}, scratch, workers, {}),
                    Error);
  REQUIRE(cache.used == 0);
  REQUIRE(rows == Floats(2 * 20, -7.0f));
  nn::mla(w, cache, {x.data(), 2, 10}, {out.data(), 2, 10}, scratch, workers, {});
  REQUIRE(cache.used == 2);
}

TEST_CASE("wrong sizes are errors, not reads past the end") {
  nn::Scratch scratch;
  const Floats x = noise(12, 1), w = noise(11, 2);
  Floats out(12);
  REQUIRE_THROWS_AS(nn::rms_norm({x.data(), 1, 12}, w, 1e-5f, {out.data(), 1, 12}, {}), Error);
  nn::KdaWeights kda;
  kda.heads = 2;
  kda.dim = 4;
  kda.taps = 4;
  REQUIRE_THROWS_AS(nn::kda(kda, {}, {x.data(), 1, 12}, {out.data(), 1, 12}, scratch, {}), Error);
  nn::RouterSpec spec;
  spec.top_k = 13;
  std::vector<std::uint32_t> ids(13);
  Floats weights(13), logits = x;
  REQUIRE_THROWS_AS(nn::route(logits, x, spec, ids, weights, {}), Error);
}

TEST_CASE("scratch memory is given back in frames and reused") {
  nn::Scratch scratch;
  float* first = nullptr;
  {
    const nn::Scratch::Frame frame(scratch);
    first = scratch.take(1000);
    float* const second = scratch.take(100000);  // another block
    first[999] = second[99999] = 1.0f;
    REQUIRE(reinterpret_cast<std::uintptr_t>(second) % 64 == 0);
  }
  const std::size_t bytes = scratch.bytes();
  const nn::Scratch::Frame frame(scratch);
  REQUIRE(scratch.take(1000) == first);
  scratch.take(100000);
  REQUIRE(scratch.bytes() == bytes);
}
