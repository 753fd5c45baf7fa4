// Kernels beside the lookups: many tokens through a decoded VQ matrix, narrow floats to f32.
#include <cstring>

#include "support/bits_hash.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/matrices.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/kernels/kernel_table.hpp"
#include "waste/quant/reference.hpp"

using namespace waste;
using test::Scales;

TEST_CASE("many tokens through a VQ matrix agree with the reference and across tiers",
          "[kernels][vq]") {
  std::uint64_t seed = 1;
  test::BitsHash hash;
  for (const std::uint32_t block : {64u, 0u}) {
    for (const auto& quant : test::every_quant(block)) {
      for (const std::size_t rows : {1, 5, 63, 64, 65, 130}) {
        for (const std::size_t cols : {8, 120, 128, 264}) {
          const std::size_t tokens = seed % 5 == 0 ? 33 : 1 + seed % 4, ldx = cols + 3;
          const std::size_t ldy = rows + 2;
          const auto scales = static_cast<Scales>(seed % 5);
          const auto c = test::make_vq(quant, rows, cols, scales, seed);
          const auto x = test::Random(++seed).bells(tokens * ldx + 1);
          INFO(c.name << " tokens " << tokens);
          std::vector<float> first;
          for (const arch::Tier tier : arch::runnable_tiers()) {
            INFO(arch::to_string(tier));
            const auto& k = *kernels::kernel_table(tier).matrix;
            std::vector<float> y(tokens * ldy, 9.0f), alone(rows);
            k.vq_matmul(c.view, x.data() + 1, ldx, tokens, y.data(), ldy, 0, rows);
            for (std::size_t t = 0; t < tokens; ++t) {
              const std::span<const float> xt(x.data() + 1 + t * ldx, cols);
              std::vector<double> want(rows);
              quant::reference::matvec(c.view, xt, want);
              for (std::size_t r = 0; r < rows; ++r) {
                const double magnitude = quant::reference::magnitude(c.view, xt, r);
                REQUIRE(std::abs(y[t * ldy + r] - want[r]) <= 3e-7 * magnitude + 1e-40);
              }
              REQUIRE(y[t * ldy + rows] == 9.0f);
              // A token's numbers do not depend on its company.
              k.vq_matmul(c.view, xt.data(), ldx, 1, alone.data(), rows, 0, rows);
              REQUIRE(std::memcmp(alone.data(), &y[t * ldy], rows * sizeof(float)) == 0);
            }
#if !defined(__aarch64__)
            if (tier == arch::Tier::baseline) continue;
#endif
            if (first.empty()) first = y;
            REQUIRE(y == first);
          }
          hash.add(first);
        }
      }
    }
  }
  CAPTURE(hash.value());
  REQUIRE(hash.is(0xe88e887d2a66269c));
}

TEST_CASE("narrow floats become f32 exactly", "[kernels][convert]") {
  std::vector<std::uint8_t> bits(2 * 65536 + 1);
  for (std::size_t i = 0; i < 65536; ++i) {
    store_le<std::uint16_t>(bits.data() + 1 + 2 * i, static_cast<std::uint16_t>(i));
  }
  for (const arch::Tier tier : arch::runnable_tiers()) {
    INFO(arch::to_string(tier));
    const auto& k = *kernels::kernel_table(tier).matrix;
    for (const bool bf16 : {false, true}) {
      std::vector<float> got(65537, 5.0f);
      (bf16 ? k.bf16_to_f32 : k.f16_to_f32)(bits.data() + 1, 65536, got.data());
      REQUIRE(got[65536] == 5.0f);
      for (std::size_t i = 0; i < 65536; ++i) {
        const auto half = static_cast<std::uint16_t>(i);
        const float want = bf16 ? bf16_to_f32(half) : f16_to_f32(half);
        if (std::isnan(want)) {
          REQUIRE(std::isnan(got[i]));
        } else {
          REQUIRE(std::memcmp(&got[i], &want, 4) == 0);
        }
      }
      for (std::size_t n = 0; n < 40; ++n) {
        std::vector<float> part(n + 1, 5.0f);
        (bf16 ? k.bf16_to_f32 : k.f16_to_f32)(bits.data() + 1, n, part.data());
        REQUIRE(std::equal(part.begin(), part.end() - 1, got.begin()));
        REQUIRE(part[n] == 5.0f);
      }
    }
  }
}

TEST_CASE("MXFP4 rows decode as the golden files say, every nibble and scale",
          "[kernels][convert]") {
  const auto g = test::read_golden("units");
  const std::size_t count = std::stoul(g.metadata.at("mxfp4/count"));
  const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (const arch::Tier tier : arch::runnable_tiers()) {
    INFO(arch::to_string(tier));
    const auto& k = *kernels::kernel_table(tier).matrix;
    for (std::size_t n = 0; n < count; ++n) {
      const std::string at = "mxfp4." + std::to_string(n) + "/";
      const auto& shape = g[at + "y"].shape;
      const auto packed = g.get<std::uint8_t>(at + "packed"),
                 scale = g.get<std::uint8_t>(at + "scale");
      const auto want = g.get<float>(at + "y");
      for (std::size_t r = 0; r < shape[0]; ++r) {
        std::vector<float> got(shape[1]);
        k.mxfp4_row(packed.data() + r * shape[1] / 2, scale.data() + r * shape[1] / 32, shape[1],
                    got.data());
        REQUIRE(std::equal(got.begin(), got.end(),
                           want.begin() + static_cast<std::ptrdiff_t>(r * shape[1])));
      }
    }
    for (unsigned e = 0; e < 255; ++e) {
      std::uint8_t packed[16];
      for (unsigned i = 0; i < 16; ++i) packed[i] = static_cast<std::uint8_t>(i * 17);
      const auto scale = static_cast<std::uint8_t>(e);
      float got[32];
      k.mxfp4_row(packed, &scale, 32, got);
      for (unsigned i = 0; i < 32; ++i) {
        const unsigned nibble = i / 2;
        const double want =
            e == 0 ? 0.0 : std::ldexp(values[nibble & 7], static_cast<int>(e) - 127);
        REQUIRE(std::signbit(got[i]) == (nibble >= 8));
        REQUIRE(std::abs(got[i]) == static_cast<float>(want));
      }
    }
  }
}
