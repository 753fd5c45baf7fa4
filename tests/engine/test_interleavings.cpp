// Random interleavings: short random schedules of calls from several threads, each on a cache of
// its own with random settings, over one drive or two, with reads that fail or dawdle. Always the
// right bytes or an error that names them, never more memory, never a hang, and the cache goes on.
// WASTE_INTERLEAVINGS sets how many; tests/sanitize.sh runs 10,000 under ThreadSanitizer.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/faulty_disk.hpp"
#include "engine/stream_fixture.hpp"
#include "support/catch.hpp"
#include "support/tiny_substitutes.hpp"
#include "waste/io/substitutes.hpp"
#include "waste/quant/random.hpp"

namespace {

namespace fs = std::filesystem;
using namespace waste;
using engine::CacheOptions;
using engine::Policy;
using engine::ReadWith;
using quant::Random;
using test::DiskRead;
using test::FaultyDisk;
using test::StreamFixture;

constexpr std::uint32_t experts = 12, layers = 3;
constexpr unsigned callers = 3;
constexpr int calls_each = 8;

std::uint64_t how_many() {
  const char* text = std::getenv("WASTE_INTERLEAVINGS");
  return text == nullptr ? 1000 : std::strtoull(text, nullptr, 10);
}

/// A container with substitutes, its second bank on another drive where there is one.
struct Fixture : StreamFixture {
  std::shared_ptr<const io::Substitutes> substitutes;
  fs::path elsewhere;

  Fixture(const std::string& name, bool two_drives) : StreamFixture(name, experts) {
    test::write_substitutes(test::one_stage(tiny.spec), directory);
    if (two_drives) {
      std::error_code ec;
      elsewhere = "/dev/shm/waste-tests-" + std::to_string(::getpid()) + "-" + name;
      fs::create_directories(elsewhere, ec);
      const fs::path bank = "experts-L2.bin";
      if (!ec) fs::copy_file(directory / bank, elsewhere / bank, ec);
      if (!ec) {
        fs::remove(directory / bank);
        fs::create_symlink(elsewhere / bank, directory / bank);
      }
    }
    OpenOptions options;
    options.verify_records = io::Verify::always;
    container = Container::open(directory, options);
    substitutes = std::make_shared<const io::Substitutes>(io::Substitutes::open(container, 1));
  }
  ~Fixture() {
    std::error_code ec;
    if (!elsewhere.empty()) fs::remove_all(elsewhere, ec);
  }

  bool right_answer(std::uint32_t layer, std::uint32_t e, const ExpertCache::Lease& lease) const {
    if (!lease.substituted()) return right(layer, e, lease.view());
    return lease.view().down.indices == substitutes->view(LayerId{layer}, ExpertId{e}).down.indices;
  }
};

struct Tally {
  std::atomic<std::uint64_t> wrong{0}, refused{0}, failed{0}, misnamed{0}, gets{0}, over{0};
};

void ask(const Fixture& f, ExpertCache& cache, std::uint32_t layer, std::uint32_t e, Random& random,
         Tally& tally) {
  try {
    const auto lease = cache.get(LayerId{layer}, ExpertId{e});
    ++tally.gets;
    if (random.below(4) == 0) std::this_thread::yield();
    if (!f.right_answer(layer, e, lease)) ++tally.wrong;
  } catch (const Error& error) {
    ++(error.code() == Errc::over_budget ? tally.refused : tally.failed);
    if (error.fault().layer != layer || error.fault().expert != e) ++tally.misnamed;
  }
}

void run(const Fixture& f, ExpertCache& cache, std::uint64_t seed, std::uint64_t slots,
         Tally& tally) {
  Random random(seed);
  const auto some = [&] {
    std::vector<ExpertId> list;
    for (std::uint64_t i = random.below(8); i > 0; --i) {
      list.push_back(ExpertId{static_cast<std::uint32_t>(random.below(experts + 1))});
    }
    return list;
  };
  for (int i = 0; i < calls_each; ++i) {
    const auto layer = static_cast<std::uint32_t>(1 + random.below(layers));
    switch (random.below(16)) {
      case 0:
        cache.begin_token();
        break;
      case 1:
      case 2:
        cache.prepare(LayerId{layer}, some());
        break;
      case 3:
      case 4:
        cache.expect(LayerId{layer}, some());
        break;
      case 5:
        cache.warm(std::vector<std::pair<LayerId, ExpertId>>{{LayerId{layer}, ExpertId{3}}});
        break;
      case 6:
        if (random.below(4) == 0) cache.withdraw();
        break;
      case 7:
        if (cache.held_bytes() > slots * f.record_bytes()) ++tally.over;
        cache.status();
        break;
      case 8:
      case 9: {  // a layer as a model walks it, which may be given up midway
        const auto list = some();
        cache.prepare(LayerId{layer}, list);
        const std::uint64_t until = random.below(2 * list.size() + 1);
        for (std::size_t k = 0; k < list.size() && k < until; ++k) {
          if (to_index(list[k]) < experts) ask(f, cache, layer, to_index(list[k]), random, tally);
        }
        if (until < list.size()) cache.withdraw();
        break;
      }
      default:
        ask(f, cache, layer, static_cast<std::uint32_t>(random.below(experts)), random, tally);
    }
  }
}

}  // namespace

