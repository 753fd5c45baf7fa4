// Every matrix kernel of every tier that runs here, against the slow reference and each other.
#include <cstring>

#include "support/bits_hash.hpp"
#include "support/catch.hpp"
#include "support/matrices.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/kernels/kernel_table.hpp"
#include "waste/quant/reference.hpp"

using namespace waste;
using format::Fmt;
using test::Scales;

namespace {

const Fmt trunk_formats[] = {Fmt::f32, Fmt::f16, Fmt::q8g, Fmt::q4g, Fmt::q3g};
const Scales every_scale[] = {Scales::ordinary, Scales::subnormal, Scales::zero, Scales::largest,
                              Scales::mixed};

bool fused(arch::Tier tier) {
#if defined(__aarch64__)
  return true;
#else
  return tier != arch::Tier::baseline;
#endif
}

/// x at an address that no vector alignment divides.
struct Input {
  explicit Input(std::size_t n, std::uint64_t seed) : storage(n + 1) {
    test::Random random(seed);
    for (std::size_t i = 0; i < n; ++i) storage[i + 1] = random.bell();
  }
  const float* data() const { return storage.data() + 1; }
  std::span<const float> span() const { return {data(), storage.size() - 1}; }
  std::vector<float> storage;
};

template <class Matrix>
void check_against_reference(const Matrix& w, std::span<const float> x, const std::vector<float>& y,
                             double tolerance) {
  std::vector<double> want(w.rows());
  quant::reference::matvec(w, x, want);
  for (std::size_t r = 0; r < w.rows(); ++r) {
    INFO("row " << r << " got " << y[r] << " want " << want[r]);
    const double magnitude = quant::reference::magnitude(w, x, r);
    REQUIRE(std::abs(y[r] - want[r]) <= tolerance * magnitude + 1e-40);
  }
}

/// Runs `product(kernels, y)` on every tier, checks each and requires == among the fused ones,
/// whose result it returns.
template <class Matrix, class Product>
std::vector<float> on_every_tier(const Matrix& w, std::span<const float> x, double tolerance,
                                 const Product& product) {
  std::vector<float> first;
  for (const arch::Tier tier : arch::runnable_tiers()) {
    INFO(arch::to_string(tier));
    std::vector<float> y(w.rows(), -777.0f);
    product(*kernels::kernel_table(tier).matrix, y.data());
    check_against_reference(w, x, y, tolerance);
    if (!fused(tier)) continue;
    if (first.empty()) first = y;
    REQUIRE(y == first);
  }
  return first;
}

}  // namespace

TEST_CASE("trunk products agree with the reference and across tiers", "[kernels][trunk]") {
  std::uint64_t seed = 1;
  test::BitsHash hash;
  for (const Fmt fmt : trunk_formats) {
    for (const std::size_t rows : {1, 3, 4, 5, 63, 64, 65}) {
      for (const std::size_t cols : {1, 7, 16, 31, 32, 33, 127, 128, 129, 160, 300}) {
        const Scales scales = every_scale[seed % 5];
        const auto c = test::make_trunk(fmt, rows, cols, scales, seed++);
        const Input x(cols, seed);
        INFO(c.name);
        hash.add(on_every_tier(c.view, x.span(), 2e-7, [&](const auto& k, float* y) {
          k.trunk_matvec(c.view, x.data(), y, 0, rows);
        }));
      }
    }
  }
  CAPTURE(hash.value());
  REQUIRE(hash.is(0xe7950466a6cf4008));
}

TEST_CASE("trunk products hold over a million columns", "[kernels][trunk][native]") {
  for (const Fmt fmt : trunk_formats) {
    const std::size_t cols = (1 << 20) - 40;
    const auto c = test::make_trunk(fmt, 2, cols, Scales::ordinary, 9);
    const Input x(cols, 10);
    INFO(c.name);
    on_every_tier(c.view, x.span(), 2e-7,
                  [&](const auto& k, float* y) { k.trunk_matvec(c.view, x.data(), y, 0, 2); });
  }
}

