// usage.waste at work: decayed counts, appends that a crash cannot spoil, compaction, warm starts.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <thread>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/core/half.hpp"
#include "waste/engine/expert_cache.hpp"
#include "waste/engine/usage.hpp"

namespace {

using namespace waste;
using engine::UsageFile;
using engine::UsageOptions;
namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

/// Three MoE layers (1, 2, 3) of five experts.
format::ModelConfig tiny_model() {
  return format::parse_manifest(test::make_tiny(test::TinySpec::vq3r()).manifest.dump(), "m").model;
}

Bytes read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}
void write_bytes(const fs::path& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

void use(UsageFile& log, std::uint32_t layer, std::uint32_t expert) {
  const ExpertId e{expert};
  log.use(LayerId{layer}, &e, 1);
}

/// A file as another engine would write it: `<IIQ` and then `<HHIII` entries.
Bytes foreign(std::uint64_t clock, const std::vector<format::UsageEntry>& entries) {
  Bytes out{'W', 'U', 'S', 'G', 1, 0, 0, 0};
  const auto put = [&](std::uint64_t v, int n) {
    for (int i = 0; i < n; ++i) out.push_back(static_cast<std::uint8_t>(v >> (8 * i)));
  };
  put(clock, 8);
  for (const auto& e : entries) {
    put(e.layer, 2);
    put(e.expert, 2);
    put(e.hits, 4);
    put(e.last_seen, 4);
    put(e.next_layer_top, 4);
  }
  return out;
}

TEST_CASE("counts outlive a run and decay by the half-life", "[usage]") {
  const fs::path file = test::scratch_dir("usage-decay") / "usage.waste";
  UsageOptions options;
  options.half_life = 10;
  options.append_every = 0;
  {
    UsageFile log(file, tiny_model(), options);
    REQUIRE(log.clock() == 0);
    REQUIRE(log.hottest(9).empty());
    for (int i = 0; i < 8; ++i) {
      log.begin_token();
      use(log, 1, 2);
      if (i == 7) use(log, 3, 4);
    }
    use(log, 0, 1);  // a dense layer
    use(log, 1, 5);  // no such expert
    double wanted = 0;
    for (int i = 0; i < 8; ++i) wanted += std::pow(2.0, -(7 - i) / 10.0);
    REQUIRE(log.count(LayerId{1}, ExpertId{2}) == Approx(wanted));
    REQUIRE(log.count(LayerId{1}, ExpertId{5}) == 0);
    REQUIRE_FALSE(fs::exists(file));
    REQUIRE_FALSE(log.append());
    REQUIRE(read_bytes(file).size() == 16 + 2 * 16);
  }
  UsageFile again(file, tiny_model(), options);
  REQUIRE(again.clock() == 8);
  REQUIRE(again.count(LayerId{1}, ExpertId{2}) == Approx(8.0));  // one append: all at its token
  for (int i = 0; i < 20; ++i) again.begin_token();
  REQUIRE(again.count(LayerId{1}, ExpertId{2}) == Approx(2.0));
  REQUIRE(again.hottest(1) == std::vector{std::pair{LayerId{1}, ExpertId{2}}});
  REQUIRE_FALSE(again.finish());
  // Compacted: one entry an expert, counts as of the clock, those below one half gone.
  REQUIRE(read_bytes(file) == foreign(28, {{1, 2, 2, 8, 0}}));
}

TEST_CASE("the C engine's file is read, and gets one it can read back", "[usage]") {
  const fs::path file = test::scratch_dir("usage-foreign") / "usage.waste";
  write_bytes(file, foreign(1000, {{2, 3, 40, 990, 7}, {1, 0, 50, 500, 0}, {9, 9, 9, 9, 9}}));
  UsageFile log(file, tiny_model());
  REQUIRE(log.clock() == 1000);
  REQUIRE(log.count(LayerId{2}, ExpertId{3}) == 40);  // counts as of the header's clock
  REQUIRE(log.hottest(9) ==
          std::vector{std::pair{LayerId{1}, ExpertId{0}}, std::pair{LayerId{2}, ExpertId{3}}});
  log.begin_token();
  use(log, 2, 3);
  REQUIRE_FALSE(log.finish());
  REQUIRE(read_bytes(file) == foreign(1001, {{1, 0, 50, 500, 0}, {2, 3, 41, 1001, 0}}));
}

TEST_CASE("a log cut at any byte loses the last append at most", "[usage]") {
  const fs::path dir = test::scratch_dir("usage-cut"), file = dir / "usage.waste";
  UsageOptions options;
  options.append_every = 0;
  std::vector<Bytes> states;
  {
    UsageFile log(file, tiny_model(), options);
    for (std::uint32_t i = 0; i < 4; ++i) {
      log.begin_token();
      use(log, 1, i);
      use(log, 2, 4 - i);
      REQUIRE_FALSE(log.append());
      states.push_back(read_bytes(file));
      if (i > 0) REQUIRE(std::equal(states[i - 1].begin(), states[i - 1].end(), states[i].begin()));
    }
  }
  for (std::size_t cut = 0; cut <= states.back().size(); ++cut) {
    write_bytes(file, Bytes(states.back().begin(),
                            states.back().begin() + static_cast<std::ptrdiff_t>(cut)));
    UsageFile log(file, tiny_model(), options);
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (cut < states[i].size()) continue;
      REQUIRE(log.count(LayerId{1}, ExpertId{i}) > 0.9);
      REQUIRE(log.count(LayerId{2}, ExpertId{4 - i}) > 0.9);
    }
    // What comes after the cut is whole again.
    log.begin_token();
    use(log, 3, 3);
    REQUIRE_FALSE(log.append());
    REQUIRE(read_bytes(file).size() % 16 == 0);
    UsageFile after(file, tiny_model(), options);
    REQUIRE(after.count(LayerId{3}, ExpertId{3}) == 1);
    for (std::uint32_t i = 0; i < 4; ++i) {
      if (cut >= states[i].size()) REQUIRE(after.count(LayerId{1}, ExpertId{i}) > 0.9);
    }
  }
}