TEST_CASE("in random interleavings everyone gets what they asked for, or an error that names it") {
  const Fixture one("interleavings", false), two("interleavings-drives", true);
  const std::vector<ReadWith> ways = test::ways();
  const std::uint64_t count = how_many();
  std::uint64_t substituted = 0, failed = 0, drives = 0, rings = 0, withdrawn = 0;
  for (std::uint64_t n = 0; n < count; ++n) {
    Random random(quant::mix_seed(1, {n}));
    const Fixture& f = random.below(2) == 0 ? one : two;
    const std::uint64_t slots = 18 + random.below(19);
    CacheOptions options = f.options(slots);
    options.concurrent = callers;
    options.policy = random.below(2) == 0 ? Policy::lru : Policy::decayed_frequency;
    options.ahead.readers = static_cast<unsigned>(random.below(4));
    options.ahead.depth = 1 + random.below(8);
    options.ahead.with = ways[random.below(ways.size())];
    const bool hasty = random.below(4) == 0;
    options.ahead.patience = std::chrono::milliseconds(hasty ? 1 : 10000);
    if (options.ahead.readers != 0 && random.below(2) == 0) {
      options.substitutes = f.substitutes;
      options.substitute_after = std::chrono::milliseconds(random.below(4) == 0 ? 1 : 0);
    }
    const bool faulty = random.below(3) == 0;
    std::atomic<std::uint32_t> reads{static_cast<std::uint32_t>(random.below(7))};
    std::unique_ptr<FaultyDisk> disk;
    if (faulty) {
      disk = std::make_unique<FaultyDisk>([&reads](const DiskRead& r) -> ssize_t {
        const std::uint32_t i = reads++;
        if (i % 11 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (i % 7 == 0) {
          errno = EIO;
          return -1;
        }
        return r.pass(i % 3 == 0 ? r.bytes / 8192 * 4096 + 4096 : r.bytes);
      });
    }
    Tally tally;
    {
      ExpertCache cache(f.container, options);
      std::vector<std::thread> threads;
      for (unsigned t = 0; t < callers; ++t) {
        const std::uint64_t seed = random.next();
        threads.emplace_back([&, seed] { run(f, cache, seed, slots, tally); });
      }
      for (auto& t : threads) t.join();
      INFO("interleaving " << n);
      REQUIRE(tally.wrong == 0);
      REQUIRE(tally.over == 0);
      REQUIRE(tally.misnamed == 0);
      // With patience of a millisecond slots may be tied up in overdue reads.
      if (!hasty) REQUIRE(tally.refused == 0);
      if (!faulty) REQUIRE(tally.failed == 0);
      const auto c = cache.counters();
      REQUIRE(c.hits + c.misses + c.substituted == tally.gets);
      REQUIRE(c.ahead_in_time + c.ahead_late <= c.misses);
      REQUIRE(c.guesses_used <= c.guesses);
      REQUIRE(c.failed >= tally.failed);
      substituted += c.substituted;
      failed += c.failed;
      withdrawn += c.guesses_withdrawn;
      drives += cache.status().drives == 2;
      rings += cache.status().with == ReadWith::uring;
    }
  }
  // What there was to meet was met.
  if (count >= 1000) {
    CHECK(substituted > 0);
    CHECK(failed > 0);
    CHECK(withdrawn > 0);
    CHECK((drives > 0 || one.container.banks()[0].device() == two.container.banks()[1].device()));
    CHECK((rings > 0 || ways.size() == 1));
  }
}
