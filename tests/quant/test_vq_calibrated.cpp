// Encoding against output error: the factor, the metric, and what it wins on correlated inputs.
#include "waste/quant/vq_calibrated.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "quant/inputs.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/core/error.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/quant/vq_train.hpp"

using namespace waste;
using quant::Effort;
using test::correlated;
using test::gaussian;

namespace {

struct Encoded {
  std::size_t rows, cols;
  format::ExpertQuant q;
  std::vector<float> books;
  std::vector<std::uint8_t> indices, scales;
  quant::EncodeStats stats;

  Encoded(MatrixView<const float> w, const quant::EncodeOptions& o, const quant::MomentFactor* f)
      : rows(w.rows), cols(w.cols), q(o.quant) {
    const auto sample = gaussian(4000 * 8, 5);
    books = quant::train_codebooks({sample.data(), 4000, 8}, o);
    indices.resize(format::IndexLayout(q, rows, cols).bytes(), 0xee);
    scales.resize(2 * rows);
    stats = f == nullptr ? quant::encode_matrix(w, books.data(), o, indices.data(), scales.data())
                         : quant::CalibratedEncoder(*f, books.data(), o)
                               .encode(w, indices.data(), scales.data());
  }
  std::vector<double> error(MatrixView<const float> w) const {
    const VqMatrix m{indices.data(), scales.data(), books.data(), rows, cols, q};
    std::vector<double> out(rows * cols);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < cols; ++c) {
        double sum = 0;
        for (std::size_t s = 0; s < q.stages; ++s) {
          sum += books[(s * m.table_entries() + m.index(r, c / 8, s)) * 8 + c % 8];
        }
        out[r * cols + c] = w(r, c) - static_cast<double>(m.scale(r)) * sum;
      }
    }
    return out;
  }
};

/// Sum over the inputs of |E x|^2.
double output_error(const std::vector<double>& e, std::size_t cols, MatrixView<const float> x) {
  double total = 0;
  for (std::size_t r = 0; r < e.size() / cols; ++r) {
    for (std::size_t t = 0; t < x.rows; ++t) {
      double y = 0;
      for (std::size_t c = 0; c < cols; ++c) y += e[r * cols + c] * x(t, c);
      total += y * y;
    }
  }
  return total;
}

}  // namespace

TEST_CASE("moments are the means of products, block by block, and merge") {
  const auto x = correlated(20, 24, 1);
  for (const std::size_t block : {1u, 8u, 16u, 24u}) {
    quant::InputMoments all(24, block), first(24, block), second(24, block);
    all.add({x.data(), 20, 24});
    first.add({x.data(), 7, 24});
    second.add({x.data() + 7 * 24, 13, 24});
    first.add(second);
    CHECK(all.count() == 20);
    for (std::size_t i = 0; i < 24; ++i) {
      for (std::size_t j = 0; j < 24; ++j) {
        double want = 0;
        for (std::size_t t = 0; t < 20; ++t)
          want += static_cast<double>(x[t * 24 + i]) * x[t * 24 + j];
        if (i / block != j / block) want = 0;
        CHECK(all.mean(i, j) == Approx(want / 20));
        CHECK(first.mean(i, j) == Approx(want / 20));
      }
    }
    quant::InputMoments again(24, block);
    again.set_sums(all.sums(), all.count());
    CHECK(again.mean(9, 3) == all.mean(9, 3));
  }
}

