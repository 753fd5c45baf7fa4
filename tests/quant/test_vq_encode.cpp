// The VQ encoder: bytes in the format's layout, decoded by a loop of the test's own.
#include "waste/quant/vq_encode.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"
#include "waste/core/error.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/quant/vq_train.hpp"

using namespace waste;
using quant::Effort;

namespace {

std::vector<float> gaussian(std::size_t n, std::uint64_t seed) {
  quant::Random random(seed);
  std::vector<float> out(n);
  for (float& v : out) v = static_cast<float>(random.normal());
  return out;
}

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
