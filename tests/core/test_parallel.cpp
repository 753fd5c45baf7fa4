// parallel_for: every index once, exceptions carried out, nesting safe.
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "waste/core/parallel.hpp"

namespace {

using waste::parallel_for;

TEST_CASE("every index runs exactly once, whatever the threads", "[parallel]") {
  for (const unsigned threads : {0u, 1u, 2u, 3u, 16u}) {
    for (const std::size_t count : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<std::atomic<int>> runs(count);
      parallel_for(count, threads, [&](std::size_t i) { ++runs[i]; });
      for (auto& r : runs) REQUIRE(r == 1);
    }
  }
}

TEST_CASE("results of disjoint tasks do not depend on the threads", "[parallel]") {
  const auto compute = [](unsigned threads) {
    std::vector<float> out(257);
    parallel_for(out.size(), threads, [&](std::size_t i) {
      float sum = 0;
      for (std::size_t k = 1; k <= 100 + i; ++k) sum += 1.f / static_cast<float>(k);
      out[i] = sum;
    });
    return out;
  };
  const auto one = compute(1);
  CHECK(compute(2) == one);
  CHECK(compute(5) == one);
  CHECK(compute(0) == one);
}

TEST_CASE("an exception leaves after the other tasks ended", "[parallel]") {
  for (const unsigned threads : {2u, 4u}) {
    std::atomic<int> finished{0};
    const auto body = [&](std::size_t i) {
      if (i == 13) throw std::runtime_error("task 13");
      ++finished;
    };
    std::string what;
    try {
      parallel_for(100, threads, body);
    } catch (const std::runtime_error& e) {
      what = e.what();
    }
    CHECK(what == "task 13");
    CHECK(finished == 99);
  }
}

TEST_CASE("one of many exceptions is rethrown and the pool still works", "[parallel]") {
  for (int round = 0; round < 20; ++round) {
    CHECK_THROWS_AS(parallel_for(64, 4, [](std::size_t) { throw std::logic_error("all"); }),
                    std::logic_error);
    std::atomic<int> runs{0};
    parallel_for(64, 4, [&](std::size_t) { ++runs; });
    REQUIRE(runs == 64);
  }
}

TEST_CASE("serial runs throw at once", "[parallel]") {
  int runs = 0;
  CHECK_THROWS_AS(parallel_for(10, 1,
                               [&](std::size_t i) {
                                 ++runs;
                                 if (i == 2) throw std::runtime_error("stop");
                               }),
                  std::runtime_error);
  CHECK(runs == 3);
}

TEST_CASE("nested calls run, also when they throw", "[parallel]") {
  std::vector<std::atomic<int>> runs(12 * 34);
  parallel_for(12, 4, [&](std::size_t i) {
    parallel_for(34, 4, [&](std::size_t k) { ++runs[i * 34 + k]; });
  });
  for (auto& r : runs) REQUIRE(r == 1);
  CHECK_THROWS_AS(parallel_for(4, 4,
                               [](std::size_t) {
                                 parallel_for(4, 4, [](std::size_t k) {
                                   if (k == 3) throw std::runtime_error("inner");
                                 });
                               }),
                  std::runtime_error);
}

TEST_CASE("at least one thread is available", "[parallel]") {
  CHECK(waste::available_threads() >= 1);
}

}  // namespace
