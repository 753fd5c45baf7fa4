#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/matrices.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/quant/reference.hpp"

using namespace waste;
using test::code_of;
using test::Scales;

namespace {

std::vector<float> inputs(std::size_t n) { return test::Random(n).bells(n); }

}  // namespace

TEST_CASE("products do not depend on the number of threads", "[nn][matvec]") {
  for (const arch::Tier tier : arch::runnable_tiers()) {
    INFO(arch::to_string(tier));
    Exec exec;
    exec.kernels = &kernels::kernel_table(tier);
    const auto q4 = test::make_trunk(format::Fmt::q4g, 1000, 1500, Scales::ordinary, 1);
    const auto vq = test::make_vq(format::vq3r, 1000, 1504, Scales::ordinary, 2);
    const auto x = inputs(1504);
    const std::span<const float> x_trunk(x.data(), 1500);
    std::vector<float> trunk_first(1000), vq_first(1000), got(1000);
    matvec(q4.view, x_trunk, trunk_first, exec);
    for (const auto precision :
         {kernels::Precision::exact, kernels::Precision::hilo14, kernels::Precision::split8}) {
      exec.precision = precision;
      exec.threads = 1;
      matvec(vq.view, x, vq_first, exec);
      for (const unsigned threads : {2u, 3u, 8u, 0u}) {
        exec.threads = threads;
        matvec(vq.view, x, got, exec);
        CHECK(got == vq_first);
        matvec(q4.view, x_trunk, got, exec);
        CHECK(got == trunk_first);
      }
    }
    const std::size_t tokens = 5;
    const auto many = inputs(tokens * 1500);
    std::vector<float> y(tokens * 1000);
    exec.threads = 3;
    matmul(q4.view, {many.data(), tokens, 1500}, {y.data(), tokens, 1000}, exec);
    for (std::size_t t = 0; t < tokens; ++t) {
      matvec(q4.view, std::span(many).subspan(t * 1500, 1500), got, exec);
      CHECK(std::equal(got.begin(), got.end(), y.begin() + static_cast<std::ptrdiff_t>(t * 1000)));
    }
  }
}

TEST_CASE("a chosen tier gives what its table gives", "[nn][matvec]") {
  const auto w = test::make_vq(format::vq4p, 130, 72, Scales::ordinary, 3);
  const auto x = inputs(72);
  std::vector<float> a(130), b(130);
  Exec exec;
  exec.kernels = &kernels::kernel_table(arch::Tier::baseline);
  matvec(w.view, x, a, exec);
  matvec<arch::baseline>(w.view, x, b);
  CHECK(a == b);
#if defined(__x86_64__)
  if (!arch::can_run(arch::Tier::icelake)) {
    CHECK(code_of([&] { matvec<arch::icelake>(w.view, x, b); }) == Errc::unsupported);
  }
#endif
}

TEST_CASE("one table serves every matrix with its codebooks and no other", "[nn][matvec]") {
  auto gate0 = test::make_vq(format::vq3r, 96, 64, Scales::ordinary, 4);
  auto gate1 = test::make_vq(format::vq3r, 96, 64, Scales::ordinary, 5);
  const auto up = test::make_vq(format::vq3r, 96, 64, Scales::ordinary, 6);
  gate1.view.codebooks = gate0.view.codebooks;
  const auto x = inputs(64);
  std::vector<float> direct(96), shared(96);
  VqTable table(kernels::Precision::exact, format::vq3r, 64);
  CHECK(code_of([&] { matvec(gate0.view, table, shared); }) == Errc::mismatch);
  table.build(gate0.view.codebooks, x);
  for (const VqMatrix* w : {&gate0.view, &gate1.view}) {
    matvec(*w, x, direct);
    matvec(*w, table, shared);
    CHECK(direct == shared);
  }
  CHECK(code_of([&] { matvec(up.view, table, shared); }) == Errc::mismatch);
}

TEST_CASE("sizes that do not fit are refused before anything is computed", "[nn][matvec]") {
  const auto vq = test::make_vq(format::vq2r, 10, 16, Scales::ordinary, 7);
  const auto trunk = test::make_trunk(format::Fmt::q8g, 10, 16, Scales::ordinary, 8);
  const auto x = inputs(17);
  std::vector<float> y(11);
  const auto in = [&](std::size_t n) { return std::span<const float>(x.data(), n); };
  const auto out = [&](std::size_t n) { return std::span<float>(y.data(), n); };
  CHECK(code_of([&] { matvec(vq.view, in(17), out(10)); }) == Errc::shape);
  CHECK(code_of([&] { matvec(vq.view, in(16), out(11)); }) == Errc::shape);
  CHECK(code_of([&] { matvec(trunk.view, in(15), out(10)); }) == Errc::shape);
  CHECK(code_of([&] { matvec(trunk.view, in(16), out(9)); }) == Errc::shape);
  CHECK(code_of([&] { matmul(trunk.view, {x.data(), 1, 15}, {y.data(), 1, 10}); }) == Errc::shape);
  CHECK(code_of([&] { matmul(trunk.view, {x.data(), 0, 16}, {y.data(), 1, 10}); }) == Errc::shape);
  CHECK(code_of([&] { dequantize_row(trunk.view, 10, out(10)); }) == Errc::out_of_range);
  CHECK(code_of([&] { dequantize_row(trunk.view, 9, out(11)); }) == Errc::shape);
  auto wrong = trunk.view;
  wrong.fmt = format::Fmt::vq3r;
  CHECK(code_of([&] { matvec(wrong, in(16), out(10)); }) == Errc::unsupported);
  CHECK(code_of([&] { VqTable(kernels::Precision::exact, format::vq3r, 12); }) == Errc::shape);
  auto nine = format::vq3r;
  nine.stages = 9;
  CHECK(code_of([&] { VqTable(kernels::Precision::exact, nine, 16); }) == Errc::out_of_range);
  VqTable table(kernels::Precision::exact, format::vq3r, 16);
  table.build(vq.view.codebooks, in(16));
  CHECK(code_of([&] { matvec(vq.view, table, out(10)); }) == Errc::shape);
}

