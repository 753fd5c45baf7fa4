// The expert cache: bounded, right, and honest about failures.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/engine/expert_cache.hpp"

using waste::Container;
using waste::Errc;
using waste::Error;
using waste::ExpertCache;
using waste::ExpertId;
using waste::LayerId;
using waste::engine::CacheOptions;
using waste::engine::Policy;
using waste::test::code_of;
using waste::test::TinyContainer;
using waste::test::TinySpec;

namespace {

/// Three MoE layers of five experts.
std::filesystem::path write_container(const std::string& name, TinyContainer* keep = nullptr) {
  TinyContainer tiny = waste::test::make_tiny(TinySpec::vq3r());
  const std::filesystem::path dir = waste::test::scratch_dir(name);
  tiny.write(dir);
  if (keep != nullptr) *keep = std::move(tiny);
  return dir;
}

ExpertCache make_cache(const Container& container, std::uint64_t slots, Policy policy = Policy::lru,
                       std::size_t concurrent = 1) {
  CacheOptions options;
  options.budget_bytes = slots * container.banks().front().record_bytes() + 100;
  options.policy = policy;
  options.concurrent = concurrent;
  return ExpertCache(container, options);
}

/// Whether a lease's matrices are those that the bank itself reads.
bool same_matrix(const waste::VqMatrix& a, const waste::VqMatrix& b) {
  return a.n_rows == b.n_rows && a.n_cols == b.n_cols && a.codebooks == b.codebooks &&
         std::memcmp(a.indices, b.indices, a.layout().bytes()) == 0 &&
         std::memcmp(a.scales, b.scales, 2 * a.n_rows) == 0;
}
bool same_expert(const waste::ExpertView& a, const waste::ExpertView& b) {
  return same_matrix(a.gate, b.gate) && same_matrix(a.up, b.up) && same_matrix(a.down, b.down);
}

}  // namespace

TEST_CASE("a cache answers with the bank's own bytes, and reads an expert once") {
  const Container container = Container::open(write_container("cache-basic"));
  ExpertCache cache = make_cache(container, 100);
  REQUIRE(cache.slots() == 15);  // never more than there are experts
  for (int round = 0; round < 2; ++round) {
    for (const auto& bank : container.banks()) {
      for (std::uint32_t e = 0; e < bank.experts(); ++e) {
        const auto lease = cache.get(bank.layer(), ExpertId{e});
        REQUIRE(same_expert(lease.view(), bank.read(ExpertId{e}).view()));
      }
    }
  }
  const auto counters = cache.counters();
  REQUIRE(counters.misses == 15);
  REQUIRE(counters.hits == 15);
  REQUIRE(counters.not_kept == 0);
  REQUIRE(counters.bytes_read == 15 * cache.record_bytes());
  REQUIRE(cache.held_bytes() == 15 * cache.record_bytes());
  REQUIRE(code_of([&] { cache.get(LayerId{0}, ExpertId{0}); }) == Errc::out_of_range);  // dense
  REQUIRE(code_of([&] { cache.get(LayerId{1}, ExpertId{5}); }) == Errc::out_of_range);
}

TEST_CASE("the budget is never passed, and one too small is refused") {
  const Container container = Container::open(write_container("cache-budget"));
  REQUIRE(code_of([&] { make_cache(container, 0); }) == Errc::over_budget);
  REQUIRE(code_of([&] { make_cache(container, 2, Policy::lru, 3); }) == Errc::over_budget);
  ExpertCache cache = make_cache(container, 3);
  for (std::uint32_t i = 0; i < 60; ++i) {
    cache.get(LayerId{1 + i * 7 % 3}, ExpertId{i * 11 % 5});
    REQUIRE(cache.held_bytes() <= 3 * cache.record_bytes());
  }
}

