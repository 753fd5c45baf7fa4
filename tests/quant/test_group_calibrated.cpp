// Group formats against output error: what error feedback wins, and its arithmetic by definition.
#include "waste/quant/group_calibrated.hpp"

#include <cmath>
#include <vector>

#include "quant/inputs.hpp"
#include "support/catch.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/core/error.hpp"
#include "waste/quant/group.hpp"

using namespace waste;
using format::Fmt;
using test::correlated;
using test::gaussian;

namespace {

struct Bytes {
  std::vector<std::uint8_t> payload, scales;
  Bytes(Fmt fmt, std::size_t rows, std::size_t cols)
      : payload(rows * format::trunk_row_bytes(fmt, cols)),
        scales(rows * format::trunk_row_scale_bytes(fmt, cols)) {}
};

std::vector<float> error(Fmt fmt, const Bytes& b, MatrixView<const float> w) {
  std::vector<float> out(w.rows * w.cols);
  for (std::size_t r = 0; r < w.rows; ++r) {
    quant::dequantize_group_row({fmt, b.payload.data(), b.scales.data(), w.rows, w.cols}, r,
                                out.data() + r * w.cols);
    for (std::size_t c = 0; c < w.cols; ++c) out[r * w.cols + c] = w(r, c) - out[r * w.cols + c];
  }
  return out;
}

/// |E R|^2 by its definition.
double metric(const std::vector<float>& e, const quant::MomentFactor& f) {
  double total = 0;
  for (std::size_t r = 0; r < e.size() / f.cols(); ++r) {
    for (std::size_t j = 0; j < f.cols(); ++j) {
      double sum = 0;
      for (std::size_t i = 0; i <= j; ++i) {
        sum += static_cast<double>(e[r * f.cols() + i]) * f.at(i, j);
      }
      total += sum * sum;
    }
  }
  return total;
}

}  // namespace

TEST_CASE("error feedback lowers the output error of every group format") {
  const std::size_t rows = 21;
  for (const std::size_t cols : {300u, 129u, 40u}) {
    const auto weights = gaussian(rows * cols, 1), x = correlated(400, cols, 2);
    const MatrixView<const float> w(weights.data(), rows, cols);
    for (const std::size_t block : {std::size_t{1}, std::size_t{40}, cols}) {
      if (block > cols) continue;
      quant::InputMoments m(cols, block);
      m.add({x.data(), 400, cols});
      const quant::MomentFactor f(m, 0.01, 1);
      for (const Fmt fmt : {Fmt::q8g, Fmt::q4g, Fmt::q3g}) {
        Bytes plain(fmt, rows, cols), fed(fmt, rows, cols);
        quant::quantize_groups(fmt, w, plain.payload.data(), plain.scales.data(),
                               quant::GroupScale::search);
        const auto stats =
            quant::quantize_groups_calibrated(fmt, w, f, {}, fed.payload.data(), fed.scales.data());
        const double before = metric(error(fmt, plain, w), f),
                     after = metric(error(fmt, fed, w), f);
        CAPTURE(cols, block, static_cast<int>(fmt));
        CHECK(stats.squared_error == Approx(after).epsilon(2e-3));
        CHECK(stats.squared_norm == Approx(metric(weights, f)).epsilon(1e-3));
        CHECK(after < (block == 1 ? 1.02 : block == cols ? 0.5 : 0.8) * before);
      }
    }
  }
}

TEST_CASE("bytes of error feedback depend on neither threads nor tier") {
  const std::size_t rows = 19, cols = 200;
  const auto weights = gaussian(rows * cols, 3), x = correlated(100, cols, 4);
  const MatrixView<const float> w(weights.data(), rows, cols);
  quant::InputMoments m(cols, cols);
  m.add({x.data(), 100, cols});
  const quant::MomentFactor f(m, 0.01, 1);
  Bytes first(Fmt::q4g, rows, cols);
  quant::EncodeOptions o;
  o.tier = arch::Tier::baseline;
  quant::quantize_groups_calibrated(Fmt::q4g, w, f, o, first.payload.data(), first.scales.data());
  for (const arch::Tier tier : arch::runnable_tiers()) {
    for (const unsigned threads : {1u, 2u, 5u}) {
      o.tier = tier;
      o.threads = threads;
      Bytes b(Fmt::q4g, rows, cols);
      quant::quantize_groups_calibrated(Fmt::q4g, w, f, o, b.payload.data(), b.scales.data());
      CHECK((b.payload == first.payload));
      CHECK((b.scales == first.scales));
    }
  }
}

TEST_CASE("zero rows and what cannot be held") {
  std::vector<float> x(2 * 128), ones(128, 1.0f);
  quant::InputMoments m(128, 1);
  m.add({ones.data(), 1, 128});
  const quant::MomentFactor f(m, 0.01, 1);
  x[200] = 1.5f;
  Bytes b(Fmt::q4g, 2, 128);
  quant::quantize_groups_calibrated(Fmt::q4g, {x.data(), 2, 128}, f, {}, b.payload.data(),
                                    b.scales.data());
  for (const float v : error(Fmt::q4g, b, {x.data(), 2, 128})) CHECK(std::fabs(v) < 1e-3f);
  CHECK_THROWS_AS(quant::quantize_groups_calibrated(Fmt::q4g, {x.data(), 4, 64}, f, {},
                                                    b.payload.data(), b.scales.data()),
                  Error);
  x[3] = NAN;
  CHECK_THROWS_AS(quant::quantize_groups_calibrated(Fmt::q4g, {x.data(), 2, 128}, f, {},
                                                    b.payload.data(), b.scales.data()),
                  Error);
}
