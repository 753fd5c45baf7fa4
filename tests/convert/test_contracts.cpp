// What public functions say of paths, sizes and spans that their contracts rule out.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/convert/calibration.hpp"
#include "waste/convert/checkpoint.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"
#include "waste/engine/routing_trace.hpp"
#include "waste/engine/usage.hpp"
#include "waste/io/audit.hpp"
#include "waste/io/checksums.hpp"
#include "waste/io/drives.hpp"
#include "waste/io/safetensors.hpp"
#include "waste/text/chat.hpp"
#include "waste/text/tokenizer.hpp"

namespace {

namespace fs = std::filesystem;
using namespace waste;
using test::code_of;
using test::write_file;

using Call = std::function<void(const fs::path&)>;
struct Named {
  const char* name;
  Call call;
  Errc absent = Errc::not_found;  ///< of a path that is not there
  Errc closed = Errc::io;         ///< of one that no system call can follow
};

const test::TinyContainer& tiny() {
  static const test::TinyContainer container = test::make_tiny({});
  return container;
}

format::Manifest manifest() {
  return format::parse_manifest(tiny().manifest.dump(), "manifest.json");
}

/// Functions that read the file of their path.
std::vector<Named> readers() {
  const format::Manifest m = manifest();
  return {
      {"File::open", [](const fs::path& p) { io::File::open(p); }},
      {"read_text", [](const fs::path& p) { io::read_text(p, 100); }},
      {"file_crc", [](const fs::path& p) { io::file_crc(p); }},
      {"audit_codebooks",
       [m](const fs::path& p) { io::audit_codebooks(p, m.expert_quant, m.layers, {}); }},
      {"Codebooks::load",
       [m](const fs::path& p) { io::Codebooks::load(p, m.expert_quant, m.layers); }},
      {"Trunk::open", [m](const fs::path& p) { io::Trunk::open(p, m); }},
      {"CalibrationFile::open",
       [m](const fs::path& p) { convert::CalibrationFile::open(p, m.model, 0); }},
      {"read_trace", [](const fs::path& p) { engine::read_trace(p); }},
      {"ExpertBank",
       [m](const fs::path& p) {
         format::BankEntry entry = m.layers.at(0);
         entry.file = p.filename();
         io::ExpertBank(p.parent_path(), entry, m.layout, std::make_shared<io::Codebooks>());
       }},
  };
}

/// Functions that read files of the directory that is their path.
std::vector<Named> directory_readers() {
  return {
      {"Container::open", [](const fs::path& p) { Container::open(p); }},
      {"verify", [](const fs::path& p) { convert::verify(p); }},
      {"Checkpoint::open", [](const fs::path& p) { convert::Checkpoint::open(p); }},
      {"Safetensors::open", [](const fs::path& p) { io::Safetensors::open(p); }, Errc::not_found,
       Errc::not_found},
      {"Tokenizer::open", [](const fs::path& p) { Tokenizer::open(p); }},
      {"convert", [](const fs::path& p) { convert::convert(p, p.string() + ".out"); }},
      {"merge", [](const fs::path& p) { convert::merge(p.string() + ".out", {p}); }, Errc::missing,
       Errc::missing},
      {"compute_checksums", [](const fs::path& p) { io::compute_checksums(p, manifest()); }},
      {"device_of", [](const fs::path& p) { io::device_of(p / "x"); }},
      {"sync_directory", [](const fs::path& p) { io::sync_directory(p / "x"); }},
      {"free_bytes", [](const fs::path& p) { io::free_bytes(p / "x"); }},
  };
}

/// Functions that make the file of their path.
std::vector<Named> writers() {
  return {
      {"File::create", [](const fs::path& p) { io::File::create(p); }},
      {"File::open_or_create", [](const fs::path& p) { io::File::open_or_create(p); }},
      {"write_atomically", [](const fs::path& p) { io::write_atomically(p, "x"); }},
      {"write_calibration",
       [](const fs::path& p) {
         const format::Manifest m = manifest();
         convert::Calibration none;
         none.uses.resize(m.layers.size() * m.model.num_experts);
         convert::write_calibration(p, m.model, none);
       }},
      {"TraceRecorder::write", [](const fs::path& p) { engine::TraceRecorder({1}).write(p); }},
  };
}

void check_refused(const Named& f, const fs::path& path, Errc wanted) {
  INFO(f.name << " of " << path);
  try {
    f.call(path);
    FAIL("accepted");
  } catch (const Error& e) {
    INFO(e.what());
    CHECK(std::string(to_string(e.code())) == std::string(to_string(wanted)));
    CHECK(std::string(e.what()).find(path.filename().string()) != std::string::npos);
  }
}

TEST_CASE("a path that leads to nothing readable is an error that names it") {
  const fs::path dir = test::scratch_dir("contract-read");
  write_file(dir / "plain", "x");
  fs::create_directory(dir / "folder");
  fs::create_symlink("loop", dir / "loop");
  const std::string long_name(300, 'n');
  for (const Named& f : readers()) {
    check_refused(f, dir / "nothing", Errc::not_found);
    check_refused(f, dir / "plain" / "below", Errc::not_found);
    check_refused(f, dir / "folder", Errc::bad_field);
    check_refused(f, dir / "loop", Errc::io);
    check_refused(f, dir / long_name, Errc::io);
  }
  for (const Named& f : directory_readers()) {
    check_refused(f, dir / "nothing", f.absent);
    check_refused(f, dir / "plain", f.absent);
    check_refused(f, dir / "loop", f.closed);
    check_refused(f, dir / long_name, f.closed);
    CHECK_FALSE(fs::exists((dir / "nothing").string() + ".out"));
  }
}

TEST_CASE("a path that cannot be written is an error that names it, and leaves nothing") {
  const fs::path dir = test::scratch_dir("contract-write");
  write_file(dir / "plain", "x");
  fs::create_directory(dir / "folder");
  const std::string long_name(300, 'n');
  for (const Named& f : writers()) {
    INFO(f.name);
    CHECK(code_of([&] { f.call(dir / "no" / "such"); }) == Errc::not_found);
    CHECK(code_of([&] { f.call(dir / "plain" / "below"); }) == Errc::not_found);
    CHECK(code_of([&] { f.call(dir / long_name); }) == Errc::io);
    CHECK(code_of([&] { f.call(dir / "folder"); }) != Errc::ok);
    CHECK(code_of([&] { f.call("/proc/waste-test"); }) != Errc::ok);
    CHECK(std::distance(fs::directory_iterator(dir), fs::directory_iterator()) == 2);
    CHECK(fs::is_empty(dir / "folder"));
  }
}

TEST_CASE("a checkpoint reads rows of its own tensors", "[contract]") {
  const fs::path dir = test::source_root() / "examples/tiny_k3/checkpoint";
  const auto source = convert::Checkpoint::open(dir);
  const auto said = [](const auto& call) { return std::string(test::failure_of(call).what()); };
  const convert::TrunkSource* norm = source.find(source.prefix() + "model.norm.weight");
  REQUIRE(norm);
  REQUIRE(norm->rows() == 1);
  const std::size_t cols = norm->cols();
  std::vector<float> x(2 * cols + 1, -1.0f);
  const auto read = [&](const convert::TrunkSource& t, std::uint64_t first, std::size_t rows,
                        std::size_t columns) {
    return said([&] { source.read_rows(t, first, {x.data(), rows, columns}); });
  };
  const std::string tail = ", wanted 1; tensor " + norm->name;
  CHECK(read(*norm, 0, 2, cols) == "rows: invalid argument, got 2" + tail);
  CHECK(read(*norm, 2, 0, cols) == "rows: invalid argument, got 2" + tail);
  CHECK(read(*norm, 1, 1, cols) == "rows: invalid argument, got 2" + tail);
  CHECK(read(*norm, ~0ull, 1, cols) == "rows: invalid argument, got 0" + tail);
  CHECK(read(*norm, 0, 1, cols + 1) == "rows: invalid argument, got 1" + tail);
  const std::size_t tensors = source.files().tensors().size();
  const std::string foreign = dir.string() + ": tensor: invalid argument, got ";
  CHECK(read({}, 0, 1, 1) == foreign + std::to_string(convert::TrunkSource::none) + ", wanted " +
                                 std::to_string(tensors) + "; tensor  is not of this checkpoint");
  convert::TrunkSource other = *norm;
  other.scale = static_cast<std::uint32_t>(tensors);
  CHECK(read(other, 0, 1, cols).starts_with(foreign));
  CHECK(std::count(x.begin(), x.end(), -1.0f) == static_cast<std::ptrdiff_t>(x.size()));

  io::SourceTensor strange = source.files().tensors().at(norm->weight);
  strange.shard = 99;
  const std::string shard = dir.string() + ": shard: invalid argument, got 99, wanted " +
                            std::to_string(source.files().shards().size()) + "; tensor " +
                            strange.name + " is not of this checkpoint";
  std::vector<std::uint8_t> byte(1);
  CHECK(said([&] { source.files().read_bytes(strange, 0, byte); }) == shard);
  CHECK(said([&] { source.files().read_f32(strange, 0, std::span(x).first(1)); }) == shard);
  strange.dtype = io::Dtype::other;
  CHECK(said([&] { source.files().read_f32(strange, 0, std::span(x).first(1)); }) == shard);
}

TEST_CASE("a calibration is written for sites and experts that the model has", "[contract]") {
  const fs::path path = test::scratch_dir("contract-calibration") / "c.wcal";
  const format::ModelConfig model = manifest().model;
  const auto write = [&](const convert::MomentKey& key, std::size_t cols, bool seen = true) {
    convert::Calibration c;
    c.uses.resize(std::size_t{model.moe_layers()} * model.num_experts);
    quant::InputMoments moments(cols, 1);
    const std::vector<float> x(cols, 1.0f);
    if (seen) moments.add({x.data(), 1, cols});
    c.moments.emplace(key, std::move(moments));
    return code_of([&] { convert::write_calibration(path, model, c); });
  };
  using convert::Site;
  const std::size_t width = model.expert_width();
  CHECK(write({1, Site::expert, 5}, width) == Errc::bad_argument);  // of five experts
  CHECK(write({1, Site::moe, 0}, model.hidden_size) == Errc::bad_argument);
  CHECK(write({0, Site::expert}, width) == Errc::bad_argument);  // a dense layer
  CHECK(write({1, Site::expert}, width + 8) == Errc::bad_argument);
  CHECK(write({1, Site::expert}, width, false) == Errc::bad_argument);
  convert::Calibration few;
  few.uses.resize(1);
  CHECK(std::string(test::failure_of([&] {
                      convert::write_calibration(path, model, few);
                    }).what()) == path.string() + ": uses: invalid argument, got 1, wanted 15");
  CHECK_FALSE(fs::exists(path));
  // What is written is what open() takes.
  CHECK(write({1, Site::expert, 4}, width) == Errc::ok);
  const auto file = convert::CalibrationFile::open(path, model, 0);
  CHECK(file.count({1, Site::expert, 4}) == 1);
  CHECK(file.block({1, Site::expert, 4}) == 1);
  CHECK(file.block({1, Site::expert, 3}) == 0);
  CHECK(convert::moment_sums(10, 4) == 10 + 10 + 3);  // triangles of 4, 4 and 2
  CHECK(convert::moment_sums(10, 99) == 55);
  CHECK(convert::moment_sums(0, 4) == 0);
  CHECK(convert::moment_sums(4, 0) == 0);
  CHECK_FALSE(convert::site_of("model.layers.65536.self_attn.q_proj.weight"));
  CHECK_FALSE(convert::site_of("model.layers.1"));
  CHECK_FALSE(convert::site_of(""));
}

}  // namespace
