// Sampling, stopping and evaluating.
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/model/checkpoint_weights.hpp"
#include "waste/model/evaluate.hpp"
#include "waste/model/generate.hpp"

using namespace waste;
using model::GenerateOptions;
using model::Sampler;
using model::SamplerOptions;
using model::StopReason;
using Floats = std::vector<float>;
using Tokens = std::vector<std::uint32_t>;

namespace {

std::filesystem::path tiny_k3() { return test::source_root() / "examples/tiny_k3/checkpoint"; }

const TextModel& tiny_model() {
  static const TextModel model(
      std::make_shared<model::CheckpointWeights>(convert::Checkpoint::open(tiny_k3())));
  return model;
}
const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::open(tiny_k3());
  return tokenizer;
}

model::Generated run(const std::string& prompt, const GenerateOptions& options,
                     std::size_t context = 256, std::string* shown = nullptr) {
  Session session = tiny_model().start(context);
  const Tokens tokens = tiny_tokenizer().encode(prompt);
  return model::generate(tiny_model(), session, tiny_tokenizer(), tokens, options,
                         [&](std::string_view text) {
                           if (shown != nullptr) *shown += text;
                           return true;
                         });
}

}  // namespace

TEST_CASE("greedy is the first largest logit") {
  REQUIRE(Sampler::greedy(Floats{1, 3, 2, 3}) == 1);
  Sampler sampler({});
  REQUIRE(sampler.next(Floats{-5, -7, -5}) == 0);
  REQUIRE_THROWS_AS(sampler.next({}), Error);
}

TEST_CASE("sampling follows the softmax of its temperature") {
  const Floats logits = {0.0f, std::log(2.0f), std::log(4.0f), std::log(3.0f)};
  SamplerOptions options;
  options.temperature = 1.0f;
  const auto frequencies = [&](int draws) {
    Sampler sampler(options);
    std::map<std::uint32_t, double> out;
    for (int i = 0; i < draws; ++i) out[sampler.next(logits)] += 1.0 / draws;
    return out;
  };
  // p = 0.1, 0.2, 0.4, 0.3; five standard deviations of 20000 draws are below 0.018.
  auto f = frequencies(20000);
  REQUIRE(std::abs(f[0] - 0.1) < 0.018);
  REQUIRE(std::abs(f[1] - 0.2) < 0.018);
  REQUIRE(std::abs(f[2] - 0.4) < 0.018);
  REQUIRE(std::abs(f[3] - 0.3) < 0.018);
  options.top_k = 2;
  f = frequencies(20000);
  REQUIRE(f.size() == 2);
  REQUIRE(std::abs(f[2] - 4.0 / 7.0) < 0.018);
  options.top_k = 0;
  options.top_p = 0.75f;  // 0.4, 0.3, then 0.2 passes 0.75
  f = frequencies(20000);
  REQUIRE(f.size() == 3);
  REQUIRE(std::abs(f[1] - 0.2 / 0.9) < 0.018);
  options.top_p = 0.3f;
  REQUIRE(frequencies(100).size() == 1);
  options.top_p = 1.0f;
  options.temperature = 0.25f;  // p proportional to 1, 16, 256, 81
  f = frequencies(20000);
  REQUIRE(std::abs(f[2] - 256.0 / 354.0) < 0.018);
}

TEST_CASE("a seed fixes the draws, and ties go to the lower id") {
  SamplerOptions options;
  options.temperature = 1.0f;
  options.seed = 42;
  const Floats flat(50, 1.0f);
  Sampler a(options), b(options);
  Tokens first, second;
  for (int i = 0; i < 40; ++i) {
    first.push_back(a.next(flat));
    second.push_back(b.next(flat));
  }
  REQUIRE(first == second);
  options.seed = 43;
  Sampler c(options);
  Tokens third;
  for (int i = 0; i < 40; ++i) third.push_back(c.next(flat));
  REQUIRE(first != third);
  options.top_k = 3;
  Sampler d(options);
  for (int i = 0; i < 40; ++i) REQUIRE(d.next(flat) < 3);
  options.temperature = std::nanf("");
  REQUIRE_THROWS_AS(Sampler(options), Error);
}