TEST_CASE("a process killed while it learns leaves a log that is whole", "[usage]") {
  const fs::path file = test::scratch_dir("usage-kill") / "usage.waste";
  UsageOptions options;
  options.append_every = 1;
  for (int round = 0; round < 8; ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      UsageFile log(file, tiny_model(), options);
      for (std::uint32_t i = 0;; ++i) {
        log.begin_token();
        use(log, 1 + i % 3, i % 5);
        if (i % 7 == 0) (void)log.finish();
      }
    }
    ::usleep(static_cast<useconds_t>(3000 + 2500 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    UsageFile log(file, tiny_model(), options);  // throws where the file is damaged
    log.begin_token();
    use(log, 1, 1);
    REQUIRE_FALSE(log.append());
    REQUIRE(UsageFile(file, tiny_model(), options).count(LayerId{1}, ExpertId{1}) >= 1);
  }
}

TEST_CASE("a log stays small however long the run", "[usage]") {
  const fs::path file = test::scratch_dir("usage-long") / "usage.waste";
  UsageOptions options;
  options.append_every = 1;
  UsageFile log(file, tiny_model(), options);
  const std::uint64_t limit = format::usage_limit_bytes(tiny_model());
  std::uint64_t largest = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    log.begin_token();
    for (std::uint32_t l = 1; l <= 3; ++l) use(log, l, i * l % 5);
    if (i > 1) largest = std::max<std::uint64_t>(largest, fs::file_size(file));
  }
  REQUIRE_FALSE(log.fault());
  REQUIRE(largest <= limit / 2);
  REQUIRE(largest > limit / 3);
  REQUIRE_FALSE(log.append());
  double sum = 0;
  UsageFile again(file, tiny_model(), options);
  for (std::uint32_t e = 0; e < 5; ++e) sum += again.count(LayerId{2}, ExpertId{e});
  REQUIRE(sum == Approx(1000).epsilon(0.05));  // decay over 1000 of 16384 tokens, and rounding
}

TEST_CASE("two processes that learn lose nothing of each other", "[usage]") {
  const fs::path file = test::scratch_dir("usage-two") / "usage.waste";
  UsageFile a(file, tiny_model()), b(file, tiny_model());
  for (int i = 0; i < 3; ++i) {
    a.begin_token();
    b.begin_token();
    use(a, 1, 1);
    use(b, 2, 2);
    REQUIRE_FALSE(a.append());
    REQUIRE_FALSE((i == 1 ? b.finish() : b.append()));
  }
  UsageFile both(file, tiny_model());
  REQUIRE(both.count(LayerId{1}, ExpertId{1}) == Approx(3).epsilon(0.001));
  REQUIRE(both.count(LayerId{2}, ExpertId{2}) == Approx(3).epsilon(0.001));
}

TEST_CASE("what is no usage log is refused and left alone; a full disk is a fault", "[usage]") {
  const fs::path dir = test::scratch_dir("usage-wrong"), file = dir / "usage.waste";
  const Bytes other(40, 'x');
  write_bytes(file, other);
  REQUIRE_THROWS_AS(UsageFile(file, tiny_model()), Error);
  REQUIRE(read_bytes(file) == other);
  UsageFile nowhere(dir / "missing" / "usage.waste", tiny_model());
  nowhere.begin_token();
  use(nowhere, 1, 1);
  REQUIRE(nowhere.append().code != Errc::ok);
  REQUIRE(nowhere.count(LayerId{1}, ExpertId{1}) == 1);  // kept for the next try
  fs::create_directory(dir / "missing");
  REQUIRE_FALSE(nowhere.append());
  REQUIRE(UsageFile(dir / "missing" / "usage.waste", tiny_model()).count(LayerId{1}, ExpertId{1}) ==
          1);
}

TEST_CASE("a cache starts warm with the hottest experts", "[usage]") {
  const fs::path dir = test::scratch_dir("usage-warm");
  test::make_tiny(test::TinySpec::vq3r()).write(dir);
  write_bytes(dir / "usage.waste", foreign(10, {{1, 4, 9, 10, 0}, {2, 0, 8, 10, 0}}));
  const Container container = Container::open(dir);
  engine::CacheOptions options;
  options.budget_bytes = 8 * container.banks().front().record_bytes();
  ExpertCache cache(container, options);
  const UsageFile log(dir / "usage.waste", container.model());
  cache.warm(log.hottest(cache.slots()));
  for (int i = 0; i < 2000 && cache.counters().warmed < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(cache.counters().warmed == 2);
  cache.get(LayerId{1}, ExpertId{4});
  cache.get(LayerId{2}, ExpertId{0});
  REQUIRE(cache.counters().hits == 2);
  REQUIRE(cache.counters().misses == 0);
}

}  // namespace