TEST_CASE("a trunk product of a row range writes that range only", "[kernels][trunk]") {
  const auto c = test::make_trunk(Fmt::q4g, 40, 200, Scales::ordinary, 5);
  const Input x(200, 6);
  for (const arch::Tier tier : arch::runnable_tiers()) {
    const auto& k = *kernels::kernel_table(tier).matrix;
    std::vector<float> whole(40), part(40, 5.0f);
    k.trunk_matvec(c.view, x.data(), whole.data(), 0, 40);
    k.trunk_matvec(c.view, x.data(), part.data(), 7, 29);
    for (std::size_t r = 0; r < 40; ++r) {
      REQUIRE(part[r] == (r >= 7 && r < 29 ? whole[r] : 5.0f));
    }
  }
}

TEST_CASE("trunk products of many tokens equal those of one", "[kernels][trunk]") {
  std::uint64_t seed = 100;
  for (const arch::Tier tier : arch::runnable_tiers()) {
    const auto& k = *kernels::kernel_table(tier).matrix;
    for (const Fmt fmt : trunk_formats) {
      for (const std::size_t tokens : {1, 2, 3, 15, 16, 17, 40}) {
        for (const std::size_t cols : {24, 128, 300}) {
          const std::size_t rows = 13, ldx = cols + 5, ldy = rows + 3;
          const auto c = test::make_trunk(fmt, rows, cols, Scales::mixed, seed++);
          const Input x(tokens * ldx, seed);
          std::vector<float> y(tokens * ldy, 3.0f), one(rows);
          INFO(arch::to_string(tier) << " " << c.name << " tokens " << tokens);
          k.trunk_matmul(c.view, x.data(), ldx, tokens, y.data(), ldy, 0, rows);
          for (std::size_t t = 0; t < tokens; ++t) {
            k.trunk_matvec(c.view, x.data() + t * ldx, one.data(), 0, rows);
            REQUIRE(std::memcmp(one.data(), y.data() + t * ldy, rows * sizeof(float)) == 0);
            REQUIRE(y[t * ldy + rows] == 3.0f);
          }
        }
      }
    }
  }
}

TEST_CASE("trunk rows dequantize to the last bit", "[kernels][trunk]") {
  std::uint64_t seed = 200;
  for (const arch::Tier tier : arch::runnable_tiers()) {
    const auto& k = *kernels::kernel_table(tier).matrix;
    for (const Fmt fmt : trunk_formats) {
      for (const std::size_t cols : {1, 15, 128, 129, 255, 400}) {
        const auto c = test::make_trunk(fmt, 5, cols, Scales::mixed, seed++);
        INFO(arch::to_string(tier) << " " << c.name);
        std::vector<float> want(5 * cols), got(cols + 1, 9.0f);
        quant::reference::dequantize(c.view, MatrixView<float>(want.data(), 5, cols));
        for (std::size_t r = 0; r < 5; ++r) {
          k.trunk_row(c.view, r, got.data());
          REQUIRE(std::equal(want.begin() + static_cast<std::ptrdiff_t>(r * cols),
                             want.begin() + static_cast<std::ptrdiff_t>((r + 1) * cols),
                             got.begin()));
          REQUIRE(got[cols] == 9.0f);
        }
      }
    }
  }
}

TEST_CASE("f16 trunk values keep subnormals and infinities", "[kernels][trunk]") {
  std::vector<std::uint8_t> payload(2 * 65536);
  for (std::size_t i = 0; i < 65536; ++i) {
    store_le<std::uint16_t>(payload.data() + 2 * i, static_cast<std::uint16_t>(i));
  }
  const TrunkMatrix w{Fmt::f16, payload.data(), nullptr, 256, 256};
  for (const arch::Tier tier : arch::runnable_tiers()) {
    const auto& k = *kernels::kernel_table(tier).matrix;
    std::vector<float> got(256);
    for (std::size_t r = 0; r < 256; ++r) {
      k.trunk_row(w, r, got.data());
      for (std::size_t c = 0; c < 256; ++c) {
        const auto bits = static_cast<std::uint16_t>(256 * r + c);
        const float want = f16_to_f32(bits);
        if (std::isnan(want)) {
          REQUIRE(std::isnan(got[c]));
        } else {
          REQUIRE(std::memcmp(&got[c], &want, 4) == 0);
        }
      }
    }
  }
}

