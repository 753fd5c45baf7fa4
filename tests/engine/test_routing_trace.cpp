// Routing traces: reading, Belady's optimum against exhaustive search, replay through the cache.
#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <string>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/engine/routing_trace.hpp"
#include "waste/engine/trace_replay.hpp"

namespace {

using namespace waste::engine;
using waste::Errc;
using waste::Error;

RoutingTrace parse(const std::string& text) { return parse_trace(text, "t"); }

Errc code_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& e) {
    REQUIRE(std::string(e.what()).find("t") != std::string::npos);
    return e.code();
  }
  return Errc::ok;
}

TEST_CASE("a trace is one line a token", "[trace]") {
  const RoutingTrace t = parse(
      "{\"tok\": 0, \"layers\": [[3, 1], [7]]}\r\n\n{\"layers\": [[0, 2], [4, 5]], \"x\": 1}\n");
  REQUIRE(t.tokens() == 2);
  REQUIRE(t.layers == 2);
  REQUIRE(t.experts == 8);
  REQUIRE(t.at(0, 0) == std::vector<std::uint16_t>{3, 1});
  REQUIRE(t.at(1, 1) == std::vector<std::uint16_t>{4, 5});
  REQUIRE(t.demands(0, 2) == 7);
  REQUIRE(t.working_set() == 4);
  REQUIRE(t.prefix(1).tokens() == 1);
  REQUIRE(t.prefix(9).choices == t.choices);
}

TEST_CASE("what is no trace is refused", "[trace]") {
  CHECK(code_of("") == Errc::truncated);
  CHECK(code_of("{\"layers\": [[1]]") == Errc::bad_json);
  CHECK(code_of("{\"layers\": []}") == Errc::bad_field);
  CHECK(code_of("{\"layer\": [[1]]}") == Errc::bad_field);
  CHECK(code_of("{\"layers\": [[1], []]}") == Errc::bad_field);
  CHECK(code_of("{\"layers\": [1]}") == Errc::bad_field);
  CHECK(code_of("{\"layers\": [[1, 1]]}") == Errc::bad_field);
  CHECK(code_of("{\"layers\": [[-1]]}") == Errc::bad_field);
  CHECK(code_of("{\"layers\": [[1.5]]}") == Errc::bad_field);
  CHECK(code_of("{\"layers\": [[65536]]}") == Errc::out_of_range);
  CHECK(code_of("{\"layers\": [[65535]]}") == Errc::ok);
  // What a replay would keep a number of for each layer and expert is bounded.
  const auto layers = [](std::size_t n, const std::string& expert) {
    std::string text = "{\"layers\": [[" + expert;
    for (std::size_t i = 1; i < n; ++i) text += "],[" + expert;
    return text + "]]}";
  };
  CHECK(code_of(layers(4097, "0")) == Errc::out_of_range);
  CHECK(code_of(layers(4096, "1023")) == Errc::ok);
  CHECK(code_of(layers(4096, "1024")) == Errc::out_of_range);
  CHECK(code_of("{\"layers\": [[1], [2]]}\n{\"layers\": [[1]]}") == Errc::mismatch);
}

TEST_CASE("a recorded run is written as it is read", "[trace]") {
  const std::uint32_t first[] = {3, 1, 9, 0}, second[] = {7, 2, 4, 5}, third[] = {0, 9};
  TraceRecorder r({1, 4});
  r.record(1, {first, 2, 2});  // two tokens at once
  REQUIRE(r.trace().tokens() == 0);
  r.record(4, {second, 2, 2});
  r.record(1, {first, 1, 2});  // a pass that stopped midway
  r.record(1, {third, 1, 2});
  r.record(4, {first, 1, 2});
  REQUIRE(trace_text(r.trace()) ==
          "{\"tok\": 0, \"layers\": [[3, 1], [7, 2]]}\n"
          "{\"tok\": 1, \"layers\": [[9, 0], [4, 5]]}\n"
          "{\"tok\": 2, \"layers\": [[0, 9], [3, 1]]}\n");
  REQUIRE(r.trace().experts == 10);
  const auto file = waste::test::scratch_dir("trace-recorder") / "t.jsonl";
  r.write(file);
  REQUIRE(read_trace(file).choices == r.trace().choices);

  const auto code = [&](std::uint32_t layer, const std::vector<std::uint32_t>& ids) {
    return waste::test::code_of([&] { r.record(layer, {ids.data(), 1, ids.size()}); });
  };
  CHECK(code(4, {0, 1}) == Errc::bad_argument);  // out of turn
  CHECK(code(2, {0, 1}) == Errc::bad_argument);
  CHECK(code(1, {0, 65536}) == Errc::out_of_range);
  CHECK(code(1, {0, 65535}) == Errc::ok);
  CHECK(code(4, {}) == Errc::ok);
  CHECK(waste::test::code_of([&] { r.write("no/such/folder/t"); }) != Errc::ok);
}

