// Rotary embedding, grouped-query attention and the softmax router against their formulas in f64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "waste/nn/gqa.hpp"
#include "waste/nn/rope.hpp"
#include "waste/nn/router.hpp"

using namespace waste;
using test::code_of;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;

namespace {

Floats noise(std::size_t n, std::uint64_t seed) {
  Floats out(n);
  for (float& v : out) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    v = static_cast<float>(static_cast<double>(seed >> 40) / 8388608.0 - 1.0);
  }
  return out;
}

double relative(const Floats& got, const Doubles& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

struct Shape {
  std::size_t heads, groups, dim;
};

/// Softmax attention written out, f64: position t sees 0 .. t.
Doubles attention(const Shape& s, std::size_t tokens, const Floats& q, const Floats& k,
                  const Floats& v) {
  const std::size_t width = s.groups * s.dim;
  Doubles out(tokens * s.heads * s.dim, 0.0);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < s.heads; ++h) {
      const std::size_t g = h / (s.heads / s.groups), at = (t * s.heads + h) * s.dim;
      Doubles p(t + 1);
      double total = 0;
      for (std::size_t i = 0; i <= t; ++i) {
        double dot = 0;
        for (std::size_t d = 0; d < s.dim; ++d) {
          dot += double(q[at + d]) * k[i * width + g * s.dim + d];
        }
        p[i] = std::exp(dot / std::sqrt(double(s.dim)));
        total += p[i];
      }
      for (std::size_t i = 0; i <= t; ++i) {
        for (std::size_t d = 0; d < s.dim; ++d) {
          out[at + d] += p[i] / total * v[i * width + g * s.dim + d];
        }
      }
    }
  }
  return out;
}

/// Feeds the sequence in pieces of `step` tokens.
Floats run(const Shape& s, std::size_t tokens, std::size_t step, const Floats& q, const Floats& k,
           const Floats& v, unsigned threads) {
  const std::size_t wide = s.heads * s.dim, width = s.groups * s.dim;
  nn::KvCache cache(s.groups, s.dim, tokens);
  Exec exec;
  exec.threads = threads;
  Floats out(tokens * wide);
  for (std::size_t t = 0; t < tokens; t += step) {
    const std::size_t n = std::min(step, tokens - t);
    nn::gqa({q.data() + t * wide, n, wide}, {k.data() + t * width, n, width},
            {v.data() + t * width, n, width}, cache, {out.data() + t * wide, n, wide}, exec);
  }
  CHECK(cache.used() == tokens);
  return out;
}

}  // namespace

TEST_CASE("grouped-query attention is the formula, however it is fed") {
  for (const Shape s : {Shape{8, 2, 16}, Shape{6, 6, 20}, Shape{5, 1, 7}, Shape{32, 4, 128}}) {
    const std::size_t tokens = s.heads == 32 ? 40 : 19;
    const Floats q = noise(tokens * s.heads * s.dim, 1), k = noise(tokens * s.groups * s.dim, 2);
    const Floats v = noise(tokens * s.groups * s.dim, 3);
    const Floats whole = run(s, tokens, tokens, q, k, v, 1);
    CHECK(relative(whole, attention(s, tokens, q, k, v)) < 1e-6);
    for (const std::size_t step : {1, 5}) CHECK(run(s, tokens, step, q, k, v, 1) == whole);
    CHECK(run(s, tokens, tokens, q, k, v, 3) == whole);
  }
}

TEST_CASE("a key cache without room, or of another shape, is refused before it changes") {
  const Floats x = noise(4 * 32, 1);
  Floats out(4 * 32);
  nn::KvCache cache(2, 8, 3);
  const auto feed = [&](std::size_t tokens, std::size_t q_cols, std::size_t k_cols) {
    return code_of([&] {
      nn::gqa({x.data(), tokens, q_cols}, {x.data(), tokens, k_cols}, {x.data(), tokens, k_cols},
              cache, {out.data(), tokens, q_cols});
    });
  };
  CHECK(feed(4, 32, 16) == Errc::out_of_range);
  CHECK(feed(2, 24, 16) == Errc::shape);
  CHECK(feed(2, 32, 24) == Errc::shape);
  CHECK(cache.used() == 0);
  CHECK(feed(2, 32, 16) == Errc::ok);
  CHECK(feed(2, 32, 16) == Errc::out_of_range);
  CHECK(cache.used() == 2);
  cache.truncate(1);
  CHECK(feed(2, 32, 16) == Errc::ok);
  nn::KvCache none;
  CHECK(
      code_of([&] {
        nn::gqa({x.data(), 1, 32}, {x.data(), 1, 16}, {x.data(), 1, 16}, none, {out.data(), 1, 32});
      }) == Errc::shape);
}

