// Ten thousand random calls from four threads on a small cache: always the right bytes, never more
// memory, never a hang. tests/sanitize.sh runs it under ThreadSanitizer.
#include <atomic>
#include <thread>
#include <vector>

#include "engine/stream_fixture.hpp"
#include "support/catch.hpp"
#include "waste/quant/random.hpp"

using waste::Error;
using waste::ExpertCache;
using waste::ExpertId;
using waste::LayerId;
using waste::engine::CacheOptions;
using waste::engine::Policy;
using waste::test::StreamFixture;

namespace {

constexpr std::uint32_t experts = 12, layers = 3;
constexpr unsigned callers = 4;
constexpr int calls_each = 2500;

struct Tally {
  std::atomic<std::uint64_t> wrong{0}, refused{0}, gets{0}, over{0};
};

void run(const StreamFixture& f, ExpertCache& cache, std::uint64_t seed, std::uint64_t slots,
         Tally& tally) {
  waste::quant::Random random(seed);
  const auto some = [&] {
    std::vector<ExpertId> list;
    for (std::uint64_t i = random.below(8); i > 0; --i) {
      list.push_back(ExpertId{static_cast<std::uint32_t>(random.below(experts + 1))});
    }
    return list;
  };
  for (int i = 0; i < calls_each; ++i) {
    const LayerId layer{static_cast<std::uint32_t>(1 + random.below(layers))};
    switch (random.below(16)) {
      case 0:
        cache.begin_token();
        break;
      case 1:
      case 2:
        cache.prepare(layer, some());
        break;
      case 3:
      case 4:
        cache.expect(layer, some());
        break;
      case 5:
        cache.warm(std::vector<std::pair<LayerId, ExpertId>>{{layer, ExpertId{3}}});
        break;
      case 6:
        if (random.below(8) == 0) cache.withdraw();
        break;
      case 7:
        if (cache.held_bytes() > slots * f.record_bytes()) ++tally.over;
        cache.status();
        break;
      case 8: {  // a layer as a model walks it
        const auto list = some();
        cache.prepare(layer, list);
        for (const ExpertId e : list) {
          if (to_index(e) >= experts) continue;
          const auto lease = cache.get(layer, e);
          ++tally.gets;
          if (!f.right(to_index(layer), to_index(e), lease.view())) ++tally.wrong;
        }
        break;
      }
      default:
        try {
          const auto e = static_cast<std::uint32_t>(random.below(experts));
          auto lease = cache.get(layer, ExpertId{e});
          ++tally.gets;
          if (random.below(4) == 0) std::this_thread::yield();
          if (!f.right(to_index(layer), e, lease.view())) ++tally.wrong;
        } catch (const Error&) {
          ++tally.refused;
        }
    }
  }
}

}  // namespace

TEST_CASE("random calls from several threads always get what they asked for") {
  const StreamFixture f("interleavings", experts);
  std::uint64_t seed = 1;
  for (const std::uint64_t slots : {24u, 36u}) {
    for (const unsigned readers : {0u, 1u, 3u}) {
      CacheOptions options = f.options(slots);
      options.concurrent = callers;
      options.policy = readers == 1 ? Policy::lru : Policy::decayed_frequency;
      options.ahead.readers = readers;
      options.ahead.patience = std::chrono::milliseconds(readers == 3 ? 1 : 10000);
      ExpertCache cache(f.container, options);
      Tally tally;
      std::vector<std::thread> threads;
      for (unsigned t = 0; t < callers; ++t, ++seed) {
        threads.emplace_back([&, seed] { run(f, cache, seed, slots, tally); });
      }
      for (auto& t : threads) t.join();
      REQUIRE(tally.wrong == 0);
      REQUIRE(tally.over == 0);
      // With patience of a millisecond slots may be tied up in overdue reads.
      if (readers != 3) REQUIRE(tally.refused == 0);
      const auto c = cache.counters();
      REQUIRE(c.hits + c.misses == tally.gets);
      REQUIRE(c.ahead_in_time + c.ahead_late <= c.misses);
      REQUIRE(c.guesses_used <= c.guesses);
      REQUIRE(c.failed == 0);
    }
  }
}