TEST_CASE("exact tables hold the inner products", "[kernels][vq]") {
  for (const auto& quant : test::every_quant(64)) {
    for (const std::size_t cols : {8, 256, 264, 520}) {
      const auto c = test::make_vq(quant, 1, cols, Scales::ordinary, cols);
      const Input x(cols, 3);
      const std::size_t entries = c.view.table_entries(), floats = quant.stages * entries;
      std::vector<float> first;
      for (const arch::Tier tier : arch::runnable_tiers()) {
        INFO(arch::to_string(tier) << " " << c.name);
        const kernels::TableLayout layout(kernels::Precision::exact, quant, cols);
        REQUIRE(layout.bytes() == cols / 8 * floats * 4);
        AlignedBuffer<float> table(layout.bytes() / 4, 64);
        const auto& k = *kernels::kernel_table(tier).matrix;
        // The last chunk first: chunks are independent.
        for (std::size_t chunk = layout.chunks; chunk-- > 0;) {
          k.vq_table_build(kernels::Precision::exact, quant, c.view.codebooks, x.data(), cols,
                           table.data(), chunk, chunk + 1);
        }
        for (std::size_t v = 0; v < cols / 8; ++v) {
          for (std::size_t e = 0; e < floats; ++e) {
            double want = 0, magnitude = 0;
            for (std::size_t d = 0; d < 8; ++d) {
              const double p = double{x.data()[8 * v + d]} * c.view.codebooks[8 * e + d];
              want += p;
              magnitude += std::abs(p);
            }
            REQUIRE(std::abs(table[v * floats + e] - want) <= 5e-7 * magnitude + 1e-40);
          }
        }
        if (!fused(tier)) continue;
        if (first.empty()) first.assign(table.begin(), table.end());
        REQUIRE(std::equal(table.begin(), table.end(), first.begin()));
      }
    }
  }
}

namespace {

auto vq_product(const test::VqCase& c, const float* x, kernels::Precision precision) {
  return [&c, x, precision](const kernels::MatrixKernels& k, float* y) {
    const auto& w = c.view;
    const kernels::TableLayout layout(precision, w.quant, w.n_cols);
    AlignedBuffer<std::uint8_t> table(layout.bytes(), 64);
    k.vq_table_build(precision, w.quant, w.codebooks, x, w.n_cols, table.data(), 0, layout.chunks);
    k.vq_matvec(precision, w, table.data(), y, 0, w.n_rows);
  };
}

}  // namespace

TEST_CASE("exact VQ products agree with the reference and across tiers", "[kernels][vq]") {
  std::uint64_t seed = 300;
  test::BitsHash hash;
  for (const std::uint32_t block : {64u, 0u}) {
    for (const auto& quant : test::every_quant(block)) {
      for (const std::size_t rows : {1, 63, 64, 65, 96, 130}) {
        for (const std::size_t cols : {8, 40, 256, 264}) {
          const auto c = test::make_vq(quant, rows, cols, every_scale[seed % 5], seed);
          const Input x(cols, ++seed);
          INFO(c.name);
          hash.add(on_every_tier(c.view, x.span(), 1e-6,
                                 vq_product(c, x.data(), kernels::Precision::exact)));
        }
      }
    }
  }
  CAPTURE(hash.value());
  REQUIRE(hash.is(0x9465e474f6b8b487));
}

TEST_CASE("exact VQ products hold over a million columns", "[kernels][vq][native]") {
  const std::size_t cols = std::size_t{1} << 20;
  for (const auto& quant : {format::vq2r, format::vq4p}) {
    const auto c = test::make_vq(quant, 2, cols, Scales::ordinary, 5);
    const Input x(cols, 6);
    on_every_tier(c.view, x.span(), 1e-6, vq_product(c, x.data(), kernels::Precision::exact));
  }
}

