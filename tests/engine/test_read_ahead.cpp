// Reads ahead of their use: what is read, in which rank, and that nothing depends on it.
#include <atomic>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include "engine/faulty_disk.hpp"
#include "engine/stream_fixture.hpp"
#include "support/catch.hpp"

namespace fs = std::filesystem;
using waste::Errc;
using waste::Error;
using waste::ExpertCache;
using waste::ExpertId;
using waste::LayerId;
using waste::engine::CacheOptions;
using waste::engine::Policy;
using waste::engine::ReadWith;
using waste::test::DiskRead;
using waste::test::eventually;
using waste::test::FaultyDisk;
using waste::test::Gate;
using waste::test::ids;
using waste::test::StreamFixture;
using waste::test::ways;

namespace {

/// An empty folder in the memory file system; empty where there is none.
fs::path memory_dir(const std::string& name) {
  std::error_code ec;
  const fs::path dir = "/dev/shm/waste-tests-" + std::to_string(::getpid()) + "-" + name;
  fs::create_directories(dir, ec);
  return ec ? fs::path() : dir;
}

}  // namespace

TEST_CASE("a prepared layer is there when it is asked for, and counts as misses read in time") {
  StreamFixture f("ahead-prepare");
  f.with = GENERATE(from_range(ways()));
  ExpertCache cache(f.container, f.options(15));
  REQUIRE(cache.status().readers == 0);  // none before there is work
  cache.prepare(LayerId{2}, ids({4, 1, 3}));
  REQUIRE(eventually([&] { return cache.counters().bytes_read == 3 * f.record_bytes(); }));
  for (const std::uint32_t e : {4u, 1u, 3u}) {
    REQUIRE(f.right(2, e, cache.get(LayerId{2}, ExpertId{e}).view()));
  }
  auto c = cache.counters();
  REQUIRE(c.misses == 3);
  REQUIRE(c.ahead_in_time == 3);
  REQUIRE(c.hits == 0);
  REQUIRE(cache.status().readers == 2);
  cache.get(LayerId{2}, ExpertId{1});  // resident now, as any record that was read
  REQUIRE(cache.counters().hits == 1);
  cache.prepare(LayerId{2}, ids({1, 3}));  // nothing to read
  cache.get(LayerId{2}, ExpertId{3});
  c = cache.counters();
  REQUIRE(c.hits == 2);
  REQUIRE(c.bytes_read == 3 * f.record_bytes());
}

TEST_CASE("a caller waits for a read under way and makes one that has not begun") {
  StreamFixture f("ahead-late");
  f.with = GENERATE(from_range(ways()));
  CacheOptions options = f.options(15);
  options.ahead.readers = options.ahead.depth = 1;
  ExpertCache cache(f.container, options);
  Gate gate;
  std::atomic<int> held{0};
  const FaultyDisk disk([&](const DiskRead& r) {
    if (r.offset == 0) {  // expert 0
      ++held;
      gate.pass();
    }
    return r.pass();
  });
  cache.prepare(LayerId{1}, ids({0, 1, 2}));
  REQUIRE(eventually([&] { return held == 1; }));
  // The only reader is busy with expert 0: experts 1 and 2 do not wait for it.
  REQUIRE(f.right(1, 1, cache.get(LayerId{1}, ExpertId{1}).view()));
  REQUIRE(f.right(1, 2, cache.get(LayerId{1}, ExpertId{2}).view()));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  REQUIRE(f.right(1, 0, cache.get(LayerId{1}, ExpertId{0}).view()));
  opener.join();
  const auto c = cache.counters();
  REQUIRE(c.misses == 3);
  REQUIRE(c.ahead_late == 1);
  REQUIRE(c.ahead_in_time == 0);
  REQUIRE(c.bytes_read == 3 * f.record_bytes());
  REQUIRE(c.stall_ns > 0);
}

