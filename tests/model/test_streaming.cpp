// Read-ahead, look-ahead, depth, budget, verification and direct reads change when experts are read
// and never what comes out.
#include <memory>
#include <vector>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/engine/trace_replay.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"

namespace fs = std::filesystem;
using waste::Container;
using waste::Session;
using waste::TextModel;
using waste::io::Verify;
using waste::model::ContainerWeights;
using waste::test::TinySpec;

namespace {

struct Setting {
  std::uint64_t slots;
  unsigned threads, readers;
  std::size_t depth, look_ahead;
  Verify verify;
  bool direct;
};

struct Outcome {
  std::vector<float> logits;
  waste::engine::CacheCounters counters;
};

/// A prompt of four tokens, then sixteen one at a time: the logits of all.
Outcome decode(const fs::path& dir, const Setting& s) {
  waste::OpenOptions open;
  open.verify_records = s.verify;
  open.direct_io = s.direct;
  const Container container = Container::open(dir, open);
  waste::engine::CacheOptions cache;
  cache.budget_bytes = s.slots * container.banks().front().record_bytes();
  cache.concurrent = s.threads;
  cache.ahead.readers = s.readers;
  cache.ahead.depth = s.depth;
  cache.ahead.look_ahead = s.look_ahead;
  waste::model::ModelOptions options;
  options.exec.threads = s.threads;
  const auto weights = std::make_shared<ContainerWeights>(container, cache);
  const TextModel model(weights, options);
  const std::size_t vocab = model.config().vocab_size;
  Session session = model.start(20);
  Outcome out;
  out.logits.resize(20 * vocab);
  const std::vector<std::uint32_t> prompt = {3, 141, 59, 26};
  model.forward(session, prompt, {out.logits.data(), 4, vocab});
  for (std::uint32_t i = 0; i < 16; ++i) {
    const std::uint32_t token = (i * 97 + 5) % static_cast<std::uint32_t>(vocab);
    model.forward(session, {&token, 1}, {out.logits.data() + (4 + i) * vocab, 1, vocab});
  }
  out.counters = weights->cache().counters();
  return out;
}

}  // namespace

TEST_CASE("no streaming setting changes a bit of the result") {
  for (const bool k3 : {false, true}) {
    TinySpec spec = k3 ? TinySpec::kimi_k3() : TinySpec::vq3r();
    spec.experts = 12;
    spec.top_k = 3;
    const fs::path dir = waste::test::scratch_dir(k3 ? "streaming-k3" : "streaming-kl");
    waste::test::make_tiny(spec).write(dir);
    const Outcome want = decode(dir, {36, 1, 0, 0, 0, Verify::always, false});
    REQUIRE(want.counters.ahead_in_time + want.counters.ahead_late == 0);
    for (const Setting& s :
         {Setting{36, 1, 2, 8, 6, Verify::once, false},
          Setting{12, 1, 1, 8, 2, Verify::once, false}, Setting{12, 3, 3, 2, 6, Verify::off, true},
          Setting{8, 2, 2, 8, 0, Verify::always, true},
          Setting{3, 3, 2, 8, 6, Verify::once, false}}) {
      const Outcome got = decode(dir, s);
      CHECK(got.logits == want.logits);
      CHECK(got.counters.hits + got.counters.misses == want.counters.hits + want.counters.misses);
      CHECK(got.counters.failed == 0);
      if (s.look_ahead == 0) CHECK(got.counters.guesses == 0);
    }
    // The next layer's router is asked: among twelve experts a cold cache must guess some right.
    const Outcome guessing = decode(dir, {12, 1, 2, 8, 3, Verify::once, false});
    CHECK(guessing.counters.guesses + guessing.counters.guesses_withdrawn > 0);
  }
}

TEST_CASE("a recorded trace predicts the hits of a run exactly") {
  namespace engine = waste::engine;
  TinySpec spec = TinySpec::vq3r();
  spec.experts = 12;
  spec.top_k = 3;
  const fs::path dir = waste::test::scratch_dir("predicted");
  waste::test::make_tiny(spec).write(dir);
  const Container container = Container::open(dir);
  const std::size_t layers = container.banks().size(), keys = 12 * layers;
  std::uint64_t different = 0, all_hits = 0;
  for (const engine::Policy policy : engine::all_policies) {
    for (const std::size_t slots : {keys / 8, keys / 4, keys / 2, keys}) {
      for (const engine::ReadAheadOptions& ahead :
           {engine::ReadAheadOptions{0, 0, 0}, engine::ReadAheadOptions{2, 2, 0},
            engine::ReadAheadOptions{3, 8, 3}}) {
        engine::CacheOptions cache;
        cache.budget_bytes = slots * container.banks().front().record_bytes();
        cache.make_policy = engine::policy_of_layers(policy, 12);
        cache.ahead = ahead;
        waste::model::ModelOptions options;
        options.exec.threads = 1;
        const auto weights = std::make_shared<ContainerWeights>(container, cache);
        const TextModel model(weights, options);
        Session session = model.start(40);
        std::vector<std::uint32_t> moe_layers;
        for (const auto& bank : container.banks()) moe_layers.push_back(to_index(bank.layer()));
        engine::TraceRecorder recorder(moe_layers);
        waste::model::Observer observer;
        observer.routing = [&](std::uint32_t layer, const waste::nn::Routing& routing) {
          recorder.record(layer, routing.ids);
        };
        std::vector<std::uint32_t> hits;
        std::uint64_t before = 0;
        for (std::uint32_t i = 0; i < 40; ++i) {
          const auto token = static_cast<std::uint32_t>((i * i * 31 + i * 7) % spec.vocab);
          model.forward(session, {&token, 1}, {}, observer);
          const std::uint64_t now = weights->cache().counters().hits;
          hits.push_back(static_cast<std::uint32_t>(now - before));
          before = now;
        }
        // Through the file, as a user would.
        recorder.write(dir / "trace.jsonl");
        engine::RoutingTrace trace = engine::read_trace(dir / "trace.jsonl");
        REQUIRE(trace.tokens() == 40);
        REQUIRE(trace.choices == recorder.trace().choices);
        REQUIRE(trace.demands(0, 40) == 40 * layers * 3);
        trace.experts = 12;
        const engine::ReplayContainer small(trace);
        engine::ReplayOptions replay{engine::policy_of_layers(policy, 12), slots};
        replay.ahead = ahead;
        INFO(to_string(policy) << ", " << slots << " slots, depth " << ahead.depth);
        CHECK(engine::replay_hits(trace, small, replay) == hits);
        all_hits += before;
        replay.ahead = {.readers = 0};
        different += engine::replay_hits(trace, small, replay) != hits;
      }
    }
  }
  // The places that reading ahead takes are part of the prediction, or the above proves little.
  CHECK(different > 0);
  CHECK(all_hits > 0);
}
