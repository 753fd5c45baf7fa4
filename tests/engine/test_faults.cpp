// Disks that fail, files that change, readers that die: an error for who asks or the right answer,
// never a hang, and the cache goes on.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/faulty_disk.hpp"
#include "engine/stream_fixture.hpp"
#include "support/catch.hpp"

using waste::Errc;
using waste::Error;
using waste::ExpertCache;
using waste::ExpertId;
using waste::LayerId;
using waste::engine::CacheOptions;
using waste::test::DiskRead;
using waste::test::eventually;
using waste::test::FaultyDisk;
using waste::test::Gate;
using waste::test::ids;
using waste::test::StreamFixture;
using waste::test::ways;

namespace {

CacheOptions with_readers(const StreamFixture& f, std::uint64_t slots, unsigned readers) {
  CacheOptions out = f.options(slots);
  out.ahead.readers = readers;
  return out;
}

bool all_right(const StreamFixture& f, ExpertCache& cache, std::uint32_t experts = 5) {
  for (std::uint32_t layer = 1; layer <= 3; ++layer) {
    std::vector<ExpertId> list;
    for (std::uint32_t e = 0; e < experts; ++e) list.push_back(ExpertId{e});
    cache.expect(LayerId{layer % 3 + 1}, list);
    cache.prepare(LayerId{layer}, list);
    for (std::uint32_t e = 0; e < experts; ++e) {
      if (!f.right(layer, e, cache.get(LayerId{layer}, ExpertId{e}).view())) return false;
    }
  }
  return true;
}

/// The code of the error that get() throws, which must name layer, expert and bank; ok for none.
Errc code_of_get(ExpertCache& cache, std::uint32_t layer, std::uint32_t expert) {
  try {
    cache.get(LayerId{layer}, ExpertId{expert});
  } catch (const Error& e) {
    const std::string what = e.what();
    REQUIRE(e.fault().layer == layer);
    REQUIRE(e.fault().expert == expert);
    REQUIRE(what.find("experts-L" + std::to_string(layer) + ".bin") != std::string::npos);
    return e.code();
  }
  return Errc::ok;
}

}  // namespace

TEST_CASE("short and interrupted reads are continued") {
  StreamFixture f("fault-short");
  f.with = GENERATE(from_range(ways()));
  std::atomic<int> calls{0};
  const FaultyDisk disk([&](const DiskRead& r) -> ssize_t {
    const int i = calls++;
    if (i % 3 == 0) {
      errno = EINTR;
      return -1;
    }
    return r.pass(i % 3 == 1 ? std::max<std::size_t>(1, r.bytes / 3) : r.bytes);
  });
  for (const unsigned readers : {0u, 2u}) {
    ExpertCache cache(f.container, with_readers(f, 15, readers));
    cache.prepare(LayerId{1}, ids({0, 1, 2, 3, 4}));
    if (readers != 0) {
      REQUIRE(eventually([&] { return cache.counters().bytes_read == 5 * f.record_bytes(); }));
    }
    REQUIRE(all_right(f, cache));
    REQUIRE(cache.counters().failed == 0);
    REQUIRE(cache.counters().ahead_in_time >= (readers == 0 ? 0u : 5u));
  }
}

TEST_CASE("a read that fails once is an error once, and none where a reader made it") {
  StreamFixture f("fault-eio-once");
  f.with = GENERATE(from_range(ways()));
  std::atomic<int> failures{1};
  const FaultyDisk disk([&](const DiskRead& r) -> ssize_t {
    if (failures > 0 && failures-- > 0) {
      errno = EIO;
      return -1;
    }
    return r.pass();
  });
  ExpertCache plain(f.container, with_readers(f, 15, 0));
  REQUIRE(code_of_get(plain, 2, 3) == Errc::io);
  REQUIRE(f.right(2, 3, plain.get(LayerId{2}, ExpertId{3}).view()));
  REQUIRE(plain.counters().failed == 1);

  failures = 1;
  ExpertCache ahead(f.container, with_readers(f, 15, 1));
  ahead.prepare(LayerId{2}, ids({3}));
  REQUIRE(eventually([&] { return ahead.counters().failed == 1; }));
  REQUIRE(f.right(2, 3, ahead.get(LayerId{2}, ExpertId{3}).view()));
}

