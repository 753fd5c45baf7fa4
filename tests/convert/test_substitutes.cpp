// Substitutes of experts: their bytes by the format's description, and that nothing else changes.
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/convert/checkpoint.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"
#include "waste/io/substitutes.hpp"

using namespace waste;
using namespace waste::test;
using convert::ConvertOptions;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

constexpr std::uint32_t experts = 6, layers = 4;

const fs::path& source() {
  static const fs::path dir = [] {
    SmallSource s;
    s.layers = layers;
    s.experts = experts;
    return make_source(scratch_dir("source-substitutes"), s);
  }();
  return dir;
}

ConvertOptions fast(bool substitutes = true) {
  ConvertOptions o;
  o.quant = format::vq2r;
  o.effort = quant::Effort::fast;
  o.jobs = 2;
  o.codebook_sample = 1;
  o.substitutes = substitutes;
  return o;
}

fs::path fresh(const std::string& name) {
  const fs::path dir = scratch_dir(name);
  fs::remove(dir);
  return dir;
}

/// A container with substitutes, made once.
const fs::path& whole() {
  static const fs::path dir = [] {
    const fs::path out = fresh("substitutes-whole");
    REQUIRE(convert::convert(source(), out, fast()).complete);
    return out;
  }();
  return dir;
}

template <class T>
T at(const std::string& bytes, std::size_t offset) {
  T out;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

double half_at(const std::string& bytes, std::size_t offset) {
  return half_value(at<std::uint16_t>(bytes, offset));
}

// The small source: gate and up [96][160], down [160][96]; rows in blocks of 64.
constexpr std::size_t rows[3] = {96, 96, 160}, cols[3] = {160, 160, 96};
constexpr std::size_t index_off[3] = {48, 48 + 128 * 20, 48 + 2 * 128 * 20};
constexpr std::size_t scales_off = index_off[2] + 192 * 12;
constexpr std::size_t scale_off[3] = {scales_off, scales_off + 192, scales_off + 384};
constexpr std::size_t payload_end = scales_off + 2 * (96 + 96 + 160), record_bytes = 8192;

}  // namespace

TEST_CASE("with substitutes nothing else of a container changes but a flag") {
  const fs::path plain = fresh("substitutes-none");
  convert::convert(source(), plain, fast(false));
  auto with = folder_bytes(whole()), without = folder_bytes(plain);
  for (std::uint32_t layer = 1; layer < layers; ++layer) {
    CHECK(with.erase("subs-L" + std::to_string(layer) + ".bin") == 1);
    std::string& bank = with.at("experts-L" + std::to_string(layer) + ".bin");
    for (std::size_t e = 0; e < experts; ++e) {
      char& flags = bank.at(e * (bank.size() / experts) + 9);
      CHECK(flags == 2);  // a substitute exists
      flags = 0;
    }
  }
  CHECK(with.erase("subs-codebooks.bin") == 1);
  CHECK(with.at("checksums.json") != without.at("checksums.json"));
  with.erase("checksums.json");
  without.erase("checksums.json");
  CHECK(with == without);
}