namespace {

/// Half a step for every lookup of a row: no rounding of table entries can move its sum further.
double worst_case(kernels::Precision precision, const format::ExpertQuant& quant,
                  const kernels::TableLayout& layout, const std::uint8_t* table) {
  const bool split = precision == kernels::Precision::split8;
  const double first = split ? (quant.stages <= 4 ? 1 : 2) : 0, second = quant.stages - first;
  double sum = 0;
  for (std::size_t c = 0; c < layout.chunks; ++c) {
    kernels::ChunkSteps steps;
    std::memcpy(&steps, table + c * sizeof steps, sizeof steps);
    const double n = static_cast<double>(std::min<std::size_t>(32, layout.positions - 32 * c));
    sum += n * 0.5 * (first * steps.steps[0] + second * steps.steps[1]);
  }
  return sum;
}

}  // namespace

TEST_CASE("byte tables stay within half a step a lookup, and agree across tiers", "[kernels][vq]") {
  std::uint64_t seed = 900;
  test::BitsHash hash;
  for (const auto precision : {kernels::Precision::split8, kernels::Precision::hilo14}) {
    for (const std::uint32_t block : {64u, 0u}) {
      for (const auto& quant : test::every_quant(block)) {
        for (const std::size_t rows : {1, 63, 64, 65, 96, 130, 200}) {
          for (const std::size_t cols : {8, 40, 256, 264}) {
            const auto c = test::make_vq(quant, rows, cols, every_scale[seed % 5], seed);
            const auto& w = c.view;
            const Input x(cols, ++seed);
            INFO(c.name << (precision == kernels::Precision::split8 ? " split8" : " hilo14"));
            std::vector<double> want(rows);
            quant::reference::matvec(w, x.span(), want);
            std::vector<float> first;
            for (const arch::Tier tier : arch::runnable_tiers()) {
              INFO(arch::to_string(tier));
              const auto& k = *kernels::kernel_table(tier).matrix;
              std::vector<float> y(rows, -777.0f);
              const kernels::TableLayout layout(precision, quant, cols);
              AlignedBuffer<std::uint8_t> table(layout.bytes(), 64);
              k.vq_table_build(precision, quant, w.codebooks, x.data(), cols, table.data(), 0,
                               layout.chunks);
              k.vq_matvec(precision, w, table.data(), y.data(), 0, rows);
              const double bound = worst_case(precision, quant, layout, table.data());
              for (std::size_t r = 0; r < rows; ++r) {
                INFO("row " << r << " got " << y[r] << " want " << want[r]);
                const double slack = 2e-6 * quant::reference::magnitude(w, x.span(), r) + 1e-40;
                REQUIRE(std::abs(y[r] - want[r]) <= w.scale(r) * bound * 1.001 + slack);
              }
              if (!fused(tier)) continue;
              if (first.empty()) first = y;
              REQUIRE(y == first);
            }
            hash.add(first);
          }
        }
      }
    }
  }
  CAPTURE(hash.value());
  REQUIRE(hash.is(0x169417eb9badd631));
}

TEST_CASE("byte tables err by no more than their precision's share", "[kernels][vq]") {
  for (const auto& quant : test::every_quant(64)) {
    const std::size_t rows = 256, cols = 2304;
    const auto c = test::make_vq(quant, rows, cols, Scales::ordinary, 21);
    const Input x(cols, 22);
    std::vector<double> want(rows);
    quant::reference::matvec(c.view, x.span(), want);
    const auto relative_error = [&](kernels::Precision precision, arch::Tier tier) {
      std::vector<float> y(rows);
      vq_product(c, x.data(), precision)(*kernels::kernel_table(tier).matrix, y.data());
      double error = 0, norm = 0;
      for (std::size_t r = 0; r < rows; ++r) {
        error += (y[r] - want[r]) * (y[r] - want[r]);
        norm += want[r] * want[r];
      }
      return std::sqrt(error / norm);
    };
    for (const arch::Tier tier : arch::runnable_tiers()) {
      INFO(arch::to_string(tier) << " " << c.name);
      CHECK(relative_error(kernels::Precision::exact, tier) < 1e-6);
      CHECK(relative_error(kernels::Precision::hilo14, tier) < (quant.stages <= 4 ? 6e-4 : 2e-3));
      CHECK(relative_error(kernels::Precision::split8, tier) < 0.03);
      // They round, so they cannot be exact: a path that silently computed exactly would show.
      CHECK(relative_error(kernels::Precision::hilo14, tier) > 1e-6);
      CHECK(relative_error(kernels::Precision::split8, tier) > 1e-4);
    }
  }
}