/// The most hits that any cache of `records` could have, by trying everything.
std::uint64_t exhaustive(const RoutingTrace& trace, int records) {
  std::map<std::uint32_t, std::uint64_t> best{{0u, 0u}};
  for (std::size_t i = 0; i < trace.choices.size(); ++i) {
    std::uint32_t chosen = 0;
    for (const auto e : trace.choices[i]) chosen |= 1u << (i % trace.layers * trace.experts + e);
    std::map<std::uint32_t, std::uint64_t> after;
    for (const auto& [held, hits] : best) {
      const std::uint32_t all = held | chosen;
      const std::uint64_t n =
          hits + static_cast<std::uint64_t>(std::popcount(static_cast<unsigned>(held & chosen)));
      for (std::uint32_t keep = all;; keep = (keep - 1) & all) {
        if (std::popcount(keep) <= records) after[keep] = std::max(after[keep], n);
        if (keep == 0) break;
      }
    }
    best = std::move(after);
  }
  std::uint64_t most = 0;
  for (const auto& [held, hits] : best) most = std::max(most, hits);
  return most;
}

RoutingTrace random_trace(std::size_t tokens, std::size_t layers, std::uint32_t experts,
                          std::size_t chosen, std::uint64_t state) {
  RoutingTrace t;
  t.layers = layers;
  t.experts = experts;
  for (std::size_t i = 0; i < tokens * layers; ++i) {
    std::vector<std::uint16_t> layer;
    while (layer.size() < chosen) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const auto e = static_cast<std::uint16_t>((state >> 33) % experts);
      if (std::find(layer.begin(), layer.end(), e) == layer.end()) layer.push_back(e);
    }
    t.choices.push_back(layer);
  }
  return t;
}

std::uint64_t sum(const std::vector<std::uint32_t>& hits) {
  std::uint64_t n = 0;
  for (const std::uint32_t h : hits) n += h;
  return n;
}

TEST_CASE("the optimum by hand", "[trace]") {
  // One layer, one expert a token, one place: 0 is kept over 1, and asked for again at once.
  const RoutingTrace t = parse(
      "{\"layers\":[[0]]}\n{\"layers\":[[1]]}\n{\"layers\":[[0]]}\n{\"layers\":[[0]]}\n"
      "{\"layers\":[[2]]}\n{\"layers\":[[1]]}\n{\"layers\":[[2]]}\n");
  REQUIRE(optimal_hits(t, 1) == std::vector<std::uint32_t>{0, 0, 1, 1, 0, 0, 1});
  REQUIRE(optimal_hits(t, 2) == std::vector<std::uint32_t>{0, 0, 1, 1, 0, 1, 1});
  REQUIRE(sum(optimal_hits(t, 3)) == 4);
}

TEST_CASE("the optimum is what trying everything finds", "[trace]") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const RoutingTrace one = random_trace(12, 1, 6, 2, seed);
    const RoutingTrace two = random_trace(6, 2, 4, 2, seed + 100);
    for (int records = 1; records <= 4; ++records) {
      REQUIRE(sum(optimal_hits(one, static_cast<std::size_t>(records))) ==
              exhaustive(one, records));
      REQUIRE(sum(optimal_hits(two, static_cast<std::size_t>(records))) ==
              exhaustive(two, records));
    }
  }
}

TEST_CASE("a replay by hand", "[trace]") {
  // LRU with three records, of which one is the record in use: two are kept.
  const RoutingTrace t = parse(
      "{\"layers\":[[0]]}\n{\"layers\":[[1]]}\n{\"layers\":[[0]]}\n{\"layers\":[[2]]}\n"
      "{\"layers\":[[1]]}\n{\"layers\":[[1]]}\n{\"layers\":[[2]]}\n{\"layers\":[[3]]}\n"
      "{\"layers\":[[4]]}\n");
  const ReplayContainer small(t);
  REQUIRE(small.container().banks().size() == 1);
  REQUIRE(small.container().banks()[0].record_bytes() == 4096);
  const auto lru = policy_of_layers(Policy::lru, t.experts);
  const std::vector<std::uint32_t> all{0, 0, 1, 0, 1, 1, 1, 0, 0};
  REQUIRE(replay_hits(t, small, {lru, 5}) == all);
  // Four slots of five experts, a quarter of them for the record in use: 0 1 2 stay, then 3 for 0.
  REQUIRE(replay_hits(t, small, {lru, 4}) == all);
  REQUIRE_THROWS_AS(replay_hits(t, small, {lru, 0}), Error);
  // Another model's trace has no layers here.
  const waste::Error other = waste::test::failure_of([&] {
    replay_hits(random_trace(2, 2, 5, 1, 3), small, {lru, 5});
  });
  REQUIRE(std::string(other.what())
              .ends_with("c.waste: layers of the trace: mismatch, got 2, wanted 1"));
}

