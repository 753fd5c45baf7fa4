// The VQ encoder: bytes in the format's layout, decoded by a loop of the test's own.
#include "waste/quant/vq_encode.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "quant/inputs.hpp"
#include "support/catch.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/core/error.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/quant/vq_train.hpp"

using namespace waste;
using quant::Effort;
using test::gaussian;

namespace {

double decoded_error(const VqMatrix& q, MatrixView<const float> w) {
  double error = 0, norm = 0;
  for (std::size_t r = 0; r < w.rows; ++r) {
    for (std::size_t c = 0; c < w.cols; ++c) {
      double sum = 0;
      for (std::size_t s = 0; s < q.quant.stages; ++s) {
        sum += q.codebooks[(s * q.table_entries() + q.index(r, c / 8, s)) * 8 + c % 8];
      }
      const double e = w(r, c) - static_cast<double>(q.scale(r)) * sum;
      error += e * e;
      norm += static_cast<double>(w(r, c)) * w(r, c);
    }
  }
  return std::sqrt(error / norm);
}

/// Trains on `sample`, encodes w.
struct Encoded {
  quant::EncodeOptions options;
  std::size_t rows, cols;
  std::vector<float> books;
  std::vector<std::uint8_t> indices, scales;
  quant::EncodeStats stats;

  Encoded(MatrixView<const float> w, MatrixView<const float> sample, quant::EncodeOptions o)
      : options(o),
        rows(w.rows),
        cols(w.cols),
        books(quant::train_codebooks(sample, o)),
        indices(format::IndexLayout(o.quant, w.rows, w.cols).bytes(), 0xee),
        scales(2 * w.rows),
        stats(quant::encode_matrix(w, books.data(), o, indices.data(), scales.data())) {}
  VqMatrix view() const {
    return {indices.data(), scales.data(), books.data(), rows, cols, options.quant};
  }
};

format::ExpertQuant plain_layout(format::ExpertQuant q) {
  q.index_block = 0;
  return q;
}

}  // namespace

TEST_CASE("an encoded matrix decodes to the error that was reported") {
  const std::size_t rows = 70, cols = 160;
  auto x = gaussian(rows * cols, 3);
  for (std::size_t c = 0; c < cols; ++c) x[5 * cols + c] = 0, x[6 * cols + c] *= 1e-3f;
  const MatrixView<const float> w(x.data(), rows, cols);
  for (const auto& q : {format::vq3r, format::vq2r, format::vq4p, plain_layout(format::vq3r),
                        plain_layout(format::vq4p)}) {
    quant::EncodeOptions options;
    options.quant = q;
    options.effort = Effort::fast;
    quant::VectorSample sample(1);
    sample.append(w, 1000);
    const auto books = quant::train_codebooks(sample.view(), options);
    for (const float v : books) REQUIRE(f16_to_f32(f32_to_f16(v)) == v);
    const format::IndexLayout layout(q, rows, cols);
    std::vector<std::uint8_t> indices(layout.bytes(), 0xee), scales(2 * rows);
    const auto stats =
        quant::encode_matrix(w, books.data(), options, indices.data(), scales.data());
    const VqMatrix m{indices.data(), scales.data(), books.data(), rows, cols, q};
    CHECK(stats.relative_error() == Approx(decoded_error(m, w)).epsilon(1e-5));
    CHECK(stats.relative_error() < (q.stages == 2 ? 0.40 : 0.26));
    for (std::size_t r = rows; r < layout.padded_rows(); ++r) {
      for (std::size_t v = 0; v < layout.positions; ++v) {
        for (std::size_t b = 0; b < layout.run; ++b) REQUIRE(indices[layout.offset(r, v) + b] == 0);
      }
    }
  }
}

TEST_CASE("more effort gives less error", "[native]") {
  const std::size_t rows = 32, cols = 320;
  const auto x = gaussian(rows * cols, 5), other = gaussian(16000 * 8, 6);
  for (const auto& q : {format::vq2r, format::vq4p}) {
    double before = 1;
    for (const Effort effort : {Effort::fast, Effort::standard, Effort::best}) {
      const Encoded e({x.data(), rows, cols}, {other.data(), 16000, 8}, {q, effort, 1, 2, {}});
      CHECK(e.stats.relative_error() < before);
      before = e.stats.relative_error();
    }
    // 4 x 64 nearly reaches 3 x 256; the limits are a little above what 16,000 vectors give.
    CHECK(before < (q.stages == 2 ? 0.312 : 0.165));
  }
}