TEST_CASE("a held expert is not evicted, and a full cache says so") {
  const Container container = Container::open(write_container("cache-pins"));
  ExpertCache cache = make_cache(container, 2);
  auto a = cache.get(LayerId{1}, ExpertId{0});
  auto b = cache.get(LayerId{1}, ExpertId{1});
  try {
    cache.get(LayerId{2}, ExpertId{3});
    FAIL("three experts in two slots");
  } catch (const Error& e) {
    REQUIRE(e.code() == Errc::over_budget);
    REQUIRE(e.fault().layer == 2);
    REQUIRE(e.fault().expert == 3);
  }
  REQUIRE(same_expert(a.view(), container.bank(LayerId{1}).read(ExpertId{0}).view()));
  b.release();
  auto c = cache.get(LayerId{2}, ExpertId{3});
  REQUIRE(same_expert(a.view(), container.bank(LayerId{1}).read(ExpertId{0}).view()));
  REQUIRE(same_expert(c.view(), container.bank(LayerId{2}).read(ExpertId{3}).view()));
  c = std::move(a);
  REQUIRE(same_expert(c.view(), container.bank(LayerId{1}).read(ExpertId{0}).view()));
}

TEST_CASE("a lease outlives its cache") {
  ExpertCache::Lease lease;
  const Container container = Container::open(write_container("cache-lifetime"));
  {
    ExpertCache cache = make_cache(container, 1);
    lease = cache.get(LayerId{3}, ExpertId{4});
  }
  REQUIRE(same_expert(lease.view(), container.bank(LayerId{3}).read(ExpertId{4}).view()));
}

TEST_CASE("a damaged record is an error for who asks, each time, and nobody else's") {
  TinyContainer tiny;
  const std::filesystem::path dir = write_container("cache-damage", &tiny);
  auto& bank = tiny.bank(2);
  bank[3 * tiny.record_bytes()] ^= 1;       // the magic of expert 3
  bank[1 * tiny.record_bytes() + 60] ^= 1;  // an index byte of expert 1
  tiny.write(dir);
  for (const bool verify : {false, true}) {
    waste::OpenOptions open;
    open.verify_records = verify ? waste::io::Verify::always : waste::io::Verify::off;
    const Container container = Container::open(dir, open);
    ExpertCache cache = make_cache(container, 1);
    for (int i = 0; i < 3; ++i) {
      try {
        cache.get(LayerId{2}, ExpertId{3});
        FAIL("a record without its magic was accepted");
      } catch (const Error& e) {
        REQUIRE(e.code() == Errc::bad_magic);
        REQUIRE(std::string(e.what()).find("expert 3 of layer 2") != std::string::npos);
        REQUIRE(std::string(e.what()).find("experts-L2.bin") != std::string::npos);
      }
    }
    REQUIRE(cache.counters().failed == 3);
    REQUIRE(code_of([&] { cache.get(LayerId{2}, ExpertId{1}); }) ==
            (verify ? Errc::checksum : Errc::ok));
    const auto good = cache.get(LayerId{2}, ExpertId{0});  // the one slot is free again
    REQUIRE(same_expert(good.view(), container.bank(LayerId{2}).read(ExpertId{0}).view()));
  }
}

TEST_CASE("LRU gives up the expert unused for longest") {
  const Container container = Container::open(write_container("cache-lru"));
  ExpertCache cache = make_cache(container, 3);
  const auto touch = [&](std::uint32_t e) {
    const auto before = cache.counters().misses;
    cache.get(LayerId{1}, ExpertId{e});
    return cache.counters().misses == before;  // hit
  };
  REQUIRE_FALSE(touch(0));
  REQUIRE_FALSE(touch(1));
  REQUIRE_FALSE(touch(2));
  REQUIRE(touch(0));
  REQUIRE_FALSE(touch(3));  // in place of 1
  REQUIRE(touch(0));
  REQUIRE(touch(2));
  REQUIRE_FALSE(touch(1));  // in place of 3
  REQUIRE_FALSE(touch(3));
}

TEST_CASE("decayed frequency keeps what is used often through a scan, and forgets in time") {
  const Container container = Container::open(write_container("cache-decay"));
  ExpertCache cache = make_cache(container, 4, Policy::decayed_frequency);
  const auto hit = [&](std::uint32_t layer, std::uint32_t e) {
    const auto before = cache.counters().hits;
    cache.get(LayerId{layer}, ExpertId{e});
    return cache.counters().hits != before;
  };
  for (int token = 0; token < 4; ++token) {
    cache.begin_token();
    for (std::uint32_t e = 0; e < 3; ++e) hit(1, e);
  }
  for (std::uint32_t e = 0; e < 5; ++e) REQUIRE_FALSE(hit(2, e));  // once each: not worth a place
  REQUIRE(cache.counters().not_kept == 5);
  for (std::uint32_t e = 0; e < 3; ++e) REQUIRE(hit(1, e));
  // Twenty half-lives later those counts are nothing, and new experts take the places.
  for (int token = 0; token < 160; ++token) cache.begin_token();
  for (std::uint32_t e = 0; e < 3; ++e) hit(3, e);
  for (std::uint32_t e = 0; e < 3; ++e) REQUIRE(hit(3, e));
}