TEST_CASE("rope turns each pair by its angle") {
  constexpr std::size_t dim = 12, heads = 3, tokens = 5, first = 100;
  const nn::Rope rope(dim, 10000.0, 128);
  const Floats x = noise(tokens * heads * dim, 5);
  Doubles want(x.begin(), x.end());
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      for (std::size_t i = 0; i < dim / 2; ++i) {
        const double a = double(first + t) * std::pow(10000.0, -2.0 * double(i) / dim);
        const std::size_t low = (t * heads + h) * dim + i, high = low + dim / 2;
        want[low] = x[low] * std::cos(a) - x[high] * std::sin(a);
        want[high] = x[high] * std::cos(a) + x[low] * std::sin(a);
      }
    }
  }
  Floats y = x;
  rope({y.data(), tokens, heads * dim}, first);
  CHECK(relative(y, want) < 1e-7);
  y = x;
  for (std::size_t t = 0; t < tokens; ++t) {
    rope({y.data() + t * heads * dim, 1, heads * dim}, first + t);
  }
  CHECK(relative(y, want) < 1e-7);
  y = x;
  rope({y.data(), 1, heads * dim}, 0);
  CHECK(y == x);  // position 0 stays
}

TEST_CASE("with rope a score depends on the distance of two positions only") {
  constexpr std::size_t dim = 64;
  const nn::Rope rope(dim, 500000.0, 2048);
  const auto score = [&](std::size_t query, std::size_t key) {
    Floats q = noise(dim, 1), k = noise(dim, 2);
    rope({q.data(), 1, dim}, query);
    rope({k.data(), 1, dim}, key);
    double dot = 0;
    for (std::size_t i = 0; i < dim; ++i) dot += double(q[i]) * k[i];
    return dot;
  };
  for (const std::size_t shift : {1, 30, 1990}) {
    CHECK(std::abs(score(50, 7) - score(50 + shift, 7 + shift)) < 1e-5);
  }
  CHECK(std::abs(score(50, 7) - score(51, 7)) > 1e-3);
}

TEST_CASE("rope refuses what it cannot turn") {
  CHECK(code_of([] { nn::Rope(7, 1e4, 8); }) == Errc::bad_argument);
  CHECK(code_of([] { nn::Rope(0, 1e4, 8); }) == Errc::bad_argument);
  CHECK(std::string(test::failure_of([] { nn::Rope(7, 1e4, 8); }).what()) ==
        "rope dim: invalid argument; 7, wanted an even number above 0");
  CHECK(code_of([] { nn::Rope(8, 0.0, 8); }) == Errc::bad_argument);
  CHECK(code_of([] { nn::Rope(8, std::nan(""), 8); }) == Errc::bad_argument);
  const nn::Rope rope(8, 1e4, 8);
  Floats x(4 * 24);
  CHECK(code_of([&] { rope({x.data(), 4, 20}, 0); }) == Errc::shape);
  CHECK(code_of([&] { rope({x.data(), 4, 24}, 5); }) == Errc::out_of_range);
  CHECK(code_of([&] { rope({x.data(), 4, 24}, ~std::size_t{0}); }) == Errc::out_of_range);
  CHECK(code_of([&] { rope({x.data(), 4, 24}, 4); }) == Errc::ok);
  CHECK(code_of([&] { nn::Rope()({x.data(), 4, 24}, 0); }) == Errc::shape);
}

TEST_CASE("the softmax router weighs by probability, over all experts or over the chosen") {
  const Floats logits = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f, -3.0f};
  double total = 0;
  for (const float l : logits) total += std::exp(double(l));
  for (const bool renormalize : {false, true}) {
    nn::RouterSpec spec;
    spec.score = nn::RouterScore::softmax;
    spec.top_k = 3;
    spec.renormalize = renormalize;
    Floats p = logits, weights(3);
    std::vector<std::uint32_t> ids(3);
    nn::route(p, {}, spec, ids, weights, {});
    CHECK(ids == std::vector<std::uint32_t>{1, 3, 4});  // the lower index first at a tie
    const double all = std::exp(2.0) + std::exp(2.0) + std::exp(1.0);
    for (std::size_t j = 0; j < 3; ++j) {
      const double want = std::exp(double(logits[ids[j]])) / (renormalize ? all : total);
      CHECK(std::abs(weights[j] - want) < 1e-6);
    }
  }
}