TEST_CASE("moments, factors and encoders say what does not fit") {
  const auto said = [](const auto& call) { return std::string(test::failure_of(call).what()); };
  const auto block = [&](std::size_t n) { return said([n] { quant::InputMoments m(24, n); }); };
  const std::string wanted =
      ", wanted 24; wanted 1, the number of columns or a multiple of 8 below it";
  for (const std::size_t n : {0u, 12u, 25u, 32u}) {
    CHECK(block(n) ==
          "block of input moments: invalid argument, got " + std::to_string(n) + wanted);
  }
  quant::InputMoments m(24, 24);
  std::vector<float> x(48, 1.0f);
  CHECK(said([&] { m.add({x.data(), 2, 16}); }) == "input: shape mismatch, got 16, wanted 24");
  x[47] = INFINITY;
  CHECK(said([&] { m.add({x.data(), 2, 24}); }) == "input: out of range; not finite");
  CHECK(m.count() == 0);
  CHECK(said([&] { m.add(quant::InputMoments(16, 16)); }) ==
        "input moments: shape mismatch, got 16, wanted 24");
  CHECK(test::code_of([&] { m.add(quant::InputMoments(24, 8)); }) == Errc::shape);
  const std::vector<double> sums(299);
  CHECK(said([&] { m.set_sums(sums, 1); }) ==
        "input moments: shape mismatch, got 299, wanted 300");  // 24 * 25 / 2
  CHECK(m.count() == 0);
  const std::string none =
      "input moments: invalid argument; wanted moments of some input that is not zero and a "
      "positive damping";
  CHECK(said([&] { quant::MomentFactor f(m, 0.01, 1); }) == none);
  m.add({x.data(), 1, 24});
  for (const double damping : {0.0, -1.0, std::nan("")}) {
    CHECK(said([&] { quant::MomentFactor f(m, damping, 1); }) == none);
  }

  const quant::MomentFactor f(m, 0.01, 1);
  quant::EncodeOptions o{format::vq2r, Effort::fast, 1, 1, {}};
  const std::vector<float> books(2 * 256 * 8);
  std::vector<std::uint8_t> out(4096, 0xee);
  const quant::CalibratedEncoder encoder(f, books.data(), o);
  CHECK(said([&] {
          encoder.encode({x.data(), 1, 16}, out.data(), out.data() + 2048);
        }) == "cols: shape mismatch, got 16, wanted 24");
  CHECK(std::count(out.begin(), out.end(), 0xee) == 4096);
  CHECK(said([&] {
          encoder.encode({x.data() + 24, 1, 24}, out.data(), out.data() + 2048);
        }).starts_with("weights: out of range"));
  CHECK(said([&] { quant::CalibratedEncoder({}, books.data(), o); }) ==
        "cols: shape mismatch, got 0, wanted 8");
  o.quant.entries = 257;
  CHECK(said([&] { quant::CalibratedEncoder(f, books.data(), o); }) ==
        "entries: out of range, got 257, wanted at most 256");
}

TEST_CASE("the factor times its transpose is the damped moments") {
  const std::size_t cols = 136;
  const auto x = correlated(60, cols, 2);  // fewer inputs than columns: damping must carry it
  for (const std::size_t block : {1u, 48u, 136u}) {
    quant::InputMoments m(cols, block);
    m.add({x.data(), 60, cols});
    const quant::MomentFactor f(m, 0.01, 2), same(m, 0.01, 1);
    double trace = 0;
    for (std::size_t i = 0; i < cols; ++i) trace += m.mean(i, i);
    for (std::size_t i = 0; i < cols; ++i) {
      for (std::size_t j = 0; j < cols; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k < cols; ++k) sum += static_cast<double>(f.at(i, k)) * f.at(j, k);
        const double want = m.mean(i, j) + (i == j ? 0.01 * trace / cols : 0);
        REQUIRE(sum == Approx(want).margin(2e-5 * trace / cols));
        REQUIRE(f.at(i, j) == same.at(i, j));
        if (i > j) REQUIRE(f.at(i, j) == 0);
      }
    }
  }
}

TEST_CASE("eight columns are searched exhaustively in the metric of the output") {
  quant::EncodeOptions o{format::vq2r, Effort::best, 1, 1, {}};
  o.quant.entries = 16;
  const auto x = correlated(50, 8, 3), weights = gaussian(20 * 8, 4);
  const MatrixView<const float> w(weights.data(), 20, 8);
  quant::InputMoments m(8, 8);
  m.add({x.data(), 50, 8});
  const quant::MomentFactor f(m, 1e-4, 1);
  const Encoded e(w, o, &f);
  const VqMatrix view{e.indices.data(), e.scales.data(), e.books.data(), 20, 8, o.quant};
  for (std::size_t r = 0; r < 20; ++r) {
    // The codes are those for the row's first scale, its rms; the stored scale was fitted later.
    const double scale = f16_to_f32(quant::row_scale(weights.data() + 8 * r, 8));
    const auto cost = [&](std::size_t a, std::size_t b, double s) {
      double total = 0;
      for (std::size_t j = 0; j < 8; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < 8; ++i) {
          const double c = static_cast<double>(e.books[a * 8 + i]) + e.books[(256 + b) * 8 + i];
          sum += (w(r, i) - s * c) * f.at(i, j);
        }
        total += sum * sum;
      }
      return total;
    };
    double least = INFINITY;
    for (std::size_t a = 0; a < 16; ++a) {
      for (std::size_t b = 0; b < 16; ++b) least = std::min(least, cost(a, b, scale));
    }
    const std::size_t a = view.index(r, 0, 0), b = view.index(r, 0, 1);
    CHECK(cost(a, b, scale) <= least * 1.02 + 1e-4);
    CHECK(cost(a, b, view.scale(r)) <= cost(a, b, scale) * (1 + 1e-6));
  }
}

