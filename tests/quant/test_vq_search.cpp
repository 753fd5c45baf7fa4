// The search kernel and its selection, against sorting and against exhaustive search.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "waste/kernels/kernel_table.hpp"
#include "waste/kernels/smallest.hpp"
#include "waste/quant/random.hpp"

using namespace waste;

namespace {

template <std::size_t B>
void check_smallest(quant::Random& random, std::size_t rows) {
  std::vector<std::int32_t> keys((rows + 1) * 16, -5);
  std::vector<std::int32_t> sorted;
  for (std::size_t i = 0; i < rows * 16; ++i) {
    keys[i] = static_cast<std::int32_t>(random.next() >> 33);
    sorted.push_back(keys[i]);
  }
  std::int32_t out[B];
  const bool in_order = rows % 3 == 1;
  kernels::smallest<arch::baseline, B>(keys.data(), rows, in_order, out);
  std::sort(sorted.begin(), sorted.end());
  if (!in_order) std::sort(out, out + B);
  CHECK(std::equal(out, out + B, sorted.begin()));
}

/// Integer codebooks built by the definition in SearchBooks.
struct Books {
  std::size_t stages, entries;
  std::vector<std::int16_t> c, pairs, steps;  // c: [stages][entries][8]
  std::vector<std::int32_t> norms;

  Books(std::size_t s, std::size_t k, quant::Random& random) : stages(s), entries(k) {
    norms.resize(s * k);
    pairs.resize(s * k * 8);
    for (std::size_t i = 0; i < s * k * 8; ++i) {
      const int reach = kernels::search_reach / static_cast<int>(s * (1 + i / (k * 8)));
      c.push_back(
          static_cast<std::int16_t>(static_cast<int>(random.below(2u * reach + 1)) - reach));
      steps.push_back(static_cast<std::int16_t>(4 * c.back()));
    }
    for (std::size_t t = 0; t < s; ++t) {
      for (std::size_t e = 0; e < k; ++e) {
        int norm = 0;
        for (std::size_t d = 0; d < 8; ++d) {
          const int v = c[(t * k + e) * 8 + d];
          norm += v * v;
          pairs[((t * 4 + d / 2) * k + e) * 2 + d % 2] = static_cast<std::int16_t>(-8 * v);
        }
        norms[t * k + e] = 16 * norm + static_cast<int>(e / 16);
      }
    }
  }
  kernels::SearchBooks view() const {
    return {stages, entries, norms.data(), pairs.data(), steps.data()};
  }
  long distance(const std::int16_t* target, const std::uint8_t* index) const {
    long sum = 0;
    for (std::size_t d = 0; d < 8; ++d) {
      long r = target[d] / 4;
      for (std::size_t s = 0; s < stages; ++s) r -= c[(s * entries + index[s]) * 8 + d];
      sum += r * r;
    }
    return sum;
  }
};

std::vector<std::int16_t> targets(std::size_t n, quant::Random& random, double size) {
  std::vector<std::int16_t> out(n * 8);
  for (auto& v : out) {
    const double limit = kernels::search_limit;
    const double x = std::clamp(random.normal() * size, -limit, limit);
    v = static_cast<std::int16_t>(4 * static_cast<int>(x));
  }
  return out;
}

std::vector<std::uint8_t> search(const arch::Tier tier, const Books& books,
                                 const std::vector<std::int16_t>& t, std::size_t beam) {
  std::vector<std::uint8_t> out(t.size() / 8 * books.stages);
  kernels::kernel_table(tier).encode->search(books.view(), t.data(), t.size() / 8, beam,
                                             out.data());
  return out;
}

}  // namespace

TEST_CASE("the smallest keys are found whatever their places") {
  quant::Random random(11);
  for (int trial = 0; trial < 50; ++trial) {
    check_smallest<4>(random, 4);
    check_smallest<4>(random, 16);
    check_smallest<8>(random, 8);
    check_smallest<8>(random, 16);
    check_smallest<16>(random, 16);
    check_smallest<32>(random, 32);
    check_smallest<64>(random, 64);
  }
}

TEST_CASE("a beam that holds every path finds what exhaustive search finds") {
  quant::Random random(12);
  const Books books(2, 16, random);
  // The largest targets reach the bound of the 32-bit sums.
  for (const double size : {300.0, 900.0, 1e6}) {
    const auto t = targets(200, random, size);
    for (const arch::Tier tier : arch::runnable_tiers()) {
      const auto got = search(tier, books, t, 16);
      for (std::size_t i = 0; i < t.size() / 8; ++i) {
        long least = std::numeric_limits<long>::max();
        for (int a = 0; a < 16; ++a) {
          for (int b = 0; b < 16; ++b) {
            const std::uint8_t index[2] = {static_cast<std::uint8_t>(a),
                                           static_cast<std::uint8_t>(b)};
            least = std::min(least, books.distance(&t[8 * i], index));
          }
        }
        REQUIRE(books.distance(&t[8 * i], &got[2 * i]) == least);
      }
    }
  }
}

TEST_CASE("greedy search takes the nearest entry stage after stage") {
  quant::Random random(13);
  for (const std::size_t entries : {16u, 64u, 256u}) {
    const Books books(3, entries, random);
    const auto t = targets(101, random, 500);
    const auto got = search(arch::Tier::baseline, books, t, 1);
    for (std::size_t i = 0; i < t.size() / 8; ++i) {
      std::int16_t rest[8];
      std::copy_n(&t[8 * i], 8, rest);
      for (std::size_t s = 0; s < 3; ++s) {
        const auto distance = [&](std::size_t e) {
          long sum = 0;
          for (std::size_t d = 0; d < 8; ++d) {
            const long r = rest[d] / 4 - books.c[(s * entries + e) * 8 + d];
            sum += r * r;
          }
          return sum;
        };
        long least = distance(0);
        for (std::size_t e = 1; e < entries; ++e) least = std::min(least, distance(e));
        const std::size_t mine = got[3 * i + s];
        REQUIRE(mine < entries);
        REQUIRE(distance(mine) == least);
        for (std::size_t d = 0; d < 8; ++d) {
          rest[d] = static_cast<std::int16_t>(rest[d] - 4 * books.c[(s * entries + mine) * 8 + d]);
        }
      }
    }
  }
}

TEST_CASE("a wider beam is closer in sum, and every tier finds the same indices") {
  quant::Random random(14);
  for (const auto& [stages, entries] :
       {std::pair{1u, 256u}, {2u, 256u}, {3u, 240u}, {4u, 64u}, {8u, 32u}}) {
    const Books books(stages, entries, random);
    const auto t = targets(301, random, 400);
    double before = std::numeric_limits<double>::infinity();
    for (const std::size_t beam : {1u, 4u, 8u, 16u, 32u}) {
      const auto got = search(arch::Tier::baseline, books, t, beam);
      double sum = 0;
      for (std::size_t i = 0; i < t.size() / 8; ++i) {
        sum += static_cast<double>(books.distance(&t[8 * i], &got[stages * i]));
      }
      CHECK(sum <= before);
      before = sum;
      for (const arch::Tier tier : arch::runnable_tiers()) {
        CHECK((search(tier, books, t, beam) == got));
      }
    }
  }
}