TEST_CASE("guesses are read at low rank, used where right and dropped where wrong") {
  StreamFixture f("ahead-guess");
  f.with = GENERATE(from_range(ways()));
  ExpertCache cache(f.container, f.options(15));
  cache.expect(LayerId{3}, ids({0, 1, 2}));
  REQUIRE(eventually([&] { return cache.counters().bytes_read == 3 * f.record_bytes(); }));
  cache.prepare(LayerId{3}, ids({1, 4}));
  REQUIRE(f.right(3, 1, cache.get(LayerId{3}, ExpertId{1}).view()));
  REQUIRE(f.right(3, 4, cache.get(LayerId{3}, ExpertId{4}).view()));
  auto c = cache.counters();
  REQUIRE(c.guesses == 3);
  REQUIRE(c.guesses_used == 1);
  REQUIRE(c.misses == 2);
  REQUIRE(f.right(3, 0, cache.get(LayerId{3}, ExpertId{0}).view()));  // was not kept
  c = cache.counters();
  REQUIRE(c.misses == 3);
  REQUIRE(c.hits == 0);
  REQUIRE(c.bytes_read == 5 * f.record_bytes());
}

TEST_CASE("a layer's own experts go before guesses, and reaching a layer withdraws its guesses") {
  const StreamFixture f("ahead-rank");  // a ring begins all that it has room for
  CacheOptions options = f.options(15);
  options.ahead.readers = 1;
  ExpertCache cache(f.container, options);
  Gate gate;
  std::atomic<int> begun{0}, reads{0};
  std::vector<off_t> order(16);
  const FaultyDisk disk([&](const DiskRead& r) {
    const int i = begun++;
    order[static_cast<std::size_t>(i)] = r.offset;
    ++reads;
    if (i == 0) gate.pass();
    return r.pass();
  });
  const off_t record = static_cast<off_t>(f.record_bytes());
  cache.prepare(LayerId{1}, ids({0}));
  REQUIRE(eventually([&] { return reads == 1; }));
  cache.expect(LayerId{2}, ids({1, 2}));
  cache.prepare(LayerId{1}, ids({0, 3}));
  cache.expect(LayerId{3}, ids({4}));
  cache.prepare(LayerId{2}, ids({}));  // neither 1 nor 2 is wanted
  REQUIRE(cache.counters().guesses_withdrawn == 2);
  gate.open();
  REQUIRE(eventually([&] { return reads == 3; }));
  REQUIRE(order[0] == 0);
  REQUIRE(order[1] == 3 * record);  // asked for after the guesses, read before
  REQUIRE(order[2] == 4 * record);
  REQUIRE(cache.counters().guesses == 1);
}

