// Substitutes in the cache: who is late is replaced, counted and kept for later; nobody else is.
#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "engine/faulty_disk.hpp"
#include "engine/stream_fixture.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/tiny_substitutes.hpp"
#include "waste/io/substitutes.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"

namespace {

using namespace waste;
using namespace waste::test;
using engine::CacheOptions;
using std::chrono::milliseconds;

struct Fixture : StreamFixture {
  TinyContainer coarse;
  std::shared_ptr<const io::Substitutes> substitutes;

  explicit Fixture(const std::string& name, std::uint32_t experts = 5)
      : StreamFixture(name, experts), coarse(one_stage(tiny.spec)) {
    write_substitutes(coarse, directory);
    substitutes = std::make_shared<const io::Substitutes>(io::Substitutes::open(container));
  }
  CacheOptions options(std::uint64_t slots, milliseconds after) const {
    CacheOptions out = StreamFixture::options(slots);
    out.substitutes = substitutes;
    out.substitute_after = after;
    return out;
  }
  /// Whether a view is the substitute's, number by number.
  bool coarse_right(std::uint32_t layer, std::uint32_t e, const ExpertView& view) const {
    const VqMatrix* matrices[3] = {&view.gate, &view.up, &view.down};
    for (std::size_t k = 0; k < 3; ++k) {
      const std::vector<double> want = coarse.weights(layer - 1, e, k);
      const VqMatrix& m = *matrices[k];
      if (want.size() != m.rows() * m.cols() || m.quant.stages != 1) return false;
      for (std::size_t i = 0; i < want.size(); ++i) {
        const std::size_t r = i / m.cols(), c = i % m.cols();
        const double got =
            static_cast<double>(m.scale(r)) * m.codebooks[8 * m.index(r, c / 8, 0) + c % 8];
        if (got != want[i]) return false;
      }
    }
    return true;
  }
};

}  // namespace

// By the clock, which runs too fast for an emulator.
TEST_CASE("a late record is answered by its substitute, and kept for later", "[native]") {
  Fixture f("substitute-late");
  f.with = GENERATE(from_range(ways()));
  Gate gate;
  const auto offset = static_cast<off_t>(2 * f.record_bytes());
  ExpertCache::Lease outlives;
  {
    const FaultyDisk disk([&](const DiskRead& r) {
      if (r.offset == offset) gate.pass();
      return r.pass();
    });
    ExpertCache cache(f.container, f.options(8, milliseconds(20)));
    CHECK(f.right(1, 1, cache.get(LayerId{1}, ExpertId{1}).view()));
    CHECK(cache.counters().substituted == 0);

    outlives = cache.get(LayerId{1}, ExpertId{2});
    CHECK(outlives.substituted());
    CHECK(f.coarse_right(1, 2, outlives.view()));
    CHECK(cache.get(LayerId{1}, ExpertId{2}).substituted());  // the one read is still under way
    auto c = cache.counters();
    CHECK(c.substituted == 2);
    CHECK(c.misses == 1);
    CHECK(c.hits == 0);

    gate.open();
    REQUIRE(eventually([&] { return cache.counters().bytes_read == 2 * f.record_bytes(); }));
    const ExpertCache::Lease found = cache.get(LayerId{1}, ExpertId{2});
    CHECK_FALSE(found.substituted());
    CHECK(f.right(1, 2, found.view()));
    c = cache.counters();
    CHECK(c.hits == 1);
    CHECK(c.substituted == 2);
    CHECK(c.bytes_read == 2 * f.record_bytes());
  }
  CHECK(f.coarse_right(1, 2, outlives.view()));
}

TEST_CASE("a record read ahead that is late is replaced too, and used when it is there") {
  Fixture f("substitute-ahead");
  f.with = GENERATE(from_range(ways()));
  Gate gate;
  const FaultyDisk disk([&](const DiskRead& r) {
    gate.pass();
    return r.pass();
  });
  ExpertCache cache(f.container, f.options(12, milliseconds(0)));
  cache.prepare(LayerId{2}, ids({0, 1}));
  for (const std::uint32_t e : {0u, 1u}) {
    const auto lease = cache.get(LayerId{2}, ExpertId{e});
    CHECK(lease.substituted());
    CHECK(f.coarse_right(2, e, lease.view()));
  }
  gate.open();
  REQUIRE(eventually([&] { return cache.counters().bytes_read == 2 * f.record_bytes(); }));
  for (const std::uint32_t e : {0u, 1u}) {
    CHECK(f.right(2, e, cache.get(LayerId{2}, ExpertId{e}).view()));
  }
  const auto c = cache.counters();
  CHECK(c.substituted == 2);
  CHECK(c.hits + c.misses == 2);  // a hit where the late call had handed its read over
  CHECK(c.bytes_read == 2 * f.record_bytes());
}

