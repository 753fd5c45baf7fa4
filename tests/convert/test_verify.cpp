// Every byte class of every file of a container, damaged: the audit names it and goes on.
#include "waste/convert/verify.hpp"

#include <sys/wait.h>
#include <zlib.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/convert/converter.hpp"
#include "waste/io/container.hpp"

using namespace waste;
using namespace waste::test;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

using Bytes = std::string;

struct Subject {
  fs::path source, pristine;
  format::Manifest manifest;
};

/// One container of three formats each, made once.
const Subject& subject(format::Fmt fmt) {
  static std::map<format::Fmt, Subject> made;
  if (!made.count(fmt)) {
    SmallSource s;
    s.k3 = fmt == format::Fmt::vq4p;
    Subject out;
    const std::string name(to_string(fmt));
    out.source = make_source(scratch_dir("verify-source-" + name), s);
    out.pristine = scratch_dir("verify-pristine-" + name);
    convert::ConvertOptions o;
    o.quant = fmt == format::Fmt::vq3r   ? format::vq3r
              : fmt == format::Fmt::vq2r ? format::vq2r
                                         : format::vq4p;
    o.effort = quant::Effort::fast;
    o.codebook_sample = 2;
    convert::convert(out.source, out.pristine, o);
    out.manifest = Container::open(out.pristine).manifest();
    made[fmt] = out;
  }
  return made[fmt];
}

/// A copy of a pristine container in which `change` edits the bytes of `file`.
fs::path damaged(const Subject& s, const std::string& file,
                 const std::function<void(Bytes&)>& change) {
  const fs::path dir = scratch_dir("verify-damaged");
  fs::copy(s.pristine, dir, fs::copy_options::recursive);
  Bytes bytes = read_bytes(dir / file);
  change(bytes);
  write_file(dir / file, bytes);
  return dir;
}

void put(Bytes& b, std::size_t at, std::uint64_t value, std::size_t n) {
  std::memcpy(b.data() + at, &value, n);
}

/// Recomputes the crc32 of record e, so that only what was meant is wrong.
void fix_crc(const Subject& s, Bytes& bank, std::size_t e) {
  const format::RecordLayout& l = s.manifest.layout;
  const std::size_t at = e * l.record_bytes;
  put(bank, at + 36,
      ::crc32(0, reinterpret_cast<const Bytef*>(bank.data()) + at + 48, l.payload_end - 48), 4);
}

struct Damage {
  const char* what;
  std::string file;
  std::function<void(Bytes&)> change;
  Errc code;
  const char* field;
  bool expert = false;  ///< the finding names expert 4 of layer 2
};

