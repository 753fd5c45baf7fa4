// binary16 and bfloat16 against arithmetic in double, over every pattern.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/core/half.hpp"

namespace {

using waste::bf16_to_f32;
using waste::f16_is_finite;
using waste::f16_to_f32;
using waste::f32_to_bf16;
using waste::f32_to_f16;
using waste::test::half_bits;
using waste::test::half_value;

float next(float x, float towards) { return std::nextafterf(x, towards); }
constexpr float infinity = std::numeric_limits<float>::infinity();

TEST_CASE("every binary16 pattern has its value", "[half]") {
  std::size_t wrong = 0;
  for (std::uint32_t b = 0; b < 65536; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    const double want = half_value(bits);
    const float got = f16_to_f32(bits);
    const bool same = std::isnan(want) ? std::isnan(got)
                                       : static_cast<double>(got) == want &&
                                             std::signbit(got) == std::signbit(want);
    wrong += same ? 0 : 1;
    wrong += f16_is_finite(bits) == std::isfinite(want) ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(f16_to_f32(0x0001) == 0x1p-24f);
  CHECK(f16_to_f32(0x7bff) == 65504.f);
}

TEST_CASE("NaN payloads survive the way to binary32 and back", "[half]") {
  for (const std::uint16_t bits : {0x7e00, 0x7e01, 0xfe55, 0x7fff}) {
    CHECK(f32_to_f16(f16_to_f32(bits)) == bits);
  }
  // A signalling pattern becomes quiet, never infinity.
  CHECK(f32_to_f16(std::bit_cast<float>(0x7f800001u)) == 0x7e00);
}

TEST_CASE("every finite binary16 value converts back to itself", "[half]") {
  std::size_t wrong = 0;
  for (std::uint32_t b = 0; b < 65536; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    if (f16_is_finite(bits) && f32_to_f16(f16_to_f32(bits)) != bits) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("rounding to binary16 is to nearest, ties to even, at every midpoint", "[half]") {
  std::size_t wrong = 0;
  for (std::uint32_t b = 0; b < 0x7bff; ++b) {
    const double low = half_value(static_cast<std::uint16_t>(b));
    const double high = half_value(static_cast<std::uint16_t>(b + 1));
    const auto middle = static_cast<float>((low + high) / 2);  // exact: 12 significant bits
    for (const float x : {middle, next(middle, 0.f), next(middle, infinity)}) {
      wrong += f32_to_f16(x) == half_bits(static_cast<double>(x)) ? 0 : 1;
      wrong += f32_to_f16(-x) == half_bits(static_cast<double>(-x)) ? 0 : 1;
    }
    wrong += f32_to_f16(middle) == (b % 2 == 0 ? b : b + 1) ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(f32_to_f16(65519.996f) == 0x7bff);
  CHECK(f32_to_f16(65520.f) == 0x7c00);
  CHECK(f32_to_f16(infinity) == 0x7c00);
  CHECK(f32_to_f16(-infinity) == 0xfc00);
  CHECK(f32_to_f16(0x1p-25f) == 0);  // a tie with zero, which is even
  CHECK(f32_to_f16(next(0x1p-25f, 1.f)) == 1);
  CHECK(f32_to_f16(-0.f) == 0x8000);
  CHECK(f32_to_f16(std::numeric_limits<float>::denorm_min()) == 0);
}

TEST_CASE("rounding to binary16 over all exponents of binary32", "[half]") {
  std::size_t wrong = 0;
  for (std::uint64_t i = 0; i < (std::uint64_t{1} << 32); i += 9973) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(i));
    if (std::isnan(x)) continue;
    wrong += f32_to_f16(x) == half_bits(static_cast<double>(x)) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("binary16 conversions equal the oracle's", "[half][golden]") {
  const auto golden = waste::test::read_golden("units");
  const auto count = std::stoul(golden.metadata.at("f32_to_f16/count"));
  REQUIRE(count > 0);
  for (std::size_t n = 0; n < count; ++n) {
    const std::string at = "f32_to_f16." + std::to_string(n);
    const auto x = golden.get<float>(at + "/x");
    const auto bits = golden.get<std::uint16_t>(at + "/bits");
    REQUIRE(x.size() == bits.size());
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(f32_to_f16(x[i]) == bits[i]);
  }
  const auto bits = golden.get<std::uint16_t>("f16_to_f32.0/bits");
  const auto y = golden.get<float>("f16_to_f32.0/y");
  REQUIRE(bits.size() > 400);
  for (std::size_t i = 0; i < bits.size(); ++i) REQUIRE(f16_to_f32(bits[i]) == y[i]);
}

TEST_CASE("bfloat16 conversions equal the oracle's and round to even", "[half][golden]") {
  const auto golden = waste::test::read_golden("units");
  const auto x = golden.get<float>("f32_to_bf16.0/x");
  const auto bits = golden.get<std::uint16_t>("f32_to_bf16.0/bits");
  const auto y = golden.get<float>("f32_to_bf16.0/y");
  REQUIRE(!x.empty());
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE(f32_to_bf16(x[i]) == bits[i]);
    REQUIRE(bf16_to_f32(bits[i]) == y[i]);
  }
  CHECK(f32_to_bf16(std::bit_cast<float>(0x3f808000u)) == 0x3f80);  // tie, even below
  CHECK(f32_to_bf16(std::bit_cast<float>(0x3f818000u)) == 0x3f82);  // tie, even above
  CHECK(f32_to_bf16(std::bit_cast<float>(0x7f7fffffu)) == 0x7f80);  // rounds to infinity
  CHECK(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(f32_to_bf16(-infinity) == 0xff80);
}

TEST_CASE("little-endian loads and stores work at any address", "[half]") {
  std::uint8_t bytes[12] = {};
  for (std::size_t at = 0; at < 5; ++at) {
    waste::store_le<std::uint32_t>(bytes + at, 0x04030201u);
    CHECK(bytes[at] == 1);
    CHECK(bytes[at + 3] == 4);
    CHECK(waste::load_le<std::uint32_t>(bytes + at) == 0x04030201u);
    CHECK(waste::load_le<std::uint16_t>(bytes + at + 1) == 0x0302u);
  }
}

}  // namespace