TEST_CASE("generation says why it stopped") {
  GenerateOptions options;
  options.max_tokens = 24;
  std::string shown;
  const auto plain = run("And the LORD said unto ", options, 256, &shown);
  REQUIRE(plain.reason == StopReason::length);
  REQUIRE(plain.tokens.size() == 24);
  REQUIRE(plain.steps == 23);
  REQUIRE(plain.text == tiny_tokenizer().decode(plain.tokens));
  REQUIRE(shown == plain.text);

  SECTION("a stop string ends the text before it, however tokens cut it") {
    const std::string stop = plain.text.substr(plain.text.size() / 2, 5);
    options.stop = {"never to be found", stop};
    shown.clear();
    const auto cut = run("And the LORD said unto ", options, 256, &shown);
    REQUIRE(cut.reason == StopReason::stop_string);
    REQUIRE(cut.stop == stop);
    REQUIRE(cut.text == plain.text.substr(0, plain.text.find(stop)));
    REQUIRE(shown == cut.text);
  }
  SECTION("what only begins a stop string is shown in the end") {
    options.stop = {plain.text.substr(plain.text.size() - 3) + "#"};
    shown.clear();
    const auto all = run("And the LORD said unto ", options, 256, &shown);
    REQUIRE(all.reason == StopReason::length);
    REQUIRE(shown == plain.text);
  }
  SECTION("the context") {
    const std::size_t prompt = tiny_tokenizer().encode("And the LORD said unto ").size();
    const auto full = run("And the LORD said unto ", options, prompt + 10);
    REQUIRE(full.reason == StopReason::context);
    REQUIRE(full.tokens.size() == 11);  // the last one needs no room
    REQUIRE_THROWS_AS(run("And the LORD said unto ", options, prompt - 1), Error);
  }
  SECTION("an end-of-sequence token") {
    // A tokenizer for which the sixth token generated ends a text.
    const std::uint32_t end = plain.tokens[5];
    Session session = tiny_model().start(256);
    std::size_t first = 0;
    while (plain.tokens[first] != end) ++first;
    std::ifstream in(tiny_k3() / "tiktoken.model", std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), {}};
    const Tokenizer ends(file, {}, {end});
    const auto g = model::generate(tiny_model(), session, ends,
                                   ends.encode("And the LORD said unto "), options);
    REQUIRE(g.reason == StopReason::eos);
    REQUIRE(g.tokens == Tokens(plain.tokens.begin(), plain.tokens.begin() + first));
    options.ignore_eos = true;
    session.reset();
    const auto on = model::generate(tiny_model(), session, ends,
                                    ends.encode("And the LORD said unto "), options);
    REQUIRE(on.tokens == plain.tokens);
  }
  SECTION("the caller") {
    Session session = tiny_model().start(256);
    int calls = 0;
    const auto g = model::generate(tiny_model(), session, tiny_tokenizer(),
                                   tiny_tokenizer().encode("And the LORD said unto "), options,
                                   [&](std::string_view) { return ++calls < 3; });
    REQUIRE(g.reason == StopReason::cancelled);
    REQUIRE(calls == 3);
  }
  SECTION("nothing to continue") { REQUIRE_THROWS_AS(run("", options), Error); }
}