TEST_CASE("reading ahead never evicts a resident record, and stays within depth and budget") {
  StreamFixture f("ahead-budget", 12);
  f.with = GENERATE(from_range(ways()));
  CacheOptions options = f.options(12);  // 9 kept, 1 for a caller, 2 ahead
  options.policy = Policy::lru;
  ExpertCache cache(f.container, options);
  REQUIRE(cache.status().depth == 2);
  for (std::uint32_t e = 0; e < 9; ++e) cache.get(LayerId{1}, ExpertId{e});
  const auto before = cache.counters();
  cache.prepare(LayerId{2}, ids({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  REQUIRE(eventually(
      [&] { return cache.counters().bytes_read == before.bytes_read + 2 * f.record_bytes(); }));
  for (std::uint32_t e = 0; e < 9; ++e) cache.get(LayerId{1}, ExpertId{e});
  REQUIRE(cache.counters().misses == before.misses);
  for (std::uint32_t e = 0; e < 12; ++e) {
    REQUIRE(f.right(2, e, cache.get(LayerId{2}, ExpertId{e}).view()));
    REQUIRE(cache.held_bytes() <= 12 * f.record_bytes());
  }
  REQUIRE(cache.counters().misses == before.misses + 12);
  REQUIRE(cache.counters().bytes_read == before.bytes_read + 12 * f.record_bytes());
}

TEST_CASE("residents that a layer has listed are not evicted for one another") {
  const StreamFixture f("ahead-protect");
  CacheOptions options = f.options(4);  // 3 kept, 1 for a caller
  options.policy = Policy::lru;
  ExpertCache cache(f.container, options);
  for (std::uint32_t e = 0; e < 3; ++e) cache.get(LayerId{1}, ExpertId{e});
  // LRU alone would evict 0, then 1, in order to keep 3 and 4.
  cache.prepare(LayerId{1}, ids({3, 4, 0, 1}));
  for (const std::uint32_t e : {3u, 4u, 0u, 1u}) cache.get(LayerId{1}, ExpertId{e});
  REQUIRE(cache.counters().hits == 2);
}

TEST_CASE("what was prepared and never asked for is dropped in time, or when withdrawn") {
  StreamFixture f("ahead-unused", 12);
  f.with = GENERATE(from_range(ways()));
  CacheOptions options = f.options(12);
  ExpertCache cache(f.container, options);
  const std::uint64_t two = 2 * f.record_bytes();
  cache.prepare(LayerId{1}, ids({0, 1}));
  REQUIRE(eventually([&] { return cache.counters().bytes_read == two; }));
  cache.withdraw();
  REQUIRE(cache.counters().ahead_unused == 2);
  cache.prepare(LayerId{1}, ids({0, 1}));
  REQUIRE(eventually([&] { return cache.counters().bytes_read == 2 * two; }));
  for (int i = 0; i < 20; ++i) cache.prepare(LayerId{3}, {});
  REQUIRE(cache.counters().ahead_unused == 4);
  cache.prepare(LayerId{1}, ids({0, 1}));  // the places are free again
  REQUIRE(eventually([&] { return cache.counters().bytes_read == 3 * two; }));
}

TEST_CASE("warming fills places that are free and no others") {
  StreamFixture f("ahead-warm", 12);
  f.with = GENERATE(from_range(ways()));
  ExpertCache cache(f.container, f.options(12));  // 9 kept
  std::vector<std::pair<LayerId, ExpertId>> list;
  for (std::uint32_t e = 0; e < 12; ++e) list.emplace_back(LayerId{1}, ExpertId{e});
  list.emplace_back(LayerId{9}, ExpertId{0});  // not there: ignored
  cache.warm(list);
  REQUIRE(eventually([&] { return cache.counters().warmed == 9; }));
  for (std::uint32_t e = 0; e < 9; ++e) {
    REQUIRE(f.right(1, e, cache.get(LayerId{1}, ExpertId{e}).view()));
  }
  REQUIRE(cache.counters().hits == 9);
  REQUIRE(cache.counters().misses == 0);
}

TEST_CASE("several caches read ahead at once, and end with requests outstanding") {
  StreamFixture f("ahead-several");
  f.with = GENERATE(from_range(ways()));
  for (int round = 0; round < 10; ++round) {
    ExpertCache a(f.container, f.options(15));
    ExpertCache::Lease held;
    {
      ExpertCache b(f.container, f.options(15));
      a.prepare(LayerId{1}, ids({0, 1, 2, 3, 4}));
      b.prepare(LayerId{1}, ids({0, 1, 2, 3, 4}));
      held = b.get(LayerId{1}, ExpertId{4});
      b.expect(LayerId{2}, ids({0, 1, 2, 3, 4}));
    }
    REQUIRE(f.right(1, 4, held.view()));
    REQUIRE(f.right(1, 2, a.get(LayerId{1}, ExpertId{2}).view()));
  }
}

TEST_CASE("without readers nothing is read ahead") {
  const StreamFixture f("ahead-none");
  CacheOptions options = f.options(15);
  options.ahead.readers = 0;
  ExpertCache cache(f.container, options);
  cache.prepare(LayerId{1}, ids({0, 1}));
  cache.expect(LayerId{2}, ids({0, 1}));
  REQUIRE(cache.status().look_ahead == 0);
  REQUIRE(f.right(1, 0, cache.get(LayerId{1}, ExpertId{0}).view()));
  REQUIRE(cache.counters().bytes_read == f.record_bytes());
  REQUIRE(cache.counters().ahead_in_time == 0);
}

TEST_CASE("a drive that does not answer keeps no other drive waiting") {
  const struct Folder {
    fs::path path = memory_dir("ahead-drives");
    ~Folder() {
      std::error_code ec;
      if (!path.empty()) fs::remove_all(path, ec);
    }
  } folder;
  const fs::path& elsewhere = folder.path;
  if (elsewhere.empty()) {
    waste::test::skipped("no second file system to put banks on");
    return;
  }
  // Layer 2 on another drive than layers 1 and 3.
  StreamFixture f("ahead-drives", 12);
  const std::string name = "experts-L2.bin";
  fs::copy_file(f.directory / name, elsewhere / name, fs::copy_options::overwrite_existing);
  fs::remove(f.directory / name);
  fs::create_symlink(elsewhere / name, f.directory / name);
  const waste::Container striped = waste::Container::open(f.directory);
  const auto& banks = striped.banks();
  if (banks[0].device() == banks[1].device()) {
    waste::test::skipped("no second file system to put banks on");
    return;
  }
  const ReadWith with = GENERATE(from_range(ways()));
  for (const unsigned readers : {1u, 2u}) {
    CacheOptions options = f.options(36);
    options.ahead.readers = readers;
    options.ahead.depth = 3;
    options.ahead.with = with;
    ExpertCache cache(striped, options);
    Gate gate;
    std::atomic<int> held{0};
    const int at_once = with == ReadWith::uring ? 3 : static_cast<int>(readers);
    const int stuck = banks[0].file().native_handle();
    const FaultyDisk disk([&](const DiskRead& r) {
      if (r.fd == stuck) {
        ++held;
        gate.pass();
      }
      return r.pass();
    });
    // More than the depth of the first drive, so that a common one would be used up.
    cache.prepare(LayerId{1}, ids({0, 1, 2, 3, 4, 5}));
    cache.expect(LayerId{2}, ids({7, 8, 9}));
    REQUIRE(eventually([&] { return held == at_once; }));
    REQUIRE(eventually([&] { return cache.counters().bytes_read == 3 * f.record_bytes(); }));
    REQUIRE(cache.status().drives == 2);
    REQUIRE(cache.status().readers == 2 * readers);
    REQUIRE(cache.status().depth == 6);
    for (const std::uint32_t e : {7u, 8u, 9u}) {
      REQUIRE(f.right(2, e, cache.get(LayerId{2}, ExpertId{e}).view()));
    }
    REQUIRE(cache.counters().ahead_in_time == 3);
    gate.open();
    for (std::uint32_t e = 0; e < 6; ++e) {
      REQUIRE(f.right(1, e, cache.get(LayerId{1}, ExpertId{e}).view()));
    }
    REQUIRE(cache.counters().misses == 9);
  }
}

TEST_CASE("places set apart are those held and read ahead, at most a quarter") {
  using waste::engine::Places;
  using waste::engine::places_of;
  using waste::engine::ReadAheadOptions;
  ReadAheadOptions none, some;
  none.readers = 0;
  some.readers = 2;
  some.depth = 6;
  const auto is = [](const Places& p, std::size_t kept, std::size_t ahead) {
    return p.kept == kept && p.ahead == ahead;
  };
  CHECK(is(places_of(100, 100, 4, some), 100, 6));  // every expert has a place
  CHECK(is(places_of(100, 100, 4, some, 3), 100, 18));
  CHECK(is(places_of(100, 100, 4, none), 100, 0));
  CHECK(is(places_of(100, 101, 4, none), 96, 0));  // what callers hold
  CHECK(is(places_of(100, 101, 4, some), 90, 6));  // and what is read ahead
  CHECK(is(places_of(100, 101, 4, some, 3), 78, 18));
  CHECK(is(places_of(100, 101, 4, some, 4), 75, 21));  // a quarter
  CHECK(is(places_of(20, 101, 4, some), 15, 1));
  CHECK(is(places_of(12, 101, 4, some), 9, 0));
  CHECK(is(places_of(4, 101, 4, some), 3, 0));
  CHECK(is(places_of(3, 101, 4, some), 3, 0));
  CHECK(is(places_of(0, 101, 1, some), 0, 0));
  CHECK(is(places_of(0, 0, 1, some), 0, 6));
}