TEST_CASE("a substitute's bytes are the description's, and decode to about its expert") {
  const io::Substitutes subs = io::Substitutes::open(Container::open(whole()));
  const std::string books = read_bytes(whole() / "subs-codebooks.bin");
  REQUIRE(books.size() == 3 * (layers - 1) * 4112);
  const convert::Checkpoint checkpoint = convert::Checkpoint::open(source());
  double error[3] = {}, norm[3] = {};
  for (std::uint32_t layer = 1; layer < layers; ++layer) {
    const std::string bank = read_bytes(whole() / ("subs-L" + std::to_string(layer) + ".bin"));
    REQUIRE(bank.size() == experts * record_bytes);
    for (std::uint32_t e = 0; e < experts; ++e) {
      const std::size_t r = e * record_bytes;
      CHECK(bank.compare(r, 4, "WSUB") == 0);
      CHECK(at<std::uint16_t>(bank, r + 4) == layer);
      CHECK(at<std::uint16_t>(bank, r + 6) == e);
      CHECK(bank[r + 8] == 6);
      CHECK(bank[r + 9] == 0);
      CHECK(at<std::uint16_t>(bank, r + 10) == 3 * (layer - 1));
      CHECK(at<std::uint32_t>(bank, r + 12) == 0);
      CHECK(at<std::uint32_t>(bank, r + 16) == record_bytes / 4096);
      for (std::size_t k = 0; k < 3; ++k) {
        CHECK(at<std::uint32_t>(bank, r + 20 + 4 * k) == index_off[k]);
      }
      CHECK(at<std::uint32_t>(bank, r + 32) == scales_off);
      CHECK(at<std::uint32_t>(bank, r + 36) ==
            ::crc32(0, reinterpret_cast<const Bytef*>(bank.data()) + r + 48,
                    static_cast<uInt>(payload_end - 48)));
      const ExpertView view = subs.view(LayerId{layer}, ExpertId{e});
      const VqMatrix* matrices[3] = {&view.gate, &view.up, &view.down};
      for (std::size_t k = 0; k < 3; ++k) {
        std::vector<float> want(rows[k] * cols[k]);
        checkpoint.read_expert_rows(LayerId{layer}, ExpertId{e}, static_cast<format::Kind>(k), 0,
                                    {want.data(), rows[k], cols[k]});
        const std::size_t id = 3 * (layer - 1) + k, book = id * 4112;
        CHECK(at<std::uint16_t>(books, book + 4) == id);
        CHECK(books[book + 6] == 6);
        const VqMatrix& m = *matrices[k];
        bool same = m.rows() == rows[k] && m.cols() == cols[k] && m.quant.stages == 1;
        for (std::size_t i = 0; i < rows[k]; ++i) {
          const double scale = half_at(bank, r + scale_off[k] + 2 * i);
          for (std::size_t v = 0; v < cols[k] / 8; ++v) {
            const auto index = static_cast<std::uint8_t>(
                bank[r + index_off[k] + (i / 64 * (cols[k] / 8) + v) * 64 + i % 64]);
            for (std::size_t d = 0; d < 8; ++d) {
              const double c = half_at(books, book + 16 + 2 * (8 * index + d));
              const double w = want[i * cols[k] + 8 * v + d];
              error[k] += (w - scale * c) * (w - scale * c);
              norm[k] += w * w;
              same = same && m.codebooks[8 * index + d] == c;
            }
            same = same && m.index(i, v, 0) == index;
          }
          same = same && m.scale(i) == scale;
        }
        CHECK(same);
      }
    }
  }
  const auto report = convert::convert(source(), fresh("substitutes-report"), fast());
  for (std::size_t k = 0; k < 3; ++k) {
    const double relative = std::sqrt(error[k] / norm[k]);
    CHECK(relative < 0.6);  // 256 entries for 8 weights; Gaussian vectors leave 0.57 at best
    CHECK(relative > 0.3);
    CHECK(report.substitute_error[k].relative_error() == Approx(relative).epsilon(1e-4));
  }
  CHECK(report.substitute_bytes == (layers - 1) * experts * record_bytes);
}

TEST_CASE("substitutes do not depend on threads, slices, merging or interruptions", "[native]") {
  const auto same = [](const fs::path& dir) { return folder_difference(whole(), dir); };
  const fs::path one = fresh("substitutes-1");
  ConvertOptions o = fast();
  o.jobs = 1;
  convert::convert(source(), one, o);
  CHECK(same(one) == "");

  std::vector<fs::path> parts;
  for (const auto& [first, last] : {std::pair{1u, 1u}, std::pair{2u, 3u}}) {
    o = fast();
    o.layers = {first, last};
    parts.push_back(fresh("substitutes-slice-" + std::to_string(first)));
    CHECK_FALSE(convert::convert(source(), parts.back(), o).complete);
  }
  o = fast();
  o.trunk_only = true;
  parts.push_back(fresh("substitutes-trunk"));
  convert::convert(source(), parts.back(), o);
  const fs::path merged = fresh("substitutes-merged");
  CHECK(convert::merge(merged, parts).complete);
  CHECK(same(merged) == "");

  // A slice whose substitutes are not all there is not taken for whole.
  fs::remove(parts[1] / "subs-L3.bin");
  const Error incomplete = failure_of([&] { convert::merge(fresh("substitutes-part"), parts); });
  CHECK(incomplete.code() == Errc::missing);
  CHECK(incomplete.fault().layer == 3);

  struct Stop {};
  int steps = 0;
  o = fast();
  o.progress = [&](const convert::ConvertProgress&) { ++steps; };
  convert::convert(source(), fresh("substitutes-count"), o);
  for (int stop = 3; stop < steps; stop += 17) {
    const fs::path out = fresh("substitutes-stopped");
    int left = stop;
    o.progress = [&](const convert::ConvertProgress&) {
      if (--left == 0) throw Stop();
    };
    CHECK_THROWS_AS(convert::convert(source(), out, o), Stop);
    CHECK_FALSE(fs::exists(out / "manifest.json"));
    convert::convert(source(), out, fast());
    INFO("stopped at step " << stop << " of " << steps);
    REQUIRE(same(out) == "");
  }
  // An unfinished conversion is continued with the same answer about substitutes only.
  const fs::path out = fresh("substitutes-plan");
  int left = 5;
  o.progress = [&](const convert::ConvertProgress&) {
    if (--left == 0) throw Stop();
  };
  CHECK_THROWS_AS(convert::convert(source(), out, o), Stop);
  CHECK(failure_of([&] { convert::convert(source(), out, fast(false)); }).code() == Errc::mismatch);
}

