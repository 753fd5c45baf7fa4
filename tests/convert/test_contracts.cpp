// What public functions say of paths, sizes and spans that their contracts rule out.
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
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

void save(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

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
  save(dir / "plain", "x");
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
  save(dir / "plain", "x");
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

}  // namespace
