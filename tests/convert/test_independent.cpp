// Conversions held against writers and readers that share no code with this library.
#include <cstdlib>

#include "folder.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"
#include "waste/io/container.hpp"

using namespace waste;
using namespace waste::test;
using convert::ConvertOptions;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

struct Foreign {
  const char* container;
  const char* source;
  format::ExpertQuant quant;
  unsigned trunk_bits;
};
const Foreign foreign[] = {{"vq3r.waste", "source-kimi-linear", format::vq3r, 4},
                           {"vq2r.waste", "source-kimi-linear", format::vq2r, 8},
                           {"vq4p.waste", "source-kimi-linear", format::vq4p, 3},
                           {"k3.waste", "source-k3", format::vq3r, 4}};

ConvertOptions options_of(const Foreign& f) {
  ConvertOptions o;
  o.quant = f.quant;
  o.effort = quant::Effort::fast;
  o.trunk_bits = f.trunk_bits;
  o.trunk_scale = quant::GroupScale::absmax;
  return o;
}

fs::path interop() {
  if (shared_dir().empty()) {
    skipped("containers of another engine: WASTE_SHARED is not set");
    return {};
  }
  return shared_dir() / "interop";
}

/// Runs tests/oracle/SCRIPT with these arguments; returns its exit code.
int run_oracle(const std::string& script, const std::string& arguments) {
  const std::string command = "'" + python() + "' '" +
                              (source_root() / "tests" / "oracle" / script).string() + "' " +
                              arguments + " >/dev/null";
  return std::system(command.c_str());
}

}  // namespace

TEST_CASE("another engine's containers pass the audit and the comparison with their sources") {
  const fs::path dir = interop();
  if (dir.empty()) return;
  for (const Foreign& f : foreign) {
    INFO(f.container);
    convert::VerifyOptions o;
    o.source = dir / f.source;
    const auto report = convert::verify(dir / f.container, o);
    for (const auto& finding : report.findings) UNSCOPED_INFO(finding.message);
    CHECK(report.ok());
    CHECK(report.compared);
    CHECK(report.records == 18);
    for (const auto& e : report.experts_error) {
      CHECK(e.stats.relative_error() > 0.1);
      CHECK(e.stats.relative_error() < report.expert_limit);
    }
  }
  convert::VerifyOptions o;  // the other model's source
  o.source = dir / "source-k3";
  CHECK_FALSE(convert::verify(dir / "vq3r.waste", o).ok());
}

TEST_CASE("trunk, manifest and side files are another engine's, byte for byte") {
  const fs::path dir = interop();
  if (dir.empty()) return;
  for (const Foreign& f : foreign) {
    INFO(f.container);
    const fs::path theirs = dir / f.container, ours = scratch_dir("like-theirs");
    convert::convert(dir / f.source, ours, options_of(f));
    if (std::string(f.source) == "source-kimi-linear") {
      CHECK(read_bytes(ours / "trunk.bin") == read_bytes(theirs / "trunk.bin"));
      CHECK(read_bytes(ours / "manifest.json") == read_bytes(theirs / "manifest.json"));
    }
    for (const auto& [name, bytes] : folder_bytes(theirs)) {
      if (name == "chat.json") continue;  // written by hand there
      REQUIRE(fs::exists(ours / name));
      if (!name.ends_with(".bin") && name != "manifest.json") {
        CHECK(read_bytes(ours / name) == bytes);
      }
      if (name != "trunk.bin" && name != "manifest.json") {
        CHECK(fs::file_size(ours / name) == bytes.size());
      }
    }
  }
}