TEST_CASE("damage to substitutes is found by the audit and refused where they are opened") {
  convert::VerifyOptions against;
  against.source = source();
  const auto good = convert::verify(whole(), against);
  REQUIRE(good.ok());
  CHECK(good.records == 2 * (layers - 1) * experts);
  CHECK(good.substitute_bytes == (layers - 1) * experts * record_bytes);
  CHECK(good.substitutes_error.size() == 3 * (layers - 1));

  struct Damage {
    const char* what;
    const char* file;
    std::function<void(std::string&)> change;
    Errc code;
    const char* says;
    bool refused = true;  ///< where substitutes are opened, not by the audit alone
  };
  const std::size_t r = 4 * record_bytes;
  const auto put = [](std::size_t offset, std::uint32_t value, std::size_t n) {
    return [=](std::string& b) { std::memcpy(b.data() + offset, &value, n); };
  };
  const char *bank = "subs-L2.bin", *books = "subs-codebooks.bin";
  const Damage damages[] = {
      {"magic of an expert", bank, put(r, 0x50584557, 4), Errc::bad_magic, "magic"},
      {"fmt of an expert", bank, put(r + 8, 4, 1), Errc::mismatch, "fmt"},
      {"flags", bank, put(r + 9, 4, 1), Errc::bad_field, "flags"},
      {"codebook", bank, put(r + 10, 0, 2), Errc::mismatch, "codebook_id"},
      {"offset", bank, put(r + 24, 47, 4), Errc::mismatch, "up_off"},
      {"crc", bank, [=](std::string& b) { b[r + 36] ^= 1; }, Errc::checksum, "crc32"},
      {"index", bank, [=](std::string& b) { b[r + 48] ^= 1; }, Errc::checksum, "crc32"},
      {"padding", bank, put(r + record_bytes - 1, 1, 1), Errc::bad_field, "padding", false},
      {"short", bank, [](std::string& b) { b.pop_back(); }, Errc::truncated, "size"},
      {"long", bank, [](std::string& b) { b += '\0'; }, Errc::mismatch, "size"},
      {"book fmt", books, put(4 * 4112 + 6, 4, 1), Errc::mismatch, "fmt"},
      {"book entry", books, [](std::string& b) { b[4 * 4112 + 20] ^= 1; }, Errc::checksum,
       "codebook 4"},
      {"infinite entry", books, put(4 * 4112 + 16, 0x7c00, 2), Errc::bad_field, "codebook"},
      {"short books", books, [](std::string& b) { b.pop_back(); }, Errc::mismatch, "size"},
  };
  for (const Damage& d : damages) {
    INFO(d.what);
    const fs::path dir = scratch_dir("substitutes-damaged");
    fs::copy(whole(), dir, fs::copy_options::recursive);
    std::string bytes = read_bytes(dir / d.file);
    d.change(bytes);
    write_file(dir / d.file, bytes);
    const auto report = convert::verify(dir);
    REQUIRE(report.findings_total == 1);
    CHECK(report.findings[0].fault.code == d.code);
    CHECK(report.findings[0].message.find(d.says) != std::string::npos);
    CHECK(report.findings[0].file == (dir / d.file).string());
    const Container container = Container::open(dir);  // which needs no substitutes
    if (!d.refused) {
      CHECK_NOTHROW(io::Substitutes::open(container));
      continue;
    }
    const Error e = failure_of([&] { io::Substitutes::open(container); });
    CHECK(e.code() == d.code);
    CHECK(std::string(e.what()).find(d.says) != std::string::npos);
  }

  const fs::path dir = scratch_dir("substitutes-missing");
  fs::copy(whole(), dir, fs::copy_options::recursive);
  fs::remove(dir / "subs-L2.bin");
  CHECK(convert::verify(dir).findings_total == 1);
  CHECK(failure_of([&] { io::Substitutes::open(Container::open(dir)); }).code() == Errc::not_found);
  for (const char* name : {"subs-L1.bin", "subs-L3.bin", "subs-codebooks.bin"}) {
    fs::remove(dir / name);
  }
  const auto promised = convert::verify(dir);
  REQUIRE(promised.findings_total == 1);
  CHECK(promised.findings[0].fault.code == Errc::missing);
  const Error none = failure_of([&] { io::Substitutes::open(Container::open(dir)); });
  CHECK(none.code() == Errc::missing);
  CHECK(std::string(none.what()).find("--substitutes") != std::string::npos);
}

TEST_CASE("the memory of substitutes is their banks and codebooks") {
  const Container container = Container::open(whole());
  const std::uint64_t want = (layers - 1) * (experts * record_bytes + 3 * 256 * 8 * sizeof(float));
  CHECK(io::Substitutes::open(container).bytes() == want);
  CHECK(io::substitute_bytes(container.manifest()) == want);
}
