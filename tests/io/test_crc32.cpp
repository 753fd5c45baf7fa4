#include <zlib.h>

#include <cstring>

#include "support/catch.hpp"
#include "support/matrices.hpp"
#include "waste/arch/detail/crc32_poly.hpp"
#include "waste/io/crc32.hpp"

using namespace waste;

namespace {

std::vector<std::uint8_t> random_bytes(std::size_t n) {
  test::Random random(n + 1);
  std::vector<std::uint8_t> out(n);
  for (auto& b : out) b = static_cast<std::uint8_t>(random.bits() >> 13);
  return out;
}

std::uint32_t by_zlib(std::span<const std::uint8_t> bytes, std::uint32_t crc = 0) {
  return static_cast<std::uint32_t>(
      ::crc32(crc, bytes.data(), static_cast<unsigned>(bytes.size())));
}

}  // namespace

TEST_CASE("crc32 gives the published check value", "[io][crc32]") {
  const char* text = "123456789";
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(text), 9);
  CHECK(io::crc32(bytes) == 0xcbf43926u);
  CHECK(io::crc32({}) == 0u);
  CHECK(io::crc32({}, 0x12345678u) == 0x12345678u);
}

TEST_CASE("every crc32 kernel of this CPU equals zlib on every short length and alignment",
          "[io][crc32]") {
  const auto bytes = random_bytes(1200 + 64);
  REQUIRE(io::crc32_kernels().front().name == std::string("slice8"));
  for (const auto& kernel : io::crc32_kernels()) {
    INFO(kernel.name);
    for (std::size_t n = 0; n <= 1100; ++n) {
      for (const std::size_t shift : {n % 64, (n * 7 + 3) % 64}) {
        const auto part = std::span(bytes).subspan(shift, n);
        REQUIRE(kernel.update(part, 0) == by_zlib(part));
      }
    }
    for (std::size_t shift = 0; shift < 64; ++shift) {
      for (const std::size_t n : {15, 64, 255, 256, 257, 511, 512, 1024, 1199}) {
        const auto part = std::span(bytes).subspan(shift, n);
        REQUIRE(kernel.update(part, 0xdeadbeefu) == by_zlib(part, 0xdeadbeefu));
      }
    }
  }
}

TEST_CASE("crc32 kernels read nothing outside their bytes", "[io][crc32]") {
  for (const auto& kernel : io::crc32_kernels()) {
    for (const std::size_t n : {0, 1, 15, 16, 63, 64, 65, 255, 256, 300, 600}) {
      // An allocation of exactly n bytes: a sanitizer sees one byte too many.
      const auto bytes = random_bytes(n);
      REQUIRE(kernel.update(bytes, 0) == by_zlib(bytes));
    }
  }
}

TEST_CASE("crc32 of large and special inputs equals zlib's", "[io][crc32]") {
  auto bytes = random_bytes((std::size_t{1} << 20) + 77);
  for (const auto& kernel : io::crc32_kernels()) {
    INFO(kernel.name);
    CHECK(kernel.update(bytes, 0) == by_zlib(bytes));
    for (const std::uint8_t fill : {0x00, 0xff}) {
      const std::vector<std::uint8_t> flat(100000, fill);
      CHECK(kernel.update(flat, 0) == by_zlib(flat));
    }
  }
  bytes[500000] ^= 1;
  const std::uint32_t changed = io::crc32(bytes);
  bytes[500000] ^= 1;
  CHECK(changed != io::crc32(bytes));
}

TEST_CASE("crc32 continues across any cut", "[io][crc32]") {
  const auto bytes = random_bytes(5000);
  const std::uint32_t whole = by_zlib(bytes);
  test::Random random(3);
  for (const auto& kernel : io::crc32_kernels()) {
    for (int round = 0; round < 200; ++round) {
      std::uint32_t crc = 0;
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t n = std::min<std::size_t>(bytes.size() - at, random.below(900));
        crc = kernel.update(std::span(bytes).subspan(at, n), crc);
        at += n;
      }
      REQUIRE(crc == whole);
    }
  }
}

TEST_CASE("combine_crc32 joins the crcs of two parts", "[io][crc32]") {
  const auto bytes = random_bytes(4000);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 37) {
    const auto a = std::span(bytes).first(cut), b = std::span(bytes).subspan(cut);
    REQUIRE(io::combine_crc32(by_zlib(a), by_zlib(b), b.size()) == by_zlib(bytes));
  }
  // Lengths that no memory holds, against zlib's own combination.
  for (const std::uint64_t n : {std::uint64_t{1} << 31, std::uint64_t{0xffffffff},
                                std::uint64_t{1} << 32, (std::uint64_t{1} << 40) + 12345}) {
    CHECK(io::combine_crc32(0x12345678u, 0x9abcdef0u, n) ==
          static_cast<std::uint32_t>(
              ::crc32_combine(0x12345678u, 0x9abcdef0u, static_cast<z_off_t>(n))));
  }
}

TEST_CASE("powers of x modulo the crc polynomial", "[io][crc32]") {
  using namespace arch::detail;
  CHECK(crc_x_to(0) == 0x80000000u);
  CHECK(crc_x_to(31) == 1u);
  CHECK(crc_x_to(32) == crc_poly);
  CHECK(crc_x_to(0xffffffffu) == crc_x_to(0));
  CHECK(crc_times(crc_x_to(100), crc_x_to(23)) == crc_x_to(123));
}
