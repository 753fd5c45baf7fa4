// crc32s: of records at their first read only, and of trunk and codebooks by checksums.json.
#include <zlib.h>

#include <fstream>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/convert/verify.hpp"
#include "waste/io/checksums.hpp"
#include "waste/io/container.hpp"
#include "waste/io/file.hpp"

namespace fs = std::filesystem;
using waste::Container;
using waste::Errc;
using waste::Error;
using waste::ExpertId;
using waste::LayerId;
using waste::OpenOptions;
using waste::io::Checksums;
using waste::io::ReadStats;
using waste::io::Verify;
using waste::test::Bytes;
using waste::test::TinyContainer;
using waste::test::TinySpec;

namespace {

std::uint32_t zlib_crc(const std::uint8_t* bytes, std::size_t n) {
  return static_cast<std::uint32_t>(::crc32(0, bytes, static_cast<uInt>(n)));
}

/// Writes the bytes of a file in place, and gives it back the time it had.
void poke(const fs::path& file, std::uint64_t offset, std::uint8_t flip) {
  const auto time = fs::last_write_time(file);
  {
    std::fstream io(file, std::ios::in | std::ios::out | std::ios::binary);
    io.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(io.get() ^ flip);
    io.seekp(static_cast<std::streamoff>(offset));
    io.put(byte);
  }
  fs::last_write_time(file, time);
}

template <class F>
std::string message_of(F&& f, Errc code) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(e.code() == code);
    return e.what();
  }
  return "";
}

/// A record of 1.2 MB: several pieces.
TinySpec large() {
  TinySpec spec = TinySpec::vq3r();
  spec.hidden = 1024;
  spec.inter = 1000;
  spec.experts = 2;
  spec.layers = 2;
  return spec;
}

}  // namespace

TEST_CASE("a record is summed at its first read, every time or never") {
  TinyContainer tiny = waste::test::make_tiny(large());
  const fs::path dir = waste::test::scratch_dir("verify-modes");
  tiny.write(dir);
  for (const bool direct : {false, true}) {
    for (const Verify mode : {Verify::off, Verify::once, Verify::always}) {
      OpenOptions options;
      options.verify_records = mode;
      options.direct_io = direct;
      const Container c = Container::open(dir, options);
      const auto& bank = c.bank(LayerId{1});
      waste::AlignedBuffer<std::uint8_t> record(bank.record_bytes());
      ReadStats stats;
      for (int i = 0; i < 3; ++i) REQUIRE_FALSE(bank.try_read(ExpertId{1}, record.span(), &stats));
      CHECK(stats.crc_records == (mode == Verify::off ? 0u : mode == Verify::once ? 1u : 3u));
      CHECK((stats.crc_ns > 0) == (mode != Verify::off));
      CHECK(std::equal(record.begin(), record.end(), tiny.bank(1).begin() + bank.record_bytes()));
      REQUIRE_FALSE(bank.try_read(ExpertId{0}, record.span(), &stats));  // its own first
      CHECK(stats.crc_records == (mode == Verify::off ? 0u : mode == Verify::once ? 2u : 4u));
    }
  }
}

TEST_CASE("a byte that changed in any piece of a record is found, and again the next time") {
  TinyContainer tiny = waste::test::make_tiny(large());
  const std::size_t record = tiny.record_bytes();
  REQUIRE(record > 4 * (256u << 10));
  const fs::path dir = waste::test::scratch_dir("verify-pieces");
  tiny.write(dir);
  const auto bank_path = dir / "experts-L1.bin";
  const std::size_t piece = 256u << 10;
  for (const std::size_t at : {std::size_t{48}, piece - 1, piece, 2 * piece + 7, 4 * piece + 1}) {
    poke(bank_path, record + at, 8);
    for (const bool direct : {false, true}) {
      OpenOptions options;
      options.direct_io = direct;  // Verify::once is the default
      const Container c = Container::open(dir, options);
      for (int i = 0; i < 2; ++i) {
        const std::string what =
            message_of([&] { c.bank(LayerId{1}).read(ExpertId{1}); }, Errc::checksum);
        CHECK(what.find("expert 1 of layer 1") != std::string::npos);
      }
      CHECK_NOTHROW(c.bank(LayerId{1}).read(ExpertId{0}));
    }
    poke(bank_path, record + at, 8);
  }
  poke(bank_path, record + tiny.record_bytes() - 1, 1);  // padding carries no meaning
  CHECK_NOTHROW(Container::open(dir).bank(LayerId{1}).read(ExpertId{1}));
}

