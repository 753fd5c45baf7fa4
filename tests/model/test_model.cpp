// Whole forward passes against the independent reference, and the same bits from every way of
// running one.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "model/oracle.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/core/parallel.hpp"
#include "waste/model/checkpoint_weights.hpp"
#include "waste/model/kimi.hpp"

using waste::Error;
using waste::MatrixView;
using waste::Session;
using waste::TextModel;
using waste::convert::Checkpoint;
using waste::model::CheckpointWeights;
using waste::model::ModelOptions;
using waste::model::Observer;
using waste::test::Golden;
using Tokens = std::vector<std::uint32_t>;
using Floats = std::vector<float>;

namespace {

std::shared_ptr<CheckpointWeights> load(const std::filesystem::path& dir) {
  return std::make_shared<CheckpointWeights>(Checkpoint::open(dir));
}
std::filesystem::path tiny_k3() {
  return waste::test::source_root() / "examples/tiny_k3/checkpoint";
}

Tokens tokens_of(const Golden& golden) {
  const auto ids = golden.get<std::int32_t>("tokens");
  return {ids.begin(), ids.end()};
}
std::vector<double> doubles(const Golden& golden, const std::string& name) {
  if (golden[name].dtype == "F64") return golden.get<double>(name);
  const Floats f = golden.get<float>(name);
  return {f.begin(), f.end()};
}

/// |got - want| / |want| in the Euclidean norm.
double relative(std::span<const float> got, std::span<const double> want) {
  REQUIRE(got.size() == want.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

/// The logits after every token.
Floats all_logits(const TextModel& model, Session& session, const Tokens& tokens) {
  Floats out(tokens.size() * model.config().vocab_size);
  model.forward(session, tokens, {out.data(), tokens.size(), model.config().vocab_size});
  return out;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void compare_with_golden(const std::filesystem::path& checkpoint, const std::string& name) {
  const Golden golden = waste::test::read_golden(name);
  const Tokens tokens = tokens_of(golden);
  const TextModel model(load(checkpoint));
  const std::size_t hidden = model.config().hidden_size, layers = model.config().num_hidden_layers;
  const std::size_t top_k = model.config().num_experts_per_token;

  std::vector<Floats> stream(layers), weights(layers);
  std::vector<std::vector<std::int32_t>> ids(layers);
  Observer observer;
  observer.layer = [&](std::uint32_t layer, MatrixView<const float> x) {
    stream[layer].insert(stream[layer].end(), x.data, x.data + x.rows * x.cols);
  };
  observer.routing = [&](std::uint32_t layer, const waste::nn::Routing& r) {
    ids[layer].insert(ids[layer].end(), r.ids.data, r.ids.data + r.ids.rows * top_k);
    weights[layer].insert(weights[layer].end(), r.weights.data,
                          r.weights.data + r.ids.rows * top_k);
  };
  Session session = model.start(tokens.size());
  Floats logits(tokens.size() * model.config().vocab_size);
  model.forward(session, tokens, {logits.data(), tokens.size(), model.config().vocab_size},
                observer);

  const std::vector<double> want = doubles(golden, "layers");
  for (std::size_t l = 0; l < layers; ++l) {
    CAPTURE(l);
    const std::size_t n = tokens.size() * hidden;
    CHECK(relative(stream[l], std::span(want).subspan(l * n, n)) <= 5e-6);
    if (!model.config().is_moe(static_cast<std::uint32_t>(l))) continue;
    CHECK(ids[l] == golden.get<std::int32_t>("router_ids." + std::to_string(l)));
    CHECK(relative(weights[l], doubles(golden, "router_weights." + std::to_string(l))) <= 5e-6);
  }
  const double error = relative(logits, doubles(golden, "logits"));
  INFO("relative error of the logits: " << error);
  CHECK(error <= 1e-5);
}

}  // namespace

TEST_CASE("the trained K3-shaped checkpoint in float agrees with the reference") {
  compare_with_golden(tiny_k3(), "tiny_k3");
}

TEST_CASE("random checkpoints of both architectures agree with the reference") {
  if (waste::test::numpy_python().empty()) {
    waste::test::skipped("no Python with NumPy to make the random checkpoints");
    return;
  }
  compare_with_golden(waste::test::random_checkpoint("kimi-linear"), "kimi_linear");
  compare_with_golden(waste::test::random_checkpoint("k3"), "k3");
}

TEST_CASE("logits are the same bits however a sequence is run") {
  const auto weights = load(tiny_k3());
  const Golden golden = waste::test::read_golden("tiny_k3");
  Tokens tokens = tokens_of(golden);
  tokens.resize(41);
  const TextModel model(weights);
  Session session = model.start(64);
  const Floats want = all_logits(model, session, tokens);
  const std::size_t vocab = model.config().vocab_size;

  SECTION("token by token") {
    session.reset();
    Floats got;
    for (const std::uint32_t t : tokens) {
      const Floats row = model.logits_after(session, {&t, 1});
      got.insert(got.end(), row.begin(), row.end());
    }
    REQUIRE(same_bits(got, want));
    REQUIRE(session.position() == tokens.size());
  }
  SECTION("only the last logits, in uneven pieces") {
    session.reset();
    model.forward(session, std::span(tokens).first(7), {});
    Floats got(3 * vocab);
    model.forward(session, std::span(tokens).subspan(7), {got.data(), 3, vocab});
    REQUIRE(same_bits(got, Floats(want.end() - 3 * vocab, want.end())));
  }
  SECTION("any chunk, any number of threads, any tier that fuses multiply-add") {
    for (const waste::arch::Tier tier : waste::arch::runnable_tiers()) {
      if (tier == waste::arch::Tier::baseline && waste::arch::runnable_tiers().size() > 1) continue;
      for (const std::size_t chunk : {1u, 5u, 64u}) {
        for (const unsigned threads : {1u, 3u}) {
          ModelOptions options;
          options.chunk_tokens = chunk;
          options.exec.threads = threads;
          options.exec.kernels = &waste::kernels::kernel_table(tier);
          const TextModel other(weights, options);
          Session s = other.start(64);
          CAPTURE(waste::arch::to_string(tier), chunk, threads);
          REQUIRE(same_bits(all_logits(other, s, tokens), want));
        }
      }
    }
  }
  SECTION("several sessions at once") {
    std::vector<Floats> got(4);
    waste::parallel_for(got.size(), 4, [&](std::size_t i) {
      Session s = model.start(64);
      got[i] = all_logits(model, s, tokens);
    });
    for (const Floats& g : got) REQUIRE(same_bits(g, want));
  }
}

TEST_CASE("KDA in chunks moves logits by rounding only") {
  const auto weights = load(tiny_k3());
  Tokens tokens = tokens_of(waste::test::read_golden("tiny_k3"));
  tokens.resize(41);
  const TextModel steps(weights);
  ModelOptions options;
  options.kda_chunk = 16;
  const TextModel chunks(weights, options);
  Session a = steps.start(64), b = chunks.start(64);
  const Floats want = all_logits(steps, a, tokens), got = all_logits(chunks, b, tokens);
  REQUIRE_FALSE(same_bits(got, want));
  REQUIRE(relative(got, std::vector<double>(want.begin(), want.end())) <= 1e-5);
}

TEST_CASE("a context is a hard bound, and a refused call changes nothing") {
  const TextModel model(load(tiny_k3()));
  const Tokens tokens = {1, 2, 3, 4, 5};
  Session session = model.start(4), fresh = model.start(8);
  REQUIRE_THROWS_AS(model.logits_after(session, tokens), Error);
  REQUIRE(session.position() == 0);
  model.forward(session, std::span(tokens).first(2), {});
  try {
    model.logits_after(session, std::span(tokens).first(3));
    FAIL("five positions in a context of four");
  } catch (const Error& e) {
    REQUIRE(e.code() == waste::Errc::out_of_range);
    REQUIRE(std::string(e.what()).find("context") != std::string::npos);
  }
  const Floats last = model.logits_after(session, std::span(tokens).subspan(2, 2));
  REQUIRE(same_bits(last, model.logits_after(fresh, std::span(tokens).first(4))));
  REQUIRE(session.room() == 0);

  const Tokens beyond = {model.config().vocab_size};
  REQUIRE_THROWS_AS(model.logits_after(fresh, beyond), Error);
  REQUIRE_THROWS_AS(model.start(0), Error);
}

TEST_CASE("epsilons are parameters") {
  const auto weights = load(tiny_k3());
  const Tokens tokens = {5, 6, 7, 8};
  const TextModel published(weights);
  ModelOptions options;
  options.use_compat_epsilons(weights->config());
  REQUIRE(options.eps_a == weights->config().rms_norm_eps);
  const TextModel compat(weights, options);
  Session a = published.start(8), b = compat.start(8);
  REQUIRE_FALSE(same_bits(published.logits_after(a, tokens), compat.logits_after(b, tokens)));
}