std::vector<Damage> damages(const Subject& s) {
  const format::RecordLayout l = s.manifest.layout;
  const std::size_t at = 4 * l.record_bytes;
  const auto& q = s.manifest.expert_quant;
  const std::string bank = "experts-L2.bin";
  const auto field = [&](std::size_t off, std::uint64_t value, std::size_t n) {
    return [=](Bytes& b) { put(b, at + off, value, n); };
  };
  const auto with_crc = [&](const std::function<void(Bytes&)>& f) {
    return [=, &s](Bytes& b) {
      f(b);
      fix_crc(s, b, 4);
    };
  };
  std::vector<Damage> out = {
      {"magic", bank, field(0, 0, 4), Errc::bad_magic, "magic", true},
      {"layer", bank, field(4, 1, 2), Errc::mismatch, "layer", true},
      {"expert", bank, field(6, 5, 2), Errc::mismatch, "expert_id", true},
      {"fmt", bank, field(8, q.index_bits == 6 ? 4 : 8, 1), Errc::mismatch, "fmt", true},
      {"flags", bank, field(9, 128, 1), Errc::bad_field, "flags", true},
      {"bf16", bank, field(9, 1, 1), Errc::unsupported, "flags", true},
      {"codebook", bank, field(10, 0xffff, 2), Errc::mismatch, "codebook_id", true},
      {"lowrank", bank, field(12, 1, 2), Errc::unsupported, "lowrank_id", true},
      {"reserved0", bank, field(14, 1, 2), Errc::bad_field, "reserved0", true},
      {"blocks", bank, field(16, 1, 4), Errc::mismatch, "rec_4k_blocks", true},
      {"gate_off", bank, field(20, 49, 4), Errc::mismatch, "gate_off", true},
      {"up_off", bank, field(24, l.index_off[1] + 1, 4), Errc::mismatch, "up_off", true},
      {"down_off", bank, field(28, l.index_off[1], 4), Errc::mismatch, "down_off", true},
      {"scale_off", bank, field(32, 0xffffffff, 4), Errc::mismatch, "chan_corr_off", true},
      {"crc", bank, [=](Bytes& b) { b[at + 36] ^= 1; }, Errc::checksum, "crc32", true},
      {"reserved1", bank, field(44, 1, 4), Errc::bad_field, "reserved1", true},
      {"first index", bank, [=](Bytes& b) { b[at + 48] ^= 1; }, Errc::checksum, "crc32", true},
      {"last scale", bank, [=](Bytes& b) { b[at + l.payload_end - 1] ^= 1; }, Errc::checksum,
       "crc32", true},
      {"infinite scale", bank, with_crc(field(l.scales(format::Kind::up) + 2, 0x7c00, 2)),
       Errc::bad_field, "scale", true},
      {"NaN scale", bank, with_crc(field(l.scales(format::Kind::down), 0xfe01, 2)), Errc::bad_field,
       "scale", true},
      {"row padding", bank, with_crc([=](Bytes& b) { b[at + l.index_off[1] - 1] = 1; }),
       Errc::bad_field, "padding", true},
      {"page padding", bank, [=](Bytes& b) { b[at + l.record_bytes - 1] = 1; }, Errc::bad_field,
       "padding", true},
      {"short bank", bank, [](Bytes& b) { b.pop_back(); }, Errc::truncated, "size"},
      {"long bank", bank, [](Bytes& b) { b.push_back(0); }, Errc::mismatch, "size"},
      {"empty bank", bank, [](Bytes& b) { b.clear(); }, Errc::truncated, "size"},
  };
  const std::string books = "codebooks.bin";
  const std::size_t book = 7 * (16 + 16 * q.entries);
  const auto of_book = [&](std::size_t off, std::uint64_t value, std::size_t n) {
    return [=](Bytes& b) { put(b, book + off, value, n); };
  };
  out.insert(out.end(),
             {
                 {"book magic", books, of_book(0, 1, 4), Errc::bad_magic, "magic"},
                 {"book id", books, of_book(4, 9, 2), Errc::mismatch, "id"},
                 {"book fmt", books, of_book(6, 77, 1), Errc::mismatch, "fmt"},
                 {"book vec_dim", books, of_book(7, 4, 1), Errc::mismatch, "vec_dim"},
                 {"book entries", books, of_book(8, 3, 4), Errc::mismatch, "entries"},
                 {"book reserved", books, of_book(12, 1, 4), Errc::bad_field, "reserved"},
                 {"book infinity", books, of_book(16, 0x7c00, 2), Errc::bad_field, "codebook"},
                 {"book NaN", books, of_book(16 + 16 * q.entries - 2, 0x7c01, 2), Errc::bad_field,
                  "codebook"},
                 {"another finite entry", books, [=](Bytes& b) { b[book + 16] ^= 1; },
                  Errc::checksum, "crc32"},
                 {"zeroed book in use", books,
                  [=](Bytes& b) { std::memset(b.data() + book, 0, 16 + 16 * q.entries); },
                  Errc::bad_magic, "magic"},
                 {"short books", books, [](Bytes& b) { b.pop_back(); }, Errc::mismatch, "size"},
             });
  const std::string trunk = "trunk.bin";
  const format::TrunkEntry *f32 = nullptr, *grouped = nullptr;
  for (const format::TrunkEntry& t : s.manifest.trunk) {
    if (t.fmt == format::Fmt::f32) f32 = &t;
    if (t.fmt == format::Fmt::q4g) grouped = &t;
  }
  const auto in_trunk = [](std::uint64_t at, std::uint64_t value, std::size_t n) {
    return [=](Bytes& b) { put(b, at, value, n); };
  };
  const std::uint64_t row = format::trunk_row_bytes(grouped->fmt, grouped->cols());
  out.insert(out.end(),
             {
                 {"F32 NaN", trunk, in_trunk(f32->off + f32->bytes - 4, 0x7fc00000, 4),
                  Errc::bad_field, ""},
                 {"infinite group scale", trunk, in_trunk(grouped->scale_off, 0xfc00, 2),
                  Errc::bad_field, "scale"},
                 {"padding code", trunk, in_trunk(grouped->off + row - 1, 0x98, 1), Errc::bad_field,
                  "padding"},
                 {"another F32 value", trunk, [=](Bytes& b) { b[f32->off] ^= 1; }, Errc::checksum,
                  f32->name.c_str()},
                 {"another code", trunk, [=](Bytes& b) { b[grouped->off] ^= 1; }, Errc::checksum,
                  grouped->name.c_str()},
                 {"another group scale", trunk, [=](Bytes& b) { b[grouped->scale_off] ^= 1; },
                  Errc::checksum, grouped->name.c_str()},
                 {"short trunk", trunk, [](Bytes& b) { b.pop_back(); }, Errc::truncated, "size"},
                 {"long trunk", trunk, [](Bytes& b) { b.push_back(0); }, Errc::mismatch, "size"},
             });
  return out;
}