TEST_CASE("bytes depend on neither threads nor tier") {
  const std::size_t rows = 70, cols = 88;
  const auto x = gaussian(rows * cols, 7), other = gaussian(3000 * 8, 8);
  const MatrixView<const float> w(x.data(), rows, cols), sample(other.data(), 3000, 8);
  for (const Effort effort : {Effort::fast, Effort::standard, Effort::best}) {
    const Encoded first(w, sample, {format::vq3r, effort, 9, 1, arch::Tier::baseline});
    for (const arch::Tier tier : arch::runnable_tiers()) {
      for (const unsigned threads : {1u, 2u, 5u}) {
        if (effort == Effort::best && threads != 2) continue;
        const Encoded e(w, sample, {format::vq3r, effort, 9, threads, tier});
        CHECK((e.books == first.books));
        CHECK((e.indices == first.indices));
        CHECK((e.scales == first.scales));
        CHECK(e.stats.squared_error == first.stats.squared_error);
      }
    }
    const Encoded seeded(w, sample, {format::vq3r, effort, 10, 1, {}});
    CHECK((seeded.books != first.books));
  }
}

TEST_CASE("a row's bytes do not depend on its neighbours") {
  const std::size_t rows = 40, cols = 64;
  const auto x = gaussian(rows * cols, 11), other = gaussian(2000 * 8, 12);
  const MatrixView<const float> sample(other.data(), 2000, 8);
  const quant::EncodeOptions options{format::vq4p, Effort::standard, 1, 1, {}};
  const Encoded all({x.data(), rows, cols}, sample, options);
  for (const std::size_t r : {0u, 17u, 39u}) {
    const Encoded one({x.data() + r * cols, 1, cols}, sample, options);
    CHECK(one.view().scale(0) == all.view().scale(r));
    for (std::size_t v = 0; v < cols / 8; ++v) {
      for (std::size_t s = 0; s < 4; ++s) {
        REQUIRE(one.view().index(0, v, s) == all.view().index(r, v, s));
      }
    }
  }
}

TEST_CASE("a wide beam over a few entries is exhaustive search at the row's scale") {
  const std::size_t cols = 160;
  auto quant = format::vq2r;
  quant.entries = 13;  // not a multiple of 16: the search fills up, the reader must not see it
  const auto x = gaussian(6 * cols, 13), other = gaussian(500 * 8, 14);
  const Encoded e({x.data(), 6, cols}, {other.data(), 500, 8}, {quant, Effort::best, 1, 1, {}});
  const VqMatrix m = e.view();
  for (std::size_t r = 0; r < 6; ++r) {
    for (std::size_t v = 0; v < cols / 8; ++v) {
      const auto distance = [&](std::size_t a, std::size_t b) {
        double sum = 0;
        for (std::size_t d = 0; d < 8; ++d) {
          const double c = static_cast<double>(e.books[a * 8 + d]) + e.books[(256 + b) * 8 + d];
          const double diff = x[r * cols + v * 8 + d] - static_cast<double>(m.scale(r)) * c;
          sum += diff * diff;
        }
        return sum;
      };
      double least = INFINITY;
      for (std::size_t a = 0; a < 13; ++a) {
        for (std::size_t b = 0; b < 13; ++b) least = std::min(least, distance(a, b));
      }
      REQUIRE(m.index(r, v, 0) < 13);
      REQUIRE(m.index(r, v, 1) < 13);
      // The search works on integers of some 11 bits.
      CHECK(distance(m.index(r, v, 0), m.index(r, v, 1)) <= least * 1.01 + 1e-4);
    }
  }
}

TEST_CASE("a few far entries do not coarsen the search among the others") {
  const std::size_t rows = 32, cols = 256;
  auto x = gaussian(rows * cols, 19);
  const auto other = gaussian(4000 * 8, 20);
  const quant::EncodeOptions options{format::vq3r, Effort::standard, 1, 1, {}};
  Encoded e({x.data(), rows, cols}, {other.data(), 4000, 8}, options);
  const double before = e.stats.relative_error();
  // One entry of each stage moved to where no vector is, and one vector that is near the three.
  for (std::size_t s = 0; s < 3; ++s) {
    for (std::size_t d = 0; d < 8; ++d) e.books[(s * 256 + 7) * 8 + d] = d == 2 ? 300.f : 0.f;
  }
  auto stats = quant::encode_matrix({x.data(), rows, cols}, e.books.data(), options,
                                    e.indices.data(), e.scales.data());
  CHECK(stats.relative_error() < before * 1.01);
  std::fill_n(x.begin(), cols, 0.0f);
  x[10] = 900;
  const double scale = f16_to_f32(quant::row_scale(x.data(), cols));
  for (std::size_t s = 0; s < 3; ++s) {
    e.books[(s * 256 + 7) * 8 + 2] = f16_to_f32(f32_to_f16(static_cast<float>(300 / scale)));
  }
  stats = quant::encode_matrix({x.data(), 1, cols}, e.books.data(), options, e.indices.data(),
                               e.scales.data());
  for (std::size_t s = 0; s < 3; ++s) CHECK(e.view().index(0, 1, s) == 7);
}