TEST_CASE("in time nothing is substituted, and without substitutes everyone waits") {
  Fixture f("substitute-in-time");
  f.with = GENERATE(from_range(ways()));
  const FaultyDisk disk([&](const DiskRead& r) {
    std::this_thread::sleep_for(milliseconds(3));
    return r.pass();
  });
  for (const bool with : {true, false}) {
    ExpertCache cache(f.container,
                      with ? f.options(6, milliseconds(60000)) : f.StreamFixture::options(6));
    for (std::uint32_t round = 0; round < 3; ++round) {
      for (std::uint32_t layer = 1; layer <= 3; ++layer) {
        for (const std::uint32_t e : {0u, 1u, 4u}) {
          const auto lease = cache.get(LayerId{layer}, ExpertId{e});
          CHECK_FALSE(lease.substituted());
          CHECK(f.right(layer, e, lease.view()));
        }
      }
    }
    const auto c = cache.counters();
    CHECK(c.substituted == 0);
    CHECK(c.hits + c.misses == 27);
    CHECK(c.misses >= 9);
  }
}

TEST_CASE("a read that failed is an error, whatever there is to replace it") {
  Fixture f("substitute-failed");
  f.with = GENERATE(from_range(ways()));
  std::atomic<bool> broken{true};
  const FaultyDisk disk([&](const DiskRead& r) -> ssize_t {
    if (!broken) return r.pass();
    errno = EIO;
    return -1;
  });
  ExpertCache cache(f.container, f.options(8, milliseconds(60000)));
  const Error e = failure_of([&] { cache.get(LayerId{3}, ExpertId{1}); });
  CHECK(e.code() == Errc::io);
  CHECK(e.fault().layer == 3);
  CHECK(e.fault().expert == 1);
  broken = false;
  CHECK(f.right(3, 1, cache.get(LayerId{3}, ExpertId{1}).view()));
  CHECK(cache.counters().substituted == 0);
}

TEST_CASE("a reader that died is given up once patience ends", "[dies]") {
  const Fixture f("substitute-death");
  std::atomic<int> deaths{0};
  const FaultyDisk disk([&](const DiskRead& r) {
    if (++deaths == 1) r.die();
    return r.pass();
  });
  CacheOptions options = f.options(8, milliseconds(1));
  options.ahead.patience = milliseconds(20);
  ExpertCache cache(f.container, options);
  CHECK(cache.get(LayerId{1}, ExpertId{0}).substituted());
  REQUIRE(eventually([&] { return !cache.get(LayerId{1}, ExpertId{0}).substituted(); }));
  CHECK(f.right(1, 0, cache.get(LayerId{1}, ExpertId{0}).view()));
  CHECK(cache.counters().overdue == 1);
}

TEST_CASE("where every reader has died callers read for themselves, and nothing is substituted",
          "[dies]") {
  Fixture f("substitute-deaths");
  f.with = GENERATE(from_range(ways()));
  const auto caller = std::this_thread::get_id();
  const FaultyDisk disk([&](const DiskRead& r) {
    if (std::this_thread::get_id() != caller) r.die();
    return r.pass();
  });
  CacheOptions options = f.options(15, milliseconds(1));
  options.ahead.patience = milliseconds(20);
  options.ahead.depth = 2;  // one in flight for each of the three readers, in rings too
  ExpertCache cache(f.container, options);
  for (std::uint32_t e = 0; e < 3; ++e) {
    CHECK(cache.get(LayerId{1}, ExpertId{e}).substituted());
  }
  // Nobody is left to begin this one, asked for once; it must not hold up the others for ever.
  CHECK(cache.get(LayerId{1}, ExpertId{3}).substituted());
  REQUIRE(eventually([&] { return !cache.get(LayerId{2}, ExpertId{0}).substituted(); }));
  const std::uint64_t before = cache.counters().substituted;
  for (const std::uint32_t layer : {2u, 3u}) {
    for (std::uint32_t e = 0; e < 5; ++e) {
      const auto lease = cache.get(LayerId{layer}, ExpertId{e});
      CHECK_FALSE(lease.substituted());
      CHECK(f.right(layer, e, lease.view()));
    }
  }
  CHECK(cache.counters().substituted == before);
}