TEST_CASE("byte tables sum the same integers on every tier", "[kernels][vq]") {
  // Small integers: every LUT entry is exact without fused multiply-add too, and so are the codes.
  for (const auto precision : {kernels::Precision::split8, kernels::Precision::hilo14}) {
    for (const auto& quant : test::every_quant(64)) {
      auto c = test::make_vq(quant, 130, 2048, Scales::ordinary, 31);
      test::Random random(32);
      for (float& v : c.codebooks) v = static_cast<float>(random.below(17)) - 8.0f;
      std::vector<float> x(2048), first;
      for (float& v : x) v = static_cast<float>(random.below(17)) - 8.0f;
      for (const arch::Tier tier : arch::runnable_tiers()) {
        INFO(arch::to_string(tier) << " " << c.name);
        std::vector<float> y(130);
        vq_product(c, x.data(), precision)(*kernels::kernel_table(tier).matrix, y.data());
        if (first.empty()) first = y;
        for (std::size_t r = 0; r < 130; ++r) {
          // 1e-5 of a sum's typical size is far below what one integer more or less would do.
          REQUIRE(std::abs(y[r] - first[r]) <= 1e-5f * c.view.scale(r) * 5000.0f);
        }
      }
    }
  }
}

TEST_CASE("byte tables of inputs that have no range are exact", "[kernels][vq]") {
  for (const auto precision : {kernels::Precision::split8, kernels::Precision::hilo14}) {
    for (const auto& quant : test::every_quant(64)) {
      auto c = test::make_vq(quant, 70, 264, Scales::ordinary, 41);
      for (const arch::Tier tier : arch::runnable_tiers()) {
        INFO(arch::to_string(tier) << " " << c.name);
        const auto& k = *kernels::kernel_table(tier).matrix;
        std::vector<float> x(264, 0.0f), y(70, 1.0f);
        vq_product(c, x.data(), precision)(k, y.data());
        REQUIRE(y == std::vector<float>(70, 0.0f));
        // One vector for all entries of a stage: the minimum carries everything.
        auto flat = test::make_vq(quant, 70, 264, Scales::ordinary, 41);
        for (std::size_t i = 0; i < flat.codebooks.size(); ++i) {
          flat.codebooks[i] = static_cast<float>(i % 8);
        }
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 3);
        vq_product(flat, x.data(), precision)(k, y.data());
        double want = 0;
        for (std::size_t i = 0; i < x.size(); ++i)
          want += double{x[i]} * static_cast<double>(i % 8);
        for (std::size_t r = 0; r < 70; ++r) {
          REQUIRE(y[r] == Approx(flat.view.scale(r) * want * quant.stages).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("fast VQ products hold over a million columns", "[kernels][vq][native]") {
  // All indices at the largest code of each stage: the 16-bit sums come as close to overflow as
  // they can.
  const std::size_t cols = std::size_t{1} << 20;
  for (const auto precision : {kernels::Precision::split8, kernels::Precision::hilo14}) {
    for (const auto& quant : {format::vq2r, format::vq3r, format::vq4p}) {
      auto c = test::make_vq(quant, 2, cols, Scales::ordinary, 5);
      const std::size_t entries = c.view.table_entries();
      for (std::size_t s = 0; s < quant.stages; ++s) {
        for (std::size_t i = 0; i < entries * 8; ++i) {
          c.codebooks[s * entries * 8 + i] = i / 8 == entries - 1 ? 1.0f : -1.0f;
        }
      }
      std::fill(c.indices.begin(), c.indices.end(), std::uint8_t{0xff});
      const std::vector<float> x(cols, 1.0f);
      for (const arch::Tier tier : arch::runnable_tiers()) {
        INFO(arch::to_string(tier) << " " << c.name);
        std::vector<float> y(2);
        vq_product(c, x.data(), precision)(*kernels::kernel_table(tier).matrix, y.data());
        const double want = static_cast<double>(cols) * quant.stages;
        for (std::size_t r = 0; r < 2; ++r) {
          REQUIRE(std::abs(y[r] / c.view.scale(r) - want) <= 0.01 * want);
        }
      }
    }
  }
}

// More rows than are swept together (4096), in blocks that no tier's groups of blocks divide, and
// more positions than are looked up together.
TEST_CASE("VQ products of thousands of rows agree across tiers and with parts", "[kernels][vq]") {
  constexpr std::size_t rows = 4096 + 7 * 64 + 5, cols = 8 * 77;
  for (const auto& quant : test::every_quant(64)) {
    const auto c = test::make_vq(quant, rows, cols, Scales::mixed, 21);
    const Input x(cols, 22);
    const auto& w = c.view;
    std::vector<double> want(rows);
    quant::reference::matvec(w, x.span(), want);
    for (const auto precision :
         {kernels::Precision::exact, kernels::Precision::hilo14, kernels::Precision::split8}) {
      std::vector<float> first;
      for (const arch::Tier tier : arch::runnable_tiers()) {
        INFO(arch::to_string(tier) << " " << c.name);
        const auto& k = *kernels::kernel_table(tier).matrix;
        const kernels::TableLayout layout(precision, quant, cols);
        AlignedBuffer<std::uint8_t> table(layout.bytes(), 64);
        k.vq_table_build(precision, quant, w.codebooks, x.data(), cols, table.data(), 0,
                         layout.chunks);
        std::vector<float> y(rows + 1, 5.0f);
        k.vq_matvec(precision, w, table.data(), y.data(), 0, rows);
        REQUIRE(y.back() == 5.0f);
        const bool exact = precision == kernels::Precision::exact;
        const double bound = exact ? 0 : 1.001 * worst_case(precision, quant, layout, table.data());
        for (std::size_t r = 0; r < rows; r += 7) {
          INFO("row " << r << " got " << y[r] << " want " << want[r]);
          const double rounding = exact ? 1e-6 : 2e-6;
          const double slack = rounding * quant::reference::magnitude(w, x.span(), r) + 1e-40;
          REQUIRE(std::abs(y[r] - want[r]) <= w.scale(r) * bound + slack);
        }
        std::vector<float> parts(rows + 1, 5.0f);
        for (const auto& [begin, end] :
             {std::pair<std::size_t, std::size_t>{0, 64}, {64, 320}, {320, 4096}, {4096, rows}}) {
          k.vq_matvec(precision, w, table.data(), parts.data(), begin, end);
        }
        REQUIRE(parts == y);
        if (!fused(tier)) continue;
        if (first.empty()) first = y;
        REQUIRE(y == first);
      }
    }
  }
}

TEST_CASE("a VQ product of a row range equals the whole one's rows", "[kernels][vq]") {
  for (const auto precision :
       {kernels::Precision::exact, kernels::Precision::split8, kernels::Precision::hilo14}) {
    for (const std::uint32_t block : {64u, 0u}) {
      for (const auto& quant : test::every_quant(block)) {
        const auto c = test::make_vq(quant, 200, 328, Scales::mixed, 11);
        const Input x(328, 12);
        const auto& w = c.view;
        for (const arch::Tier tier : arch::runnable_tiers()) {
          INFO(arch::to_string(tier) << " " << c.name);
          const auto& k = *kernels::kernel_table(tier).matrix;
          std::vector<float> whole(200), part(200, 5.0f);
          vq_product(c, x.data(), precision)(k, whole.data());
          const kernels::TableLayout layout(precision, quant, w.n_cols);
          AlignedBuffer<std::uint8_t> table(layout.bytes(), 64);
          k.vq_table_build(precision, quant, w.codebooks, x.data(), w.n_cols, table.data(), 0,
                           layout.chunks);
          k.vq_matvec(precision, w, table.data(), part.data(), 64, 128);
          REQUIRE(part[63] == 5.0f);
          REQUIRE(part[128] == 5.0f);
          k.vq_matvec(precision, w, table.data(), part.data(), 128, 200);
          k.vq_matvec(precision, w, table.data(), part.data(), 0, 64);
          REQUIRE(part == whole);
        }
      }
    }
  }
}