TEST_CASE("a disk that keeps failing fails each caller, and serves again when it recovers") {
  StreamFixture f("fault-eio");
  f.with = GENERATE(from_range(ways()));
  std::atomic<bool> broken{true};
  const FaultyDisk disk([&](const DiskRead& r) -> ssize_t {
    if (broken && r.offset == 0) {  // expert 0 of every layer
      errno = EIO;
      return -1;
    }
    return r.pass();
  });
  for (const unsigned readers : {0u, 2u}) {
    broken = true;
    ExpertCache cache(f.container, with_readers(f, 15, readers));
    for (int round = 0; round < 3; ++round) {
      const auto failed = cache.counters().failed;
      cache.prepare(LayerId{1}, ids({0, 1, 2}));
      if (readers != 0) REQUIRE(eventually([&] { return cache.counters().failed > failed; }));
      REQUIRE(code_of_get(cache, 1, 0) == Errc::io);
      REQUIRE(f.right(1, 1, cache.get(LayerId{1}, ExpertId{1}).view()));
    }
    broken = false;
    REQUIRE(all_right(f, cache));
  }
}

TEST_CASE("an end of file inside a record is an error, not zeros") {
  StreamFixture f("fault-eof");
  f.with = GENERATE(from_range(ways()));
  std::atomic<bool> broken{true};
  const FaultyDisk disk(
      [&](const DiskRead& r) -> ssize_t { return broken ? ssize_t{0} : r.pass(); });
  ExpertCache cache(f.container, f.options(15));
  cache.prepare(LayerId{1}, ids({2}));
  REQUIRE(eventually([&] { return cache.counters().failed == 1; }));
  REQUIRE(code_of_get(cache, 1, 2) == Errc::truncated);
  broken = false;
  REQUIRE(all_right(f, cache));
}

TEST_CASE("a bank that is cut or written to while open is refused, one replaced is not seen") {
  StreamFixture f("fault-changed");
  f.with = GENERATE(from_range(ways()));
  ExpertCache cache(f.container, f.options(15));
  const auto bank = f.directory / "experts-L1.bin";
  // Replaced by a rename: the open file is still the old one.
  std::filesystem::copy_file(bank, f.directory / "new");
  std::filesystem::resize_file(f.directory / "new", f.record_bytes());
  std::filesystem::rename(f.directory / "new", bank);
  REQUIRE(f.right(1, 4, cache.get(LayerId{1}, ExpertId{4}).view()));

  const auto other = f.directory / "experts-L2.bin";
  const auto held = cache.get(LayerId{2}, ExpertId{0});
  std::filesystem::resize_file(other, 2 * f.record_bytes());
  cache.prepare(LayerId{2}, ids({0, 1, 3}));
  REQUIRE(eventually([&] { return cache.counters().failed == 2; }));
  REQUIRE(code_of_get(cache, 2, 1) == Errc::changed);  // whole, but of another file
  REQUIRE(code_of_get(cache, 2, 3) == Errc::changed);
  REQUIRE(f.right(2, 0, held.view()));
  REQUIRE(f.right(2, 0, cache.get(LayerId{2}, ExpertId{0}).view()));  // checked when it was read
  REQUIRE(f.right(3, 0, cache.get(LayerId{3}, ExpertId{0}).view()));
}

TEST_CASE("damaged bytes are never the answer, read ahead or not") {
  StreamFixture f("fault-damage");
  f.with = GENERATE(from_range(ways()));
  const auto damage = [&](const DiskRead& r) {
    const ssize_t n = r.pass();
    if (r.offset == 0 && n > 200) static_cast<char*>(r.to)[200] ^= 4;  // an index byte of expert 0
    return n;
  };
  // The fixture's own reads passed the crc once; a fresh container has passed nothing.
  const waste::Container fresh = waste::Container::open(f.directory);
  const FaultyDisk disk(damage);
  for (const unsigned readers : {0u, 2u}) {
    ExpertCache cache(fresh, with_readers(f, 15, readers));
    cache.prepare(LayerId{3}, ids({0, 1}));
    if (readers != 0) REQUIRE(eventually([&] { return cache.counters().failed == 1; }));
    REQUIRE(code_of_get(cache, 3, 0) == Errc::checksum);
    REQUIRE(code_of_get(cache, 3, 0) == Errc::checksum);
    REQUIRE(f.right(3, 1, cache.get(LayerId{3}, ExpertId{1}).view()));
  }
}