TEST_CASE("a deadline longer than patience does not wait for readers that have died", "[dies]") {
  Fixture f("substitute-patience");
  f.with = GENERATE(from_range(ways()));
  const auto caller = std::this_thread::get_id();
  const FaultyDisk disk([&](const DiskRead& r) {
    if (std::this_thread::get_id() != caller) r.die();
    return r.pass();
  });
  CacheOptions options = f.options(15, milliseconds(3600000));
  options.ahead.patience = milliseconds(10);
  ExpertCache cache(f.container, options);
  for (std::uint32_t layer = 1; layer <= 3; ++layer) {
    for (std::uint32_t e = 0; e < 5; ++e) {
      CHECK(f.right(layer, e, cache.get(LayerId{layer}, ExpertId{e}).view()));
    }
  }
  CHECK(cache.counters().substituted == 0);
}

TEST_CASE("substitutes want a reader") {
  const Fixture f("substitute-readers");
  CacheOptions options = f.options(8, milliseconds(1));
  options.ahead.readers = 0;
  CHECK(code_of([&] { ExpertCache(f.container, options); }) == Errc::bad_argument);
}

TEST_CASE("many threads on an uneven disk hold the expert or its substitute, all counted") {
  Fixture f("substitute-threads", 8);
  f.with = GENERATE(from_range(ways()));
  const FaultyDisk disk([&](const DiskRead& r) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(static_cast<unsigned>(r.offset / 4096 * 7919) % 3000));
    return r.pass();
  });
  constexpr unsigned threads = 4, calls = 300;
  CacheOptions options = f.options(9, milliseconds(1));
  options.concurrent = threads;
  ExpertCache cache(f.container, options);
  std::atomic<std::uint64_t> wrong{0}, coarse{0};
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      std::mt19937 random(t);
      for (unsigned i = 0; i < calls; ++i) {
        const std::uint32_t layer = 1 + random() % 3, e = random() % 8;
        if (random() % 3 == 0) cache.prepare(LayerId{layer}, ids({e, (e + 1) % 8}));
        if (random() % 16 == 0) cache.withdraw();
        const auto lease = cache.get(LayerId{layer}, ExpertId{e});
        coarse += lease.substituted();
        wrong += !(lease.substituted() ? f.coarse_right(layer, e, lease.view())
                                       : f.right(layer, e, lease.view()));
      }
    });
  }
  for (std::thread& t : pool) t.join();
  const auto c = cache.counters();
  CHECK(wrong == 0);
  CHECK(c.substituted == coarse);
  CHECK(c.hits + c.misses + c.substituted == threads * calls);
  CHECK(c.failed == 0);
  CHECK(cache.held_bytes() <= 9 * f.record_bytes());
}

TEST_CASE("a model of substitutes alone is the model of one-stage experts, bit for bit") {
  Fixture f("substitute-model");
  f.with = GENERATE(from_range(ways()));
  TinyContainer plain = f.coarse;  // the substitutes as experts, and the other's trunk
  plain.tensors = f.tiny.tensors;
  plain.pack();
  const auto directory = scratch_dir("substitute-as-experts");
  plain.write(directory);

  const auto logits = [](const std::shared_ptr<model::Weights>& weights, unsigned threads) {
    model::ModelOptions options;
    options.exec.threads = threads;
    const TextModel model(weights, options);
    const std::size_t vocab = model.config().vocab_size;
    std::vector<float> out(8 * vocab);
    Session session = model.start(8);
    const std::vector<std::uint32_t> prompt = {3, 141, 59, 26, 7};
    model.forward(session, prompt, {out.data(), 5, vocab});
    for (std::uint32_t i = 5; i < 8; ++i) {
      const std::uint32_t token = 31 * i;
      model.forward(session, {&token, 1}, {out.data() + i * vocab, 1, vocab});
    }
    return out;
  };
  const Container container = Container::open(directory);
  CacheOptions all;
  all.budget_bytes = 15 * container.banks().front().record_bytes();
  const auto want = logits(std::make_shared<model::ContainerWeights>(container, all), 1);

  const auto exact = logits(
      std::make_shared<model::ContainerWeights>(f.container, f.StreamFixture::options(15)), 1);
  CHECK(exact != want);
  for (const unsigned threads : {1u, 3u}) {
    Gate gate;
    const FaultyDisk disk([&](const DiskRead& r) {
      gate.pass();
      return r.pass();
    });
    CacheOptions options = f.options(8, milliseconds(0));
    options.concurrent = threads;
    const auto weights = std::make_shared<model::ContainerWeights>(f.container, options);
    CHECK(logits(weights, threads) == want);
    const auto c = weights->cache().counters();
    CHECK(c.hits + c.misses == 0);
    CHECK(c.substituted > 0);
    gate.open();
  }
}