std::string messages(const convert::VerifyReport& r) {
  std::string out;
  for (const convert::Finding& f : r.findings) out += f.message + "\n";
  return out;
}

}  // namespace

TEST_CASE("every kind of damage is found, with its code, its file and its place") {
  const auto fmt = GENERATE(format::Fmt::vq3r, format::Fmt::vq2r, format::Fmt::vq4p);
  const Subject& s = subject(fmt);
  REQUIRE(convert::verify(s.pristine).ok());
  for (const Damage& d : damages(s)) {
    INFO(to_string(fmt) << ": " << d.what);
    const fs::path dir = damaged(s, d.file, d.change);
    const auto report = convert::verify(dir);
    INFO(messages(report));
    CHECK(report.findings_total == 1);
    REQUIRE(report.findings.size() >= 1);
    const convert::Finding& f = report.findings.front();
    CHECK(f.fault.code == d.code);
    CHECK(f.message.find(d.field) != std::string::npos);
    CHECK(f.file == (dir / d.file).string());
    if (d.expert) {
      CHECK(f.fault.layer == 2);
      CHECK(f.fault.expert == 4);
    }
  }
}

TEST_CASE("the audit goes on after the first damage") {
  const Subject& s = subject(format::Fmt::vq3r);
  const std::size_t record = s.manifest.layout.record_bytes;
  const fs::path dir = damaged(s, "experts-L1.bin", [&](Bytes& b) {
    for (const std::size_t e : {0, 3, 5}) b[e * record + 60] ^= 1;
  });
  fs::remove(dir / "experts-L2.bin");
  for (const char* file : {"codebooks.bin", "trunk.bin"}) {
    Bytes b = read_bytes(dir / file);
    if (file[0] == 'c') {
      b[0] ^= 1;
      b[4112] ^= 1;
    } else {
      put(b, s.manifest.trunk.front().scale_off, 0x7c00, 2);
    }
    write_file(dir / file, b);
  }
  convert::VerifyOptions o;
  o.max_findings = 3;
  for (const unsigned jobs : {1u, 3u}) {
    o.jobs = jobs;
    const auto report = convert::verify(dir, o);
    INFO(messages(report));
    CHECK(report.findings_total == 7);
    CHECK(report.findings.size() == 3);
    o.max_findings = 100;
    const auto all = convert::verify(dir, o);
    CHECK(all.findings.size() == 7);
    std::string experts;
    for (const auto& f : all.findings) {
      if (f.fault.expert != Fault::none) experts += std::to_string(f.fault.expert) + " ";
    }
    CHECK(experts == "0 3 5 ");
    o.max_findings = 3;
  }
}

