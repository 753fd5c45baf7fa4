// Checked sizes, buffers, views and errors.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "waste/core/aligned_buffer.hpp"
#include "waste/core/checked.hpp"
#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"

namespace {

using waste::AlignedBuffer;
using waste::Errc;
using waste::Error;
using waste::ExpertId;
using waste::fault;
using waste::Fault;
using waste::LayerId;

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

TEST_CASE("products and sums that do not fit are nothing", "[checked]") {
  CHECK(waste::checked_mul(0, most) == std::uint64_t{0});
  CHECK(waste::checked_mul(1, most) == most);
  CHECK_FALSE(waste::checked_mul(2, most / 2 + 1));
  CHECK(waste::checked_mul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1) ==
        0xffffffff00000000u);
  CHECK_FALSE(waste::checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32));
  CHECK(waste::checked_add(most, 0) == most);
  CHECK_FALSE(waste::checked_add(most, 1));
}

TEST_CASE("a checked size remembers an overflow", "[checked]") {
  CHECK(waste::CheckedSize(3).mul(5).add(2).value() == 17);
  CHECK(waste::CheckedSize(3).mul(5).ok());
  waste::CheckedSize s(most);
  s.add(1);
  CHECK_FALSE(s.ok());
  CHECK_FALSE(s.mul(0).ok());
  CHECK_FALSE(waste::CheckedSize(most).mul(2).add(1).ok());
}

TEST_CASE("division and rounding upwards", "[checked]") {
  CHECK(waste::ceil_div(0u, 64u) == 0);
  CHECK(waste::ceil_div(1u, 64u) == 1);
  CHECK(waste::ceil_div(64u, 64u) == 1);
  CHECK(waste::ceil_div(65u, 64u) == 2);
  CHECK(waste::ceil_div(most, most) == 1);
  CHECK(waste::ceil_div(most, std::uint64_t{2}) == std::uint64_t{1} << 63);
  CHECK(waste::round_up(4097u, 4096u) == 8192);
  CHECK(waste::round_up(4096u, 4096u) == 4096);
}

TEST_CASE("buffers are aligned, zeroed and move", "[buffer]") {
  for (const std::size_t alignment : {16u, 64u, 4096u, 65536u}) {
    AlignedBuffer<float> b(1001, alignment);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % alignment == 0);
    CHECK(b.size() == 1001);
    for (const float v : b) REQUIRE(v == 0.f);
    b[1000] = 7.f;
    const float* before = b.data();
    AlignedBuffer<float> moved(std::move(b));
    CHECK(moved.data() == before);
    CHECK(moved[1000] == 7.f);
    CHECK(moved.span().size() == 1001);
    AlignedBuffer<float> other(3);
    other = std::move(moved);
    CHECK(other.data() == before);
  }
  const AlignedBuffer<std::uint8_t> empty(0);
  CHECK(empty.empty());
  CHECK(empty.data() == nullptr);
  const AlignedBuffer<std::uint8_t> raw(10, 64, waste::Uninitialized{});
  CHECK(reinterpret_cast<std::uintptr_t>(raw.data()) % 64 == 0);
}

TEST_CASE("an impossible buffer is bad_alloc, not an overflow", "[buffer]") {
  CHECK_THROWS_AS(AlignedBuffer<double>(std::numeric_limits<std::size_t>::max() / 4),
                  std::bad_alloc);
  CHECK_THROWS_AS(AlignedBuffer<std::uint8_t>(std::numeric_limits<std::size_t>::max()),
                  std::bad_alloc);
}

TEST_CASE("matrix views honour the stride", "[view]") {
  float data[12];
  for (int i = 0; i < 12; ++i) data[i] = static_cast<float>(i);
  const waste::MatrixView<float> m(data, 3, 2, 4);
  CHECK(m(2, 1) == 9.f);
  CHECK(m.row(1).size() == 2);
  CHECK(m.row(1)[0] == 4.f);
  const waste::MatrixView<const float> c = m;
  CHECK(c(1, 1) == 5.f);
  CHECK(waste::MatrixView<float>(data, 3, 4).stride == 4);
}

TEST_CASE("one message says file, place, field, got and wanted", "[error]") {
  const Fault crc = fault(Errc::checksum, "crc32", 0x1a, 0x2b).at(LayerId{37}, ExpertId{412});
  CHECK(waste::describe(crc, "bank.bin") ==
        "bank.bin: expert 412 of layer 37: crc32: checksum mismatch, got 0x1a, wanted 0x2b");
  CHECK(waste::describe(fault(Errc::truncated, "file size", 10, 20).at(LayerId{3}), "f", "why") ==
        "f: layer 3: file size: truncated, got 10, wanted 20; why");
  CHECK(waste::describe(fault(Errc::out_of_range, "row", 8, 7)) ==
        "row: out of range, got 8, wanted at most 7");
  CHECK(waste::describe(fault(Errc::out_of_range, "layers", 1, 2)) ==
        "layers: out of range, got 1, wanted 2");
  CHECK(waste::describe(fault(Errc::missing, "")) == "missing");
  const Error e(crc, "bank.bin");
  CHECK(e.code() == Errc::checksum);
  CHECK(e.file() == "bank.bin");
  CHECK(e.fault().expert == 412);
  CHECK(std::string(e.what()) == waste::describe(crc, "bank.bin"));
}

TEST_CASE("check throws on faults only", "[error]") {
  CHECK_NOTHROW(waste::check(Fault{}, "f"));
  CHECK_THROWS_AS(waste::check(fault(Errc::io, "read"), "f"), Error);
  CHECK(Fault{}.ok());
  CHECK_FALSE(static_cast<bool>(Fault{}));
  CHECK(static_cast<bool>(fault(Errc::io, "read")));
}

TEST_CASE("every code has a name and a phrase of its own", "[error]") {
  std::vector<std::string> seen;
  for (int i = 0; i <= static_cast<int>(Errc::bad_argument); ++i) {
    const auto code = static_cast<Errc>(i);
    const std::string name(waste::to_string(code));
    CHECK(name != "unknown");
    CHECK(std::find(seen.begin(), seen.end(), name) == seen.end());
    seen.push_back(name);
    CHECK(waste::describe(fault(code, "")) != "unknown fault");
  }
  CHECK(waste::to_string(static_cast<Errc>(200)) == "unknown");
  CHECK(waste::to_string(Errc::ok) == "ok");
  CHECK(waste::to_string(Errc::bad_argument) == "bad_argument");
  CHECK(waste::to_string(Errc::checksum) == "checksum");
  CHECK(waste::to_string(Errc::changed) == "changed");
}

}  // namespace