TEST_CASE("a trace made by hand is asked no more than it has", "[trace]") {
  RoutingTrace t = parse("{\"layers\":[[0],[1]]}\n{\"layers\":[[2],[0]]}\n");
  REQUIRE(t.demands(0, 2) == 4);
  REQUIRE(t.demands(1, 1000) == 2);
  REQUIRE(t.demands(1000, 2000) == 0);
  REQUIRE(t.demands(2, 1) == 0);
  REQUIRE(t.prefix(1000).choices == t.choices);
  const auto refused = [&] {
    return std::string(waste::test::failure_of([&] { optimal_hits(t, 1); }).what());
  };
  t.experts = 2;
  REQUIRE(refused() == "expert: out of range, got 2, wanted at most 1");
  t.experts = 0;
  REQUIRE(refused() == "experts: invalid argument, got 0, wanted 1");
  t.experts = 3;
  t.choices.pop_back();
  REQUIRE(refused() ==
          "choices: invalid argument, got 3, wanted 4; wanted one for every token and layer");
  t.layers = 0;
  REQUIRE(refused() ==
          "choices: invalid argument, got 3, wanted 0; wanted one for every token and layer");
}

TEST_CASE("replays are the same each time, never better than the optimum, and the whole at most",
          "[trace]") {
  const RoutingTrace t = random_trace(40, 3, 12, 3, 9);
  const ReplayContainer small(t);
  for (const Policy policy : all_policies) {
    const auto make = policy_of_layers(policy, t.experts);
    for (const std::size_t records : {4u, 9u, 18u, 36u}) {
      const auto hits = replay_hits(t, small, {make, records});
      REQUIRE(hits == replay_hits(t, small, {make, records}));
      REQUIRE(sum(hits) <= sum(optimal_hits(t, records)));
    }
    REQUIRE(replay_hits(t, small, {make, 36}) == optimal_hits(t, 36));  // everything fits
  }
}

/// Hit rates over all tokens and over the last 100.
std::pair<double, double> rates(const RoutingTrace& t, const std::vector<std::uint32_t>& hits) {
  const std::size_t n = t.tokens(), first = n - 100;
  std::uint64_t last = 0;
  for (std::size_t i = first; i < n; ++i) last += hits[i];
  return {static_cast<double>(sum(hits)) / static_cast<double>(t.demands(0, n)),
          static_cast<double>(last) / static_cast<double>(t.demands(first, n))};
}

struct Published {
  const char* file;
  std::uint64_t set;
  double optimum[3];  ///< at 0.5, 1 and 2 working sets, all tokens
  double lru[3], decayed[3];
  double fitted[3], fitted_last[3];  ///< at least
};

TEST_CASE("hit rates on real routing traces", "[trace]") {
  const auto shared = waste::test::shared_dir();
  if (shared.empty() || !std::filesystem::exists(shared / "traces")) {
    waste::test::skipped("WASTE_SHARED is unset: no routing traces");
    return;
  }
  const Published known[] = {{"trace_kimi_300.jsonl",
                              208,
                              {.384, .519, .643},
                              {0, .234, .418},
                              {.223, .326, .448},
                              {.265, .375, .49},
                              {.26, .365, .475}},
                             {"trace_olmoe_299.jsonl",
                              128,
                              {.412, .603, .767},
                              {0, .319, .565},
                              {.263, .395, .575},
                              {.315, .47, .625},
                              {.35, .525, .69}}};
  for (const Published& p : known) {
    const RoutingTrace t = read_trace(shared / "traces" / p.file);
    REQUIRE(t.working_set() == p.set);
    const ReplayContainer small(t);
    const auto rate = [&](Policy policy, std::size_t records) {
      return rates(t, replay_hits(t, small, {policy_of_layers(policy, t.experts), records}));
    };
    const std::size_t sizes[] = {p.set / 2, p.set, 2 * p.set};
    for (std::size_t i = 0; i < 3; ++i) {
      INFO(p.file << " with " << sizes[i] << " records");
      CHECK(rates(t, optimal_hits(t, sizes[i])).first == Approx(p.optimum[i]).margin(0.003));
      // At least: prepare() keeps a layer's residents from making way for one another.
      CHECK(rate(Policy::lru, sizes[i]).first > p.lru[i] - 0.006);
      CHECK(rate(Policy::decayed_frequency, sizes[i]).first == Approx(p.decayed[i]).margin(0.006));
      const auto [all, last] = rate(Policy::fitted_score, sizes[i]);
      CHECK(all >= p.fitted[i]);
      CHECK(last >= p.fitted_last[i]);
    }
  }
}

}  // namespace