TEST_CASE("a manifest that cannot be believed is one finding and no more is tried") {
  const Subject& s = subject(format::Fmt::vq3r);
  const std::vector<std::pair<std::string, std::string>> edits = {
      {"\"format_version\": 0", "\"format_version\": 1"},
      {"\"stages\": 3", "\"stages\": 2"},
      {"experts-L1.bin", "../evil.bin"},
      {"\"off\": 0,", "\"off\": 1,"},
      {"{", "{{"}};
  for (const auto& [from, to] : edits) {
    const fs::path dir = damaged(s, "manifest.json", [&](Bytes& b) {
      REQUIRE(b.find(from) != std::string::npos);
      b.replace(b.find(from), from.size(), to);
    });
    const auto report = convert::verify(dir);
    INFO(from);
    CHECK_FALSE(report.has_manifest);
    CHECK(report.findings_total == 1);
  }
  const fs::path nothing = scratch_dir("verify-nothing");
  CHECK_THROWS_AS(convert::verify(nothing), Error);
  convert::VerifyOptions o;
  o.source = nothing;
  CHECK_THROWS_AS(convert::verify(s.pristine, o), Error);
}

TEST_CASE("with the source, weights that are sound bytes but not its weights are found") {
  const Subject& s = subject(format::Fmt::vq3r);
  convert::VerifyOptions o;
  o.source = s.source;
  REQUIRE(convert::verify(s.pristine, o).ok());
  const std::size_t record = s.manifest.layout.record_bytes;

  // Two experts took each other's place, ids and checksums in order.
  fs::path dir = damaged(s, "experts-L1.bin", [&](Bytes& b) {
    const Bytes two = b.substr(2 * record, record), three = b.substr(3 * record, record);
    b.replace(2 * record, record, three);
    b.replace(3 * record, record, two);
    put(b, 2 * record + 6, 2, 2);
    put(b, 3 * record + 6, 3, 2);
  });
  CHECK(convert::verify(dir).ok());
  auto report = convert::verify(dir, o);
  INFO(messages(report));
  std::map<std::uint32_t, int> named;
  for (const auto& f : report.findings) {
    CHECK(f.fault.code == Errc::mismatch);
    CHECK(f.fault.layer == 1);
    ++named[f.fault.expert];
  }
  CHECK(named[2] == 3);
  CHECK(named[3] == 3);
  CHECK(named.count(0) == 0);

  // A row scale of an expert twice what it was.
  dir = damaged(s, "experts-L2.bin", [&](Bytes& b) {
    const std::size_t at = record + s.manifest.layout.scales(format::Kind::down);
    for (std::size_t r = 0; r < 160; ++r) b[at + 2 * r + 1] += 4;
    fix_crc(s, b, 1);
  });
  CHECK(convert::verify(dir).ok());
  report = convert::verify(dir, o);
  REQUIRE(report.findings_total >= 1);
  CHECK(report.findings.front().fault.expert == 1);
  CHECK(report.findings.front().message.find("down is") != std::string::npos);

  // One value of an F32 tensor, and one group scale of a quantized one.
  const format::TrunkEntry* f32 = s.manifest.tensor("model.norm.weight");
  dir = damaged(s, "trunk.bin", [&](Bytes& b) { b[f32->off] ^= 1; });
  report = convert::verify(dir, o);
  REQUIRE(report.findings_total == 2);
  CHECK(report.findings[0].fault.code == Errc::checksum);  // checksums.json knows the tensor
  CHECK(report.findings[1].message.find("model.norm.weight is") != std::string::npos);

  // The source of another model, and this model's with one tensor more in the container.
  SmallSource other;
  other.experts = 5;
  o.source = make_source(scratch_dir("verify-other-source"), other);
  report = convert::verify(s.pristine, o);
  CHECK_FALSE(report.compared);
  CHECK(report.findings_total == 2);
}