TEST_CASE("feeding errors forward lowers the output error on correlated inputs") {
  const std::size_t rows = 32, cols = 128;
  const auto weights = gaussian(rows * cols, 6), x = correlated(600, cols, 7),
             unseen = correlated(300, cols, 8);
  const MatrixView<const float> w(weights.data(), rows, cols), fresh(unseen.data(), 300, cols);
  for (const auto& q : {format::vq3r, format::vq2r, format::vq4p}) {
    const quant::EncodeOptions o{q, Effort::standard, 1, 1, {}};
    const Encoded plain(w, o, nullptr);
    const double before = output_error(plain.error(w), cols, fresh);
    double ratio[2];
    for (const bool full : {false, true}) {
      quant::InputMoments m(cols, full ? cols : 1);
      m.add({x.data(), 600, cols});
      const quant::MomentFactor f(m, 0.01, 1);
      const Encoded e(w, o, &f);
      ratio[full] = output_error(e.error(w), cols, fresh) / before;
      // The sums reported are those of the damped metric.
      double error = 0, norm = 0;
      const auto wrong = e.error(w);
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t j = 0; j < cols; ++j) {
          double a = 0, b = 0;
          for (std::size_t i = 0; i <= j; ++i) {
            a += wrong[r * cols + i] * f.at(i, j);
            b += static_cast<double>(w(r, i)) * f.at(i, j);
          }
          error += a * a;
          norm += b * b;
        }
      }
      CHECK(e.stats.squared_error == Approx(error).epsilon(1e-3));
      CHECK(e.stats.squared_norm == Approx(norm).epsilon(1e-3));
    }
    CAPTURE(q.stages);
    CHECK(ratio[1] < 0.4);
    CHECK(ratio[1] < ratio[0]);
    CHECK(ratio[0] < 1.02);
  }
}

TEST_CASE("white inputs give what plain encoding gives") {
  const std::size_t rows = 24, cols = 64;
  const auto weights = gaussian(rows * cols, 9);
  const MatrixView<const float> w(weights.data(), rows, cols);
  quant::InputMoments m(cols, 1);
  const std::vector<float> ones(cols, 1.0f);
  m.add({ones.data(), 1, cols});
  const quant::MomentFactor f(m, 1e-3, 1);
  const quant::EncodeOptions o{format::vq3r, Effort::standard, 1, 1, {}};
  const Encoded plain(w, o, nullptr), calibrated(w, o, &f);
  CHECK(calibrated.stats.relative_error() == Approx(plain.stats.relative_error()).epsilon(0.002));
}

TEST_CASE("calibrated bytes depend on neither threads nor tier") {
  const std::size_t rows = 37, cols = 72;
  const auto weights = gaussian(rows * cols, 10), x = correlated(100, cols, 11);
  const MatrixView<const float> w(weights.data(), rows, cols);
  quant::InputMoments m(cols, cols);
  m.add({x.data(), 100, cols});
  const quant::MomentFactor f(m, 0.01, 1);
  quant::EncodeOptions o{format::vq4p, Effort::standard, 1, 1, arch::Tier::baseline};
  const Encoded first(w, o, &f);
  for (const arch::Tier tier : arch::runnable_tiers()) {
    for (const unsigned threads : {1u, 2u, 5u}) {
      o.tier = tier;
      o.threads = threads;
      const Encoded e(w, o, &f);
      CHECK((e.indices == first.indices));
      CHECK((e.scales == first.scales));
      CHECK(e.stats.squared_error == first.stats.squared_error);
    }
  }
}