TEST_CASE("checksums are zlib's crc32 of every tensor and codebook record") {
  TinyContainer tiny = waste::test::make_tiny(TinySpec::vq3r());
  const fs::path dir = waste::test::scratch_dir("checksums");
  tiny.write(dir);
  const auto manifest = Container::open(dir).manifest();
  const Checksums sums = waste::io::compute_checksums(dir, manifest);
  const Bytes& trunk = tiny.files.at("trunk.bin");
  REQUIRE(sums.trunk.size() == tiny.manifest["trunk"].size());
  for (const auto& t : tiny.manifest["trunk"]) {
    const std::size_t off = t["off"], bytes = t["bytes"];
    CHECK(sums.of_tensor(t["name"].get<std::string>()) == zlib_crc(trunk.data() + off, bytes));
  }
  CHECK_FALSE(sums.of_tensor("no such tensor"));
  const Bytes& books = tiny.files.at("codebooks.bin");
  REQUIRE(sums.codebooks.size() == books.size() / 4112);
  for (std::size_t i = 0; i < sums.codebooks.size(); ++i) {
    CHECK(sums.of_codebook(i) == zlib_crc(books.data() + i * 4112, 4112));
  }
  CHECK_FALSE(sums.of_codebook(sums.codebooks.size()));
  const Bytes& ranks = tiny.files.at("tokenizer.model");
  const std::string text = waste::io::read_text(dir / "manifest.json", 1 << 20);
  REQUIRE(sums.files.size() == 2);
  CHECK(sums.of_file("tokenizer.model") == zlib_crc(ranks.data(), ranks.size()));
  CHECK(sums.of_file("manifest.json") ==
        zlib_crc(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
  CHECK_FALSE(sums.of_file("trunk.bin"));

  waste::io::write_atomically(dir / "checksums.json", waste::io::dump_checksums(sums));
  const auto again = waste::io::read_checksums(dir);
  REQUIRE(again);
  CHECK(again->trunk == sums.trunk);
  CHECK(again->codebooks == sums.codebooks);
  CHECK(again->files == sums.files);
}

TEST_CASE(
    "a manifest that still reads is compared with checksums.json, and small files by audits") {
  TinyContainer tiny = waste::test::make_tiny(TinySpec::vq3r());
  const fs::path dir = waste::test::scratch_dir("checksums-files");
  tiny.write(dir);
  const auto manifest = Container::open(dir).manifest();
  waste::io::write_atomically(
      dir / "checksums.json",
      waste::io::dump_checksums(waste::io::compute_checksums(dir, manifest)));
  CHECK(waste::convert::verify(dir).ok());

  const std::string text = waste::io::read_text(dir / "manifest.json", 1 << 20);
  const auto at = text.find("2.446");  // routed_scaling_factor: other answers, and no other sign
  REQUIRE(at != std::string::npos);
  poke(dir / "manifest.json", at + 2, 1);
  const std::string what = message_of([&] { Container::open(dir); }, Errc::checksum);
  CHECK(what.find("manifest.json") != std::string::npos);
  CHECK_NOTHROW(Container::open(dir, {.verify_checksums = false}));
  CHECK(waste::convert::verify(dir).findings_total == 1);
  poke(dir / "manifest.json", at + 2, 1);

  poke(dir / "tokenizer.model", 0, 1);
  CHECK_NOTHROW(Container::open(dir));  // does not read it
  auto report = waste::convert::verify(dir);
  REQUIRE(report.findings_total == 1);
  CHECK(report.findings[0].fault.code == Errc::checksum);
  CHECK(report.findings[0].message.find("tokenizer.model") != std::string::npos);
  fs::remove(dir / "tokenizer.model");
  report = waste::convert::verify(dir);
  REQUIRE(report.findings_total == 1);
  CHECK(report.findings[0].fault.code == Errc::not_found);
  waste::io::write_atomically(dir / "checksums.json",
                              R"({"version": 1, "trunk": {}, "codebooks": [], "files": []})");
  message_of([&] { Container::open(dir); }, Errc::bad_field);
}

TEST_CASE("an opened container's trunk and codebooks are compared with checksums.json") {
  TinyContainer tiny = waste::test::make_tiny(TinySpec::vq3r());
  const fs::path dir = waste::test::scratch_dir("checksums-open");
  tiny.write(dir);
  waste::io::write_atomically(dir / "checksums.json",
                              waste::io::dump_checksums(waste::io::compute_checksums(
                                  dir, Container::open(dir).manifest())));
  CHECK_NOTHROW(Container::open(dir));

  const auto& t = tiny.manifest["trunk"].back();
  std::string name = "lm_head.weight";
  std::uint64_t off = 0;
  for (const auto& entry : tiny.manifest["trunk"]) {
    if (entry["name"] == name) off = entry["off"];
  }
  REQUIRE(t.size() > 0);
  poke(dir / "trunk.bin", off + 5, 1);
  std::string what = message_of([&] { Container::open(dir); }, Errc::checksum);
  CHECK(what.find("trunk.bin") != std::string::npos);
  CHECK(what.find(name) != std::string::npos);
  CHECK_NOTHROW(Container::open(dir, {.verify_checksums = false}));
  OpenOptions listing;
  listing.resident_trunk = false;
  CHECK_NOTHROW(Container::open(dir, listing));  // nothing was read
  poke(dir / "trunk.bin", off + 5, 1);

  poke(dir / "codebooks.bin", 4112 + 16, 1);
  what = message_of([&] { Container::open(dir); }, Errc::checksum);
  CHECK(what.find("codebook 1") != std::string::npos);
  poke(dir / "codebooks.bin", 4112 + 16, 1);

  const auto write = [&](const char* text) {
    waste::io::write_atomically(dir / "checksums.json", text);
  };
  write(R"({"version": 2, "anything": []})");  // of a later time: not ours to judge
  CHECK_NOTHROW(Container::open(dir));
  write(R"({"version": 1, "trunk": {}, "codebooks": []})");  // sums of nothing
  CHECK_NOTHROW(Container::open(dir));
  write(R"({"version": 1, "trunk": {"lm_head.weight": 4294967296}, "codebooks": []})");
  message_of([&] { Container::open(dir); }, Errc::bad_field);
  CHECK_THROWS_AS(Container::open(dir), Error);
  write(R"({"version": 1, "trunk": []})");
  CHECK_THROWS_AS(Container::open(dir), Error);
  write("{");
  message_of([&] { Container::open(dir); }, Errc::bad_json);
}