TEST_CASE("empty matrices and one-element vectors are legal", "[nn][matvec]") {
  const auto trunk = test::make_trunk(format::Fmt::f32, 1, 1, Scales::ordinary, 9);
  std::vector<float> x = {2.0f}, y = {0.0f};
  matvec(trunk.view, x, y);
  CHECK(y[0] == 2.0f * load_le<float>(trunk.view.payload));
  auto none = trunk.view;
  none.n_rows = 0;
  matvec(none, x, std::span<float>());
}

TEST_CASE("many tokens through a VQ matrix: tables below the threshold, decoded from there on",
          "[nn][matvec]") {
  const std::size_t rows = 200, cols = 304;
  for (const auto precision : {kernels::Precision::exact, kernels::Precision::split8}) {
    const auto w = test::make_vq(format::vq3r, rows, cols, Scales::ordinary, 13);
    const auto x = inputs(9 * cols);
    Exec exec;
    exec.precision = precision;
    std::vector<float> all(9 * rows), some(9 * rows), one(rows);
    matmul(w.view, {x.data(), 9, cols}, {all.data(), 9, rows}, exec);
    for (const unsigned threads : {1u, 3u}) {
      exec.threads = threads;
      for (std::size_t tokens = 1; tokens <= 9; ++tokens) {
        matmul(w.view, {x.data(), tokens, cols}, {some.data(), tokens, rows}, exec);
        for (std::size_t t = 0; t < tokens; ++t) {
          const float* want = all.data() + t * rows;
          if (tokens < decode_from_tokens) {
            matvec(w.view, std::span(x).subspan(t * cols, cols), one, exec);
            want = one.data();
          }
          REQUIRE(std::equal(want, want + rows, some.data() + t * rows));
        }
      }
    }
  }
  const auto w = test::make_vq(format::vq3r, rows, cols, Scales::ordinary, 13);
  std::vector<float> x(cols), y(rows);
  CHECK(code_of([&] {
          matmul(w.view, {x.data(), 1, cols - 8}, {y.data(), 1, rows});
        }) == Errc::shape);
  CHECK(code_of([&] {
          matmul(w.view, {x.data(), 1, cols}, {y.data(), 1, rows - 1});
        }) == Errc::shape);
}

TEST_CASE("Eigen vectors and matrices go in and out", "[nn][matvec]") {
  const auto w = test::make_trunk(format::Fmt::q3g, 20, 40, Scales::ordinary, 10);
  const auto vq = test::make_vq(format::vq2r, 20, 40, Scales::ordinary, 11);
  const auto x = inputs(3 * 40);
  std::vector<float> want(20);
  const Eigen::Map<const RowMajorMatrix> tokens(x.data(), 3, 40);
  RowMajorMatrix y(3, 20);
  matmul(w.view, tokens, y);
  for (int t = 0; t < 3; ++t) {
    matvec(w.view, std::span(x).subspan(static_cast<std::size_t>(40 * t), 40), want);
    CHECK(std::equal(want.begin(), want.end(), y.row(t).data()));
    Eigen::VectorXf one(20);
    matvec(w.view, tokens.row(t), one);
    CHECK(std::equal(want.begin(), want.end(), one.data()));
    RowMajorMatrix rows(3, 20);
    matvec(w.view, tokens.row(t).transpose(), rows.row(1));
    CHECK(std::equal(want.begin(), want.end(), rows.row(1).data()));
    matvec(vq.view, std::span(x).subspan(static_cast<std::size_t>(40 * t), 40), want);
    matvec(vq.view, Eigen::VectorXf(tokens.row(t)), Eigen::Map<Eigen::VectorXf>(one.data(), 20));
    CHECK(std::equal(want.begin(), want.end(), one.data()));
  }
}

TEST_CASE("rows dequantize through the checked face", "[nn][matvec]") {
  const auto w = test::make_trunk(format::Fmt::q8g, 3, 200, Scales::mixed, 12);
  std::vector<float> got(200), want(600);
  quant::reference::dequantize(w.view, MatrixView<float>(want.data(), 3, 200));
  dequantize_row(w.view, 2, got);
  CHECK(std::equal(got.begin(), got.end(), want.begin() + 400));
}