TEST_CASE("threads that want one expert at once share one read") {
  const Container container = Container::open(write_container("cache-shared"));
  for (int round = 0; round < 20; ++round) {
    ExpertCache cache = make_cache(container, 4);
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < 4) std::this_thread::yield();
        cache.get(LayerId{1}, ExpertId{2});
      });
    }
    for (auto& t : threads) t.join();
    REQUIRE(cache.counters().misses == 1);
    REQUIRE(cache.counters().hits == 3);
  }
}

TEST_CASE("many threads on few slots always hold what they asked for") {
  const Container container = Container::open(write_container("cache-threads"));
  std::vector<std::vector<waste::Expert>> truth;
  for (const auto& bank : container.banks()) {
    truth.emplace_back();
    for (std::uint32_t e = 0; e < bank.experts(); ++e)
      truth.back().push_back(bank.read(ExpertId{e}));
  }
  for (const Policy policy : {Policy::lru, Policy::decayed_frequency}) {
    ExpertCache cache = make_cache(container, 5, policy, 4);
    std::atomic<int> wrong{0}, refused{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::uint64_t state = t + 1;
        for (int i = 0; i < 500; ++i) {
          state = state * 6364136223846793005ull + 1442695040888963407ull;
          const std::uint32_t layer = state >> 40 & 1, e = (state >> 33 & 0xffff) % 5;
          if (e == 0) cache.begin_token();
          try {
            const auto lease = cache.get(LayerId{1 + layer}, ExpertId{e});
            std::this_thread::yield();
            if (!same_expert(lease.view(), truth[layer][e].view())) ++wrong;
          } catch (const Error&) {
            ++refused;
          }
        }
      });
    }
    for (auto& t : threads) t.join();
    REQUIRE(wrong == 0);
    REQUIRE(refused == 0);
    const auto c = cache.counters();
    REQUIRE(c.hits + c.misses == 2000);
    REQUIRE(cache.held_bytes() <= 5 * cache.record_bytes());
  }
}

TEST_CASE("caches know nothing of each other") {
  const Container container = Container::open(write_container("cache-two"));
  ExpertCache a = make_cache(container, 2), b = make_cache(container, 2);
  const auto held = a.get(LayerId{1}, ExpertId{0});
  b.get(LayerId{1}, ExpertId{0});
  REQUIRE(a.counters().misses == 1);
  REQUIRE(b.counters().misses == 1);
  for (std::uint32_t e = 0; e < 5; ++e) b.get(LayerId{2}, ExpertId{e});
  REQUIRE(same_expert(held.view(), container.bank(LayerId{1}).read(ExpertId{0}).view()));
}

TEST_CASE("a policy that is only named knows the container's layers") {
  const Container container = Container::open(write_container("cache-layers"));
  CacheOptions named;
  named.budget_bytes = 6 * container.banks().front().record_bytes();
  named.policy = waste::engine::Policy::fitted_score;
  named.ahead.readers = 0;
  CacheOptions told = named;
  told.make_policy = waste::engine::policy_of_layers(waste::engine::Policy::fitted_score,
                                                     container.model().num_experts);
  CacheOptions untold = named;
  untold.make_policy = [](std::size_t keys) {
    return waste::engine::make_policy(waste::engine::Policy::fitted_score, keys);
  };
  const auto hits = [&](const CacheOptions& options) {
    ExpertCache cache(container, options);
    std::vector<std::uint64_t> out;
    std::uint32_t random = 1;
    for (int token = 0; token < 200; ++token) {
      cache.begin_token();
      for (const auto& bank : container.banks()) {
        for (int k = 0; k < 2; ++k) {
          random = random * 1664525u + 1013904223u;
          const std::uint32_t e = std::min((random >> 8) % 5, (random >> 20) % 5);
          cache.get(bank.layer(), ExpertId{e});
        }
      }
      out.push_back(cache.counters().hits);
    }
    return out;
  };
  CHECK(hits(named) == hits(told));
  CHECK(hits(named) != hits(untold));
}