TEST_CASE("a slow disk makes callers wait, or read for themselves when patience ends") {
  StreamFixture f("fault-slow");
  f.with = GENERATE(from_range(ways()));
  const FaultyDisk disk([&](const DiskRead& r) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return r.pass();
  });
  for (const int patience : {1, 1000}) {
    CacheOptions options = f.options(8);
    options.ahead.patience = std::chrono::milliseconds(patience);
    ExpertCache cache(f.container, options);
    for (int round = 0; round < 3; ++round) REQUIRE(all_right(f, cache));
    REQUIRE(cache.held_bytes() <= 8 * f.record_bytes());
  }
}

TEST_CASE("a reader that dies in the middle of a read costs its slots and nothing else", "[dies]") {
  StreamFixture f("fault-death");
  f.with = GENERATE(from_range(ways()));
  const auto caller = std::this_thread::get_id();
  std::atomic<std::uint64_t> deaths{0};
  const FaultyDisk disk([&](const DiskRead& r) {
    if (std::this_thread::get_id() != caller) {
      ++deaths;
      r.die();
    }
    return r.pass();
  });
  CacheOptions options = f.options(15);
  options.ahead.patience = std::chrono::milliseconds(20);
  ExpertCache cache(f.container, options);
  cache.prepare(LayerId{1}, ids({0, 1, 2}));
  REQUIRE(eventually([&] { return deaths >= 2; }));
  REQUIRE(all_right(f, cache));
  REQUIRE(all_right(f, cache));
  // A reader takes one read with it, one with a ring as many as it had in flight.
  if (f.with == waste::engine::ReadWith::pread) REQUIRE(deaths == 2);
  REQUIRE(cache.counters().overdue == deaths);
}

TEST_CASE("a kernel without rings is announced, and readers read as ever") {
  StreamFixture f("fault-rings");
  f.with = waste::engine::ReadWith::uring;
  waste::test::refuse_rings = true;
  ExpertCache cache(f.container, f.options(8));
  waste::test::refuse_rings = false;
  const auto status = cache.status();
  REQUIRE(status.with == waste::engine::ReadWith::pread);
  REQUIRE(status.uring_refused.find("io_uring") == 0);
  cache.prepare(LayerId{1}, ids({0}));
  REQUIRE(eventually([&] { return cache.counters().bytes_read == f.record_bytes(); }));
  REQUIRE(all_right(f, cache));
  REQUIRE(cache.status().readers == 2);
}

TEST_CASE("a system without threads leaves callers reading for themselves") {
  StreamFixture f("fault-threads");
  f.with = GENERATE(from_range(ways()));
  waste::test::refuse_threads = true;
  ExpertCache cache(f.container, f.options(8));
  cache.prepare(LayerId{1}, ids({0}));
  waste::test::refuse_threads = false;
  REQUIRE(all_right(f, cache));
  REQUIRE(cache.status().readers == 0);
  REQUIRE(cache.status().readers_refused == 2);
  REQUIRE(cache.status().look_ahead == 0);
}

TEST_CASE("a layer given up midway leaves nothing behind") {
  StreamFixture f("fault-cancel");
  f.with = GENERATE(from_range(ways()));
  Gate gate;
  std::atomic<bool> gated{true};
  const FaultyDisk disk([&](const DiskRead& r) {
    if (gated && r.offset != 0) gate.pass();
    return r.pass();
  });
  ExpertCache cache(f.container, f.options(8));
  cache.prepare(LayerId{1}, ids({0, 1, 2, 3, 4}));
  cache.expect(LayerId{2}, ids({1, 2}));
  REQUIRE(f.right(1, 0, cache.get(LayerId{1}, ExpertId{0}).view()));
  cache.withdraw();  // one reader or two are inside a read
  gated = false;
  gate.open();
  REQUIRE(all_right(f, cache));
  REQUIRE(all_right(f, cache));
  REQUIRE(cache.counters().failed == 0);
}

// A forked child starts no threads in qemu.
TEST_CASE("two processes stream from one container", "[native]") {
  StreamFixture f("fault-processes");
  f.with = GENERATE(from_range(ways()));
  const pid_t child = ::fork();
  bool right = true;
  {
    ExpertCache cache(f.container, f.options(8));
    for (int round = 0; round < 20; ++round) right = right && all_right(f, cache);
  }
  if (child == 0) ::_exit(right ? 0 : 1);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  REQUIRE(right);
}