TEST_CASE("every trunk tensor of another engine's containers comes out of its source") {
  const fs::path dir = interop();
  if (dir.empty()) return;
  for (const Foreign& f : foreign) {
    const auto source = convert::Checkpoint::open(dir / f.source);
    const Container c = Container::open(dir / f.container);
    const std::string trunk = read_bytes(dir / f.container / "trunk.bin");
    REQUIRE(c.manifest().trunk.size() == source.trunk().size());
    for (const format::TrunkEntry& t : c.manifest().trunk) {
      INFO(f.container << ": " << t.name);
      const std::vector<float> x = source.tensor(t.name);
      std::string got(t.bytes, '\0');
      auto* bytes = reinterpret_cast<std::uint8_t*>(got.data());
      if (t.fmt == format::Fmt::f32) {
        std::memcpy(bytes, x.data(), got.size());
      } else {
        quant::quantize_groups(t.fmt, MatrixView<const float>(x.data(), t.rows(), t.cols()), bytes,
                               bytes + (t.scale_off - t.off), quant::GroupScale::absmax);
      }
      CHECK(got == trunk.substr(t.off, t.bytes));
    }
  }
}

TEST_CASE("records have another engine's layout, and its fmt byte but for two stages") {
  const fs::path dir = interop();
  if (dir.empty()) return;
  for (const Foreign& f : foreign) {
    INFO(f.container);
    const fs::path ours = scratch_dir("layout");
    convert::convert(dir / f.source, ours, options_of(f));
    const std::string a = read_bytes(ours / "experts-L2.bin");
    const std::string b = read_bytes(dir / f.container / "experts-L2.bin");
    REQUIRE(a.size() == b.size());
    for (std::size_t at = 0; at < a.size(); at += a.size() / 6) {
      std::string x = a.substr(at, 48), y = b.substr(at, 48);
      x.replace(36, 4, 4, '\0');  // the crc of other indices
      y.replace(36, 4, 4, '\0');
      if (f.quant == format::vq2r) {
        CHECK(x[8] == 5);
        CHECK(y[8] == 4);
        y[8] = 5;
      }
      CHECK(x == y);
    }
  }
}

TEST_CASE("the reference reads what is converted from its own checkpoints") {
  if (python().empty()) {
    skipped("conversions read by the reference: no Python with NumPy");
    return;
  }
  for (const char* arch : {"kimi-linear", "k3"}) {
    const fs::path source = scratch_dir(std::string("made-") + arch);
    REQUIRE(run_oracle("make_checkpoint.py", std::string(arch) + " '" + source.string() + "'") ==
            0);
    for (const auto quant : {format::vq3r, format::vq4p, format::vq2r}) {
      INFO(arch << " " << to_string(quant.fmt));
      ConvertOptions o;
      o.quant = quant;
      o.effort = quant::Effort::fast;
      o.codebook_sample = 4;
      const fs::path out = scratch_dir("read-by-reference");
      convert::convert(source, out, o);
      convert::VerifyOptions v;
      v.source = source;
      const auto report = convert::verify(out, v);
      for (const auto& finding : report.findings) UNSCOPED_INFO(finding.message);
      CHECK(report.ok());
      const fs::path logits = out.parent_path() / "logits.f32";
      REQUIRE(run_oracle("container_logits.py", "'" + out.string() + "' --tokens 1,17,42 --out '" +
                                                    logits.string() + "'") == 0);
      CHECK(fs::file_size(logits) == 520 * 4);
    }
  }
}

TEST_CASE("the bundled checkpoint converts within its format's limits", "[native]") {
  const fs::path source = source_root() / "examples" / "tiny_k3" / "checkpoint";
  REQUIRE(fs::exists(source / "config.json"));
  const fs::path out = scratch_dir("bundled");
  ConvertOptions o;
  o.effort = quant::Effort::fast;
  o.codebook_sample = 2;
  const auto report = convert::convert(source, out, o);
  CHECK(report.records_written == 120);
  convert::VerifyOptions v;
  v.source = source;
  const auto verified = convert::verify(out, v);
  for (const auto& finding : verified.findings) UNSCOPED_INFO(finding.message);
  CHECK(verified.ok());
  std::uint64_t quantized = 0, all = 0;
  const Container bundled = Container::open(out);
  for (const auto& t : bundled.manifest().trunk) {
    all += t.rows() * t.cols();
    if (t.fmt == format::Fmt::q4g) quantized += t.rows() * t.cols();
  }
  CHECK(quantized > all / 2);  // as in real conversions
}