TEST_CASE("rows of zeros, tiny and huge values") {
  const std::size_t cols = 64;
  auto x = gaussian(5 * cols, 15);
  const auto other = gaussian(1000 * 8, 16);
  for (std::size_t c = 0; c < cols; ++c) {
    x[c] = 0;
    x[cols + c] *= 1e-30f;       // below every f16
    x[2 * cols + c] *= 1e-6f;    // a subnormal scale
    x[3 * cols + c] *= 15000.f;  // a large one
    x[4 * cols + c] = c == 9 ? 40.f : 0.f;
  }
  const Encoded e({x.data(), 5, cols}, {other.data(), 1000, 8},
                  {format::vq3r, Effort::standard, 1, 1, {}});
  CHECK(e.view().scale(0) == 0);
  CHECK(e.view().scale(1) == 0);
  for (const std::size_t r : {2u, 3u}) {
    const Encoded one({x.data() + r * cols, 1, cols}, {other.data(), 1000, 8},
                      {format::vq3r, Effort::standard, 1, 1, {}});
    CHECK(one.stats.relative_error() < 0.25);
  }
  CHECK(std::isfinite(e.stats.relative_error()));
}

TEST_CASE("what cannot be encoded is refused") {
  const auto other = gaussian(1000 * 8, 17);
  const MatrixView<const float> sample(other.data(), 1000, 8);
  const auto code = [&](std::vector<float> x, std::size_t cols, format::ExpertQuant q) {
    try {
      const quant::EncodeOptions options{q, Effort::fast, 1, 2, {}};
      const auto books = quant::train_codebooks(sample, {format::vq3r, Effort::fast, 1, 1, {}});
      std::vector<std::uint8_t> indices(100000), scales(1000);
      quant::encode_matrix({x.data(), x.size() / cols, cols}, books.data(), options, indices.data(),
                           scales.data());
    } catch (const Error& e) {
      return e.code();
    }
    return Errc::ok;
  };
  CHECK(code(gaussian(64, 1), 32, format::vq3r) == Errc::ok);
  CHECK(code(gaussian(60, 1), 12, format::vq3r) == Errc::shape);
  auto bad = gaussian(64, 1);
  bad[40] = std::numeric_limits<float>::quiet_NaN();
  CHECK(code(bad, 32, format::vq3r) == Errc::out_of_range);
  bad[40] = 1e30f;
  CHECK(code(bad, 32, format::vq3r) == Errc::out_of_range);
  auto nine = format::vq3r;
  nine.stages = 9;
  CHECK(code(gaussian(64, 1), 32, nine) == Errc::out_of_range);
}

TEST_CASE("a sample takes each vector of a small matrix once, scaled by its row") {
  const auto x = gaussian(3 * 32, 18);
  quant::VectorSample all(1), some(1);
  all.append({x.data(), 3, 32}, 100);
  some.append({x.data(), 3, 32}, 5);
  REQUIRE(all.size() == 12);
  REQUIRE(some.size() == 5);
  for (std::size_t i = 0; i < 12; ++i) {
    double sum = 0;
    for (std::size_t c = 0; c < 32; ++c) sum += std::pow(x[i / 4 * 32 + c], 2);
    const double rms = std::sqrt(sum / 32);
    for (std::size_t d = 0; d < 8; ++d) {
      CHECK(all.view()(i, d) == Approx(x[i * 8 + d] / rms).epsilon(1e-3));
    }
  }
}

TEST_CASE("training survives a sample of few distinct vectors and refuses what is not finite") {
  std::vector<float> x(300 * 8, 0.25f);
  for (std::size_t i = 0; i < 150 * 8; ++i) x[i] = -1.5f;
  for (const Effort effort : {Effort::fast, Effort::standard}) {
    const quant::EncodeOptions options{format::vq3r, effort, 1, 1, {}};
    const Encoded e({x.data(), 1, 2400}, {x.data(), 300, 8}, options);
    for (const float v : e.books) REQUIRE(std::isfinite(v));
    CHECK(e.stats.relative_error() < 0.01);
  }
  x[77] = -INFINITY;
  CHECK_THROWS_AS(quant::train_codebooks({x.data(), 300, 8}, {}), Error);
}

TEST_CASE("training refuses a sample smaller than the codebook") {
  const auto x = gaussian(255 * 8, 4);
  quant::EncodeOptions options;
  try {
    quant::train_codebooks({x.data(), 255, 8}, options);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(e.code() == Errc::bad_argument);
    CHECK(e.fault().got == 255);
    CHECK(e.fault().want == 256);
  }
}