TEST_CASE("with the source, a tensor that is on one side only or has another shape is found") {
  const Subject& s = subject(format::Fmt::vq4p);
  convert::VerifyOptions o;
  o.source = s.source;
  const std::string name = "vision_tower.patch_embed.proj.weight";
  const auto findings = [&](const std::function<void(nlohmann::ordered_json&)>& change) {
    const fs::path dir = damaged(s, "manifest.json", [&](Bytes& b) {
      auto manifest = nlohmann::ordered_json::parse(b);
      for (auto& t : manifest["trunk"]) {
        if (t["name"] == name) change(t);
      }
      b = manifest.dump();
    });
    fs::remove(dir / "checksums.json");  // which knows the manifest
    const std::string file = (dir / "trunk.bin").string();
    CHECK(convert::verify(dir).ok());
    std::vector<std::string> out;
    for (const auto& f : convert::verify(dir, o).findings) {
      CHECK(f.file == file);
      REQUIRE(f.message.starts_with(file));
      out.push_back(f.message.substr(file.size()));
    }
    return out;
  };
  CHECK(findings([](auto&) {}).empty());
  CHECK(findings([](auto& t) { t["name"] = "vision_tower.other"; }) ==
        std::vector<std::string>{": tensor: missing; " + name,
                                 ": tensor: mismatch; vision_tower.other is not in the source"});
  CHECK(findings([](auto& t) {
          auto& shape = t["shape"];
          shape.insert(shape.begin(), 1);
        }) == std::vector<std::string>{": tensor: shape mismatch; " + name +
                                       " has another shape in the source"});
}

TEST_CASE("limits depend on the format") {
  CHECK(convert::expert_error_limit(format::vq3r) == Approx(0.25).margin(0.001));
  CHECK(convert::expert_error_limit(format::vq2r) == Approx(0.397).margin(0.001));
  CHECK(convert::expert_error_limit(format::vq4p) == Approx(0.315).margin(0.001));
  const Subject& s = subject(format::Fmt::vq3r);
  convert::VerifyOptions o;
  o.source = s.source;
  o.max_expert_error = 0.01;
  const auto report = convert::verify(s.pristine, o);
  CHECK(report.findings_total == 6 * 7);  // six experts and the sum, three kinds, two layers
}

TEST_CASE("the command's exit code tells") {
  const char* named = std::getenv("WASTE_BINARY");
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "waste";
  const fs::path binary = named ? fs::path(named) : beside;
  if (!fs::exists(binary)) {
    skipped("exit codes of waste verify: WASTE_BINARY names no program");
    return;
  }
  const Subject& s = subject(format::Fmt::vq3r);
  const auto run = [&](const std::string& arguments) {
    const int status =
        std::system(("'" + binary.string() + "' verify " + arguments + " >/dev/null 2>&1").c_str());
    return WEXITSTATUS(status);
  };
  const std::string pristine = "'" + s.pristine.string() + "'";
  CHECK(run(pristine) == 0);
  CHECK(run(pristine + " --json --source '" + s.source.string() + "'") == 0);
  const fs::path bad = damaged(s, "trunk.bin", [](Bytes& b) { b.pop_back(); });
  CHECK(run("'" + bad.string() + "'") == 2);
  CHECK(run("'" + bad.string() + "' --json") == 2);
  CHECK(run("/nowhere/at/all") == 1);
  CHECK(run("") == 64);
}