TEST_CASE("evaluation is the mean over whole windows, on any number of threads") {
  Tokens tokens;
  for (std::uint32_t i = 0; i < 100; ++i) tokens.push_back((i * 37 + 11) % 1024);
  const std::size_t window = 16, windows = 6;  // 99 / 16
  double nll = 0;
  const std::size_t vocab = tiny_model().config().vocab_size;
  for (std::size_t i = 0; i < windows; ++i) {
    Session session = tiny_model().start(window);
    for (std::size_t t = 0; t < window; ++t) {
      const Floats logits = tiny_model().logits_after(session, {&tokens[i * window + t], 1});
      double total = 0;
      for (std::size_t v = 0; v < vocab; ++v) total += std::exp(double(logits[v]));
      nll += std::log(total) - logits[tokens[i * window + t + 1]];
    }
  }
  std::uint64_t last = 0;
  const auto e = model::evaluate(tiny_model(), tokens, 333, window, 1,
                                 [&](std::uint64_t done, std::uint64_t) { last = done; });
  REQUIRE(e.windows == windows);
  REQUIRE(e.predicted == 96);
  REQUIRE(last == 96);
  REQUIRE(e.nll == Approx(nll).epsilon(1e-9));
  REQUIRE(e.bits_per_byte() == Approx(nll / 96 / std::log(2.0) * 100 / 333));
  REQUIRE(e.perplexity() == Approx(std::exp(nll / 96)));
  REQUIRE(model::evaluate(tiny_model(), tokens, 333, window, 3).nll == e.nll);
  const auto one = model::evaluate(tiny_model(), tokens, 333, 1000, 2);
  REQUIRE(one.window == 99);
  REQUIRE(one.windows == 1);
  REQUIRE_THROWS_AS(model::evaluate(tiny_model(), Tokens{5}, 3, 16, 1), Error);
}

TEST_CASE("what a model is asked wrongly is said, and changes nothing") {
  const TextModel& m = tiny_model();
  const auto said = [](const auto& call) { return std::string(test::failure_of(call).what()); };
  // The last token is predicted and never fed: nothing else looks at it.
  for (const Tokens& tokens : {Tokens{5, 1040}, Tokens{5, 6, 7, ~0u}}) {
    CHECK(said([&] { model::evaluate(m, tokens, 9, 1, 1); }) ==
          "token: out of range, got " + std::to_string(tokens.back()) + ", wanted at most 1039");
  }
  CHECK(said([&] {
          model::evaluate(m, Tokens{1040, 5}, 9, 1, 1);
        }) == "token: out of range, got 1040, wanted at most 1039");
  CHECK(said([&] {
          model::evaluate(m, Tokens{5, 6}, 9, 0, 1);
        }) == "window: invalid argument, got 0, wanted 1");
  const Floats two = {0.0f, 0.0f};
  CHECK(model::negative_log_likelihood(two, 1) == std::log(2.0));
  CHECK(std::isinf(model::negative_log_likelihood(two, 2)));
  CHECK(std::isinf(model::negative_log_likelihood({}, 0)));
  CHECK(Sampler::greedy({}) == 0);
  Sampler sampler(SamplerOptions{});
  CHECK(said([&] { sampler.next({}); }) == "logits: shape mismatch, got 0, wanted 1");
  CHECK(said([] { TextModel none(nullptr); }) == "weights: invalid argument; there are none");

  Session session = m.start(4);
  Floats logits(3 * 1040);
  CHECK(said([&] {
          m.forward(session, Tokens{1, 2}, {logits.data(), 3, 1040});
        }) == "logits: shape mismatch, got 3, wanted 2");
  CHECK(said([&] {
          m.forward(session, Tokens{1}, {logits.data(), 1, 1039});
        }) == "logits: shape mismatch, got 1039, wanted 1040");
  CHECK(said([&] { m.weights().embedding(1040, logits); }) ==
        "token: out of range, got 1040, wanted at most 1039");
  CHECK(test::code_of([&] { m.weights().embedding(0, logits); }) == Errc::shape);
  CHECK(test::code_of([&] { m.weights().expert(LayerId{0}, ExpertId{0}); }) == Errc::out_of_range);
  CHECK(test::code_of([&] { m.weights().matrix("nothing"); }) == Errc::missing);
  CHECK(session.position() == 0);
  CHECK_FALSE(session.broken());
}
