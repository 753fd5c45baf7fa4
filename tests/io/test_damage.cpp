// Damaged files: each byte class of each file in each format has its exact fault.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/io/audit.hpp"

namespace {

namespace fs = std::filesystem;
using namespace waste;
using test::Bytes;
using test::TinyContainer;
using test::TinySpec;

std::vector<TinySpec> formats() {
  TinySpec row_major = TinySpec::vq4p();
  row_major.index_block = 0;
  TinySpec few = TinySpec::kimi_k3();
  few.entries = 200;
  TinySpec few4 = TinySpec::vq4p();
  few4.entries = 40;
  return {TinySpec::vq3r(),
          TinySpec::vq2r(),
          TinySpec::vq4p(),
          TinySpec::kimi_k3(),
          row_major,
          few,
          few4};
}

struct Found {
  Errc code = Errc::ok;
  std::string field, file, message;
  std::uint32_t layer = Fault::none, expert = Fault::none;
};

Found found(const Error& e) {
  return {e.code(), e.fault().field, fs::path(e.file()).filename(),
          e.what(), e.fault().layer, e.fault().expert};
}

Found open_fault(const TinyContainer& tiny, bool resident = true) {
  const auto dir = test::scratch_dir("damage");
  tiny.write(dir);
  try {
    OpenOptions options;
    options.resident_trunk = resident;
    Container::open(dir, options);
  } catch (const Error& e) {
    return found(e);
  }
  return {};
}

struct AuditResult {
  std::vector<Found> faults;
  std::uint64_t counted = 0;
};

AuditResult audit(const TinyContainer& tiny) {
  const auto dir = test::scratch_dir("audit");
  tiny.write(dir);
  OpenOptions options;
  options.resident_trunk = false;
  const Container container = Container::open(dir, options);
  AuditResult out;
  std::uint64_t last = 0;
  const io::AuditSink sink{[&](const Error& e) { out.faults.push_back(found(e)); },
                           [&](std::uint64_t bytes) { last = bytes; }};
  for (const io::ExpertBank& bank : container.banks()) {
    out.counted += io::audit_bank(bank, sink);
    CHECK(last == bank.experts() * bank.record_bytes());
  }
  out.counted += io::audit_codebooks(container, sink);
  CHECK(last == tiny.files.at("codebooks.bin").size());
  out.counted += io::audit_trunk(container, sink);
  CHECK(last == tiny.files.at("trunk.bin").size());
  CHECK(out.counted == out.faults.size());
  return out;
}

void poke16(Bytes& bytes, std::size_t at, std::uint16_t v) { std::memcpy(&bytes[at], &v, 2); }

std::uint32_t peek32(const Bytes& bytes, std::size_t at) {
  std::uint32_t v;
  std::memcpy(&v, &bytes[at], 4);
  return v;
}

TEST_CASE("undamaged containers pass the audit", "[audit]") {
  for (const TinySpec& s : formats()) CHECK(audit(test::make_tiny(s)).faults.empty());
  for (const int fmt : {1, 2, 7}) {
    TinySpec s;
    s.trunk_fmt = fmt;
    CHECK(audit(test::make_tiny(s)).faults.empty());
  }
}

TEST_CASE("containers in the world pass the audit", "[audit][shared]") {
  const auto shared = test::shared_dir();
  if (shared.empty()) {
    WARN("skipped: WASTE_SHARED is not set");
    return;
  }
  for (const char* name : {"k3.waste", "vq2r.waste", "vq3r.waste", "vq4p.waste"}) {
    const Container container = Container::open(shared / "interop" / name);
    std::uint64_t faults = 0;
    for (const io::ExpertBank& bank : container.banks()) faults += io::audit_bank(bank, {});
    faults += io::audit_codebooks(container, {}) + io::audit_trunk(container, {});
    INFO(name);
    CHECK(faults == 0);
  }
}

TEST_CASE("each byte class of a record has its fault", "[audit][damage]") {
  struct Damage {
    const char* what;
    std::function<void(Bytes&, std::size_t record, const TinyContainer&)> change;
    bool fix_crc;
    Errc code;
    const char* field;
  };
  const auto byte = [](std::size_t at, std::uint8_t mask) {
    return [=](Bytes& b, std::size_t r, const TinyContainer&) { b[r + at] ^= mask; };
  };
  const auto scales_at = [](const Bytes& b, std::size_t r) { return r + peek32(b, r + 32); };
  const Errc m = Errc::mismatch;
  const Damage damages[] = {
      {"magic", byte(0, 1), false, Errc::bad_magic, "magic"},
      {"layer", byte(4, 1), false, m, "layer"},
      {"layer high", byte(5, 1), false, m, "layer"},
      {"expert", byte(6, 1), false, m, "expert_id"},
      {"fmt", byte(8, 2), false, m, "fmt"},
      {"flags", byte(9, 0x80), false, Errc::bad_field, "flags"},
      {"bf16 flag", byte(9, 1), false, Errc::unsupported, "flags (bf16 payload)"},
      {"codebook", byte(10, 1), false, m, "codebook_id"},
      {"low rank", byte(12, 1), false, Errc::unsupported, "lowrank_id"},
      {"reserved0", byte(15, 1), false, Errc::bad_field, "reserved0"},
      {"blocks", byte(16, 1), false, m, "rec_4k_blocks"},
      {"gate_off", byte(20, 1), false, m, "gate_off"},
      {"up_off", byte(25, 1), false, m, "up_off"},
      {"down_off", byte(28, 8), false, m, "down_off"},
      {"scales off", byte(35, 0x80), false, m, "chan_corr_off"},
      {"crc", byte(36, 1), false, Errc::checksum, "crc32"},
      {"reserved1", byte(47, 1), false, Errc::bad_field, "reserved1"},
      {"first index byte", byte(48, 1), false, Errc::checksum, "crc32"},
      {"last index byte",
       [=](Bytes& b, std::size_t r, const TinyContainer&) { b[scales_at(b, r) - 1] ^= 1; }, false,
       Errc::checksum, "crc32"},
      {"a scale", [=](Bytes& b, std::size_t r, const TinyContainer&) { b[scales_at(b, r)] ^= 1; },
       false, Errc::checksum, "crc32"},
      {"gate scale infinity",
       [=](Bytes& b, std::size_t r, const TinyContainer&) { poke16(b, scales_at(b, r), 0x7c00); },
       true, Errc::bad_field, "gate scale is not finite"},
      {"up scale NaN",
       [=](Bytes& b, std::size_t r, const TinyContainer& t) {
         poke16(b, scales_at(b, r) + 2 * t.spec.inter, 0xfe01);
       },
       true, Errc::bad_field, "up scale is not finite"},
      {"last down scale NaN",
       [=](Bytes& b, std::size_t r, const TinyContainer& t) {
         poke16(b, scales_at(b, r) + 4 * t.spec.inter + 2 * t.spec.width() - 2, 0x7fff);
       },
       true, Errc::bad_field, "down scale is not finite"},
      {"first padding byte",
       [=](Bytes& b, std::size_t r, const TinyContainer& t) {
         b[scales_at(b, r) + 4 * t.spec.inter + 2 * t.spec.width()] = 1;
       },
       false, Errc::bad_field, "record padding"},
      {"last padding byte",
       [](Bytes& b, std::size_t r, const TinyContainer& t) { b[r + t.record_bytes() - 1] = 1; },
       false, Errc::bad_field, "record padding"},
  };
  for (const TinySpec& spec : formats()) {
    const TinyContainer whole = test::make_tiny(spec);
    for (const Damage& d : damages) {
      TinyContainer tiny = whole;
      const std::size_t record = 3 * tiny.record_bytes();
      d.change(tiny.bank(2), record, tiny);
      if (d.fix_crc) tiny.fix_crc(2, 3);
      const AuditResult r = audit(tiny);
      INFO(spec.fmt << " " << d.what);
      REQUIRE(r.faults.size() == 1);
      INFO(r.faults[0].message);
      CHECK(waste::to_string(r.faults[0].code) == waste::to_string(d.code));
      CHECK(r.faults[0].field == d.field);
      CHECK(r.faults[0].layer == 2);
      CHECK(r.faults[0].expert == 3);
      CHECK(r.faults[0].file == "experts-L2.bin");

      // The read path finds the same, except what only an audit looks at, and with verification off
      // what only the crc shows.
      const auto dir = test::scratch_dir("read");
      tiny.write(dir);
      for (const bool verify : {false, true}) {
        OpenOptions options;
        options.verify_records = verify ? waste::io::Verify::always : waste::io::Verify::off;
        const Container container = Container::open(dir, options);
        const bool read_sees =
            std::string(d.field) != "record padding" && (verify || d.code != Errc::checksum);
        Errc code = Errc::ok;
        try {
          container.bank(LayerId{2}).read(ExpertId{3});
        } catch (const Error& e) {
          code = e.code();
          CHECK(std::string(e.fault().field) == d.field);
        }
        CHECK(code == (read_sees ? d.code : Errc::ok));
        CHECK_NOTHROW(container.bank(LayerId{2}).read(ExpertId{2}));
      }
    }
  }
}

TEST_CASE("an index beyond the codebook is found, and harmless meanwhile", "[audit][damage]") {
  const struct {
    std::size_t kind;
    const char* field;
  } kinds[] = {{0, "gate index"}, {1, "up index"}, {2, "down index"}};
  for (const bool six_bits : {false, true}) {
    TinySpec spec = six_bits ? TinySpec::vq4p() : TinySpec::vq3r();
    spec.entries = 40;
    for (const auto& k : kinds) {
      TinyContainer tiny = test::make_tiny(spec);
      auto& index = tiny.layers[0].experts[1][k.kind].index;
      index[index.size() - 1] = 40;
      tiny.pack();
      const AuditResult r = audit(tiny);
      REQUIRE(r.faults.size() == 1);
      CHECK(r.faults[0].code == Errc::out_of_range);
      CHECK(r.faults[0].field == k.field);
      CHECK(r.faults[0].expert == 1);
      const auto dir = test::scratch_dir("wild");
      tiny.write(dir);
      const Container container = Container::open(dir);
      const Expert expert = container.bank(LayerId{1}).read(ExpertId{1});
      const VqMatrix* m[] = {&expert.gate(), &expert.up(), &expert.down()};
      const VqMatrix& w = *m[k.kind];
      const std::size_t stage = spec.stages - 1;
      REQUIRE(w.index(w.rows() - 1, w.positions() - 1, stage) == 40);
      const float* entry = w.codebooks + (stage * w.table_entries() + 40) * 8;
      for (std::size_t d = 0; d < 8; ++d) CHECK(entry[d] == 0.f);
      CHECK(w.table_entries() == (six_bits ? 64u : 256u));
    }
  }
}

TEST_CASE("padding rows of an index block must be zero", "[audit][damage]") {
  const struct {
    std::size_t offset_field;
    const char* field;
  } kinds[] = {{24, "gate index padding"}, {28, "up index padding"}, {32, "down index padding"}};
  for (const auto& k : kinds) {
    TinyContainer tiny = test::make_tiny(TinySpec{});
    Bytes& bank = tiny.bank(1);
    bank[peek32(bank, k.offset_field) - 1] = 1;  // the last row of the last block is padding
    tiny.fix_crc(1, 0);
    const AuditResult r = audit(tiny);
    REQUIRE(r.faults.size() == 1);
    CHECK(r.faults[0].code == Errc::bad_field);
    CHECK(r.faults[0].field == k.field);
  }
}

TEST_CASE("an audit goes on after a fault and counts all", "[audit]") {
  TinyContainer tiny = test::make_tiny(TinySpec{});
  for (std::uint32_t e = 0; e < 5; ++e) tiny.bank(1)[e * tiny.record_bytes()] ^= 1;
  tiny.bank(3)[100] ^= 1;
  CHECK(audit(tiny).counted == 6);
}

TEST_CASE("each byte class of the codebooks has its fault at open", "[damage]") {
  struct Damage {
    std::size_t at;
    std::uint8_t value;
    Errc code;
    const char* field;
  };
  for (const TinySpec& spec : formats()) {
    const TinyContainer whole = test::make_tiny(spec);
    const std::size_t size = 16 + 16 * spec.entries;
    const Damage damages[] = {
        {0, 0, Errc::bad_magic, "codebook magic"},
        {4, 0x77, Errc::mismatch, "codebook id"},
        {6, 3, Errc::mismatch, "codebook fmt"},
        {7, 4, Errc::mismatch, "codebook vec_dim"},
        {10, 1, Errc::mismatch, "codebook entries"},
        {15, 1, Errc::bad_field, "codebook reserved"},
        {17, 0x7c, Errc::bad_field, "codebook entry is not finite"},
        {size - 1, 0xff, Errc::bad_field, "codebook entry is not finite"},
    };
    for (const Damage& d : damages) {
      TinyContainer tiny = whole;
      tiny.files["codebooks.bin"][5 * size + d.at] = d.value;
      const Found f = open_fault(tiny);
      INFO(spec.fmt << " byte " << d.at << ": " << f.message);
      CHECK(waste::to_string(f.code) == waste::to_string(d.code));
      CHECK(f.field == d.field);
      CHECK(f.file == "codebooks.bin");
      CHECK(f.message.find("codebook 5") != std::string::npos);
    }
    TinyContainer filler = whole;
    std::fill_n(filler.files["codebooks.bin"].begin() + static_cast<std::ptrdiff_t>(4 * size), size,
                std::uint8_t{0});
    CHECK(open_fault(filler).code == Errc::bad_magic);
    for (const std::uint8_t fmt : {4, static_cast<int>(spec.index_bits == 6 ? 8 : 4)}) {
      TinyContainer own = whole;
      own.files["codebooks.bin"][6] = fmt;
      CHECK(open_fault(own).code == Errc::ok);
    }
  }
}

TEST_CASE("codebooks of a resumed conversion: any order, fillers, orphans", "[damage]") {
  TinyContainer tiny = test::make_tiny(TinySpec{});
  const std::size_t size = 16 + 16 * 256;
  tiny.layers[0].codebook_base = 27;
  tiny.layers[1].codebook_base = 0;
  tiny.layers[2].codebook_base = 40;  // 9 .. 26 and 36 .. 39 are nobody's: zero
  tiny.pack();
  CHECK(open_fault(tiny).code == Errc::ok);
  CHECK(audit(tiny).faults.empty());
  // An orphan that is no filler must be valid; only the audit looks.
  tiny.files["codebooks.bin"][10 * size + 100] = 1;
  CHECK(open_fault(tiny).code == Errc::ok);
  const AuditResult r = audit(tiny);
  REQUIRE(r.faults.size() == 1);
  CHECK(r.faults[0].code == Errc::bad_magic);
  CHECK(r.faults[0].message.find("codebook 10") != std::string::npos);
  tiny.files["codebooks.bin"].resize(48 * size);
  CHECK(open_fault(tiny).code == Errc::truncated);
  CHECK(open_fault(tiny).layer == 3);
}

TEST_CASE("a codebook id beyond 16 bits is stored modulo 65536", "[damage]") {
  TinySpec spec = TinySpec::vq4p();
  spec.entries = 2;  // keeps 65,540 records small
  spec.layers = 2;
  TinyContainer tiny = test::make_tiny(spec);
  tiny.layers[0].codebook_base = 65530;
  tiny.pack();
  CHECK(open_fault(tiny).code == Errc::ok);
  CHECK(audit(tiny).faults.empty());
}

TEST_CASE("each byte class of the trunk has its fault", "[damage]") {
  for (const int fmt : {1, 2, 3, 7}) {
    TinySpec spec;
    spec.trunk_fmt = fmt;
    const TinyContainer whole = test::make_tiny(spec);
    const auto entry = [&](const std::string& name) {
      for (const auto& t : whole.manifest["trunk"]) {
        if (t["name"] == name) return t;
      }
      throw std::runtime_error(name);
    };
    const auto check = [&](const char* what, const std::string& name, std::size_t at, Bytes value,
                           Errc code, const char* field, bool open_sees) {
      TinyContainer tiny = whole;
      std::copy(value.begin(), value.end(),
                tiny.files["trunk.bin"].begin() + static_cast<std::ptrdiff_t>(at));
      INFO(fmt << " " << what);
      const Found f = open_fault(tiny);
      CHECK(f.code == (open_sees ? code : Errc::ok));
      if (open_sees) {
        CHECK(f.field == field);
        CHECK(f.file == "trunk.bin");
        CHECK(f.message.find(name) != std::string::npos);
      }
      const AuditResult r = audit(tiny);
      REQUIRE(r.faults.size() == 1);
      CHECK(r.faults[0].code == code);
      CHECK(r.faults[0].field == field);
      CHECK(r.faults[0].message.find(name) != std::string::npos);
    };
    const char* element = "trunk element is not finite";
    const char* scale = "trunk scale is not finite";
    const std::string norm = "model.layers.2.input_layernorm.weight";
    const std::string matrix = "model.layers.1.block_sparse_moe.shared_experts.gate_proj.weight";
    const std::string table = "model.embed_tokens.weight";
    check("NaN in a norm", norm, entry(norm)["off"].get<std::size_t>() + 4, {0, 0, 0xc0, 0x7f},
          Errc::bad_field, element, true);
    check("infinity in a norm", norm, entry(norm)["off"].get<std::size_t>(), {0, 0, 0x80, 0xff},
          Errc::bad_field, element, true);
    const auto t = entry(matrix);
    const auto off = t["off"].get<std::size_t>();
    const auto last = off + t["bytes"].get<std::size_t>() - 2;
    if (fmt == 1) {
      check("F16 infinity", matrix, last, {0x00, 0x7c}, Errc::bad_field, element, true);
    } else {
      check("scale NaN", matrix, last, {0x01, 0x7c}, Errc::bad_field, scale, true);
      const auto scales = t["scale_off"].get<std::size_t>();
      check("scale infinity", matrix, scales, {0x00, 0xfc}, Errc::bad_field, scale, true);
    }
    // 160 columns leave 96 of padding in the second group of a row.
    const char* padding = "trunk padding code";
    if (fmt == 2) check("Q8G padding", matrix, off + 255, {1}, Errc::bad_field, padding, false);
    if (fmt == 3) check("Q4G padding", matrix, off + 80, {0x89}, Errc::bad_field, padding, false);
    if (fmt == 7) check("Q3G padding", matrix, off + 95, {0}, Errc::bad_field, padding, false);
    if (fmt == 7) {
      check("Q3G guard", matrix, off + 96, {1}, Errc::bad_field, "trunk guard byte", false);
    }
    // The embedding table stays on disk, so its damage shows when the row is read.
    const auto e = entry(table);
    const auto row_scale = e["scale_off"].get<std::size_t>() + 2 * 2 * 7;
    check("embedding scale", table, row_scale, {0x00, 0x7c}, Errc::bad_field, scale, false);
    TinyContainer tiny = whole;
    poke16(tiny.files["trunk.bin"], row_scale, 0x7c00);
    const auto dir = test::scratch_dir("row");
    tiny.write(dir);
    const Container container = Container::open(dir);
    AlignedBuffer<std::uint8_t> row;
    CHECK_NOTHROW(container.trunk().read_row(table, 6, row));
    try {
      container.trunk().read_row(table, 7, row);
      FAIL("row 7 has an infinite scale");
    } catch (const Error& error) {
      CHECK(error.code() == Errc::bad_field);
      CHECK(std::string(error.fault().field) == scale);
    }
  }
}

TEST_CASE("subnormal scales and codebook entries are values, not damage", "[damage]") {
  TinyContainer tiny = test::make_tiny(TinySpec{});
  for (auto& s : tiny.layers[0].experts[0][0].scale) s = 0x0001;
  for (auto& b : tiny.layers[0].books) b &= 0x83ff;
  tiny.pack();
  CHECK(audit(tiny).faults.empty());
  const auto dir = test::scratch_dir("subnormal");
  tiny.write(dir);
  const Container container = Container::open(dir);
  const Expert expert = container.bank(LayerId{1}).read(ExpertId{0});
  CHECK(expert.gate().scale(0) == 0x1p-24f);
  std::size_t zero = 0;
  for (std::size_t i = 0; i < 2048; ++i) zero += expert.gate().codebooks[i] == 0.f;
  CHECK(zero < 64);
}

TEST_CASE("each file's size is exact", "[damage]") {
  for (const TinySpec& spec : formats()) {
    const TinyContainer whole = test::make_tiny(spec);
    const struct {
      const char* file;
      std::ptrdiff_t by;
      Errc code;
    } cases[] = {
        {"experts-L2.bin", -1, Errc::truncated}, {"experts-L2.bin", -4096, Errc::truncated},
        {"experts-L2.bin", 1, Errc::mismatch},   {"experts-L2.bin", 1 << 20, Errc::mismatch},
        {"trunk.bin", -1, Errc::truncated},      {"trunk.bin", 1, Errc::mismatch},
        {"codebooks.bin", -1, Errc::mismatch},   {"codebooks.bin", 1, Errc::mismatch},
    };
    for (const auto& c : cases) {
      TinyContainer tiny = whole;
      Bytes& bytes = tiny.files[c.file];
      bytes.resize(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(bytes.size()) + c.by));
      const Found f = open_fault(tiny, false);
      INFO(c.file << " by " << c.by);
      CHECK(f.code == c.code);
      CHECK(f.field == "file size");
      CHECK(f.file == c.file);
      bytes.clear();
      CHECK(open_fault(tiny, false).code == Errc::truncated);
    }
    TinyContainer tiny = whole;
    Bytes& books = tiny.files["codebooks.bin"];
    books.resize(books.size() - (16 + 16 * spec.entries));
    CHECK(open_fault(tiny).code == Errc::truncated);
  }
}

TEST_CASE("missing files are named; odd files are not opened", "[damage]") {
  const TinyContainer whole = test::make_tiny(TinySpec{});
  for (const char* name : {"manifest.json", "trunk.bin", "codebooks.bin", "experts-L3.bin"}) {
    const auto dir = test::scratch_dir("missing");
    whole.write(dir);
    fs::remove(dir / name);
    const auto code = [&] {
      try {
        Container::open(dir);
      } catch (const Error& e) {
        CHECK(fs::path(e.file()).filename() == name);
        return e.code();
      }
      return Errc::ok;
    };
    CHECK(code() == Errc::not_found);
    fs::create_directory(dir / name);
    CHECK(code() == Errc::bad_field);
    fs::remove(dir / name);
    fs::create_symlink(dir / name, dir / name);  // a loop
    CHECK(code() == Errc::io);
    fs::remove(dir / name);
    fs::create_symlink("/dev/zero", dir / name);
    CHECK(code() == Errc::bad_field);
  }
  try {
    Container::open("/nowhere/at/all");
    FAIL("opened");
  } catch (const Error& e) {
    CHECK(e.code() == Errc::not_found);
  }
}

TEST_CASE("a huge sparse manifest is refused before it is read", "[damage]") {
  const auto dir = test::scratch_dir("sparse");
  test::make_tiny(TinySpec{}).write(dir);
  fs::resize_file(dir / "manifest.json", std::uintmax_t{10} << 40);
  try {
    Container::open(dir);
    FAIL("opened");
  } catch (const Error& e) {
    CHECK(e.code() == Errc::out_of_range);
    CHECK(std::string(e.fault().field) == "file size");
  }
}

TEST_CASE("a sparse trunk of gigabytes is listed without being read", "[damage]") {
  TinyContainer tiny = test::make_tiny(TinySpec{});
  auto& config = tiny.manifest["config"];
  config["vocab_size"] = 1u << 24;
  const std::uint64_t rows = 1u << 24;
  std::uint64_t off = 0;
  for (auto& t : tiny.manifest["trunk"]) {
    const std::string name = t["name"];
    if (name == "lm_head.weight" || name == "model.embed_tokens.weight") {
      t["shape"][0] = rows;
      t["bytes"] = rows * (256 + 4);
      t["scale_off"] = off + rows * 256;
    } else if (t.contains("scale_off")) {
      t["scale_off"] = off + (t["scale_off"].get<std::uint64_t>() - t["off"].get<std::uint64_t>());
    }
    t["off"] = off;
    off += t["bytes"].get<std::uint64_t>();
  }
  const auto dir = test::scratch_dir("sparse-trunk");
  tiny.write(dir);
  fs::resize_file(dir / "trunk.bin", off);
  OpenOptions listing;
  listing.resident_trunk = false;
  CHECK_NOTHROW(Container::open(dir, listing));
}

void rewrite(const fs::path& path, std::size_t at, std::uint8_t value) {
  std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
  f.seekp(static_cast<std::streamoff>(at));
  f.put(static_cast<char>(value));
}

TEST_CASE("a file that changes while it is open is an error of that read", "[damage][changed]") {
  const auto dir = test::scratch_dir("changed");
  const TinyContainer tiny = test::make_tiny(TinySpec{});
  const auto code = [](auto f) {
    try {
      f();
    } catch (const Error& e) {
      return e.code();
    }
    return Errc::ok;
  };
  const auto read = [&](const Container& c) {
    return code([&] { c.bank(LayerId{1}).read(ExpertId{4}); });
  };
  const auto row = [&](const Container& c) {
    AlignedBuffer<std::uint8_t> buffer;
    return code([&] { c.trunk().read_row("model.embed_tokens.weight", 200, buffer); });
  };
  const auto bank = dir / "experts-L1.bin", trunk = dir / "trunk.bin";
  const auto size = tiny.files.at("experts-L1.bin").size();
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const auto fresh = [&] {
    tiny.write(dir);
    fs::last_write_time(bank, old);  // so that a rewrite within the clock's tick shows
    fs::last_write_time(trunk, old);
    return Container::open(dir);
  };
  {
    const Container c = fresh();
    CHECK(read(c) == Errc::ok);
    fs::resize_file(bank, size / 2);
    CHECK(read(c) == Errc::changed);
    // Records that are still there are refused too: what rewrote the file may have touched them.
    CHECK(code([&] { c.bank(LayerId{1}).read(ExpertId{0}); }) == Errc::changed);
    CHECK(code([&] { c.bank(LayerId{2}).read(ExpertId{0}); }) == Errc::ok);
  }
  {
    const Container c = fresh();
    fs::resize_file(bank, size * 2);
    CHECK(read(c) == Errc::changed);
  }
  {
    const Container c = fresh();
    rewrite(bank, size - 1, 0);
    CHECK(read(c) == Errc::changed);
  }
  {
    const Container c = fresh();
    fs::resize_file(trunk, 1000);
    CHECK(row(c) == Errc::changed);
  }
  {
    const Container c = fresh();
    rewrite(trunk, 0, 0);
    CHECK(row(c) == Errc::changed);
  }
  {
    // Replaced by rename, the open file is still the old one: the right answer.
    const Container c = fresh();
    fs::copy_file(bank, dir / "new");
    rewrite(dir / "new", 100, 0xff);
    fs::rename(dir / "new", bank);
    CHECK(read(c) == Errc::ok);
    fs::remove(bank);
    CHECK(read(c) == Errc::ok);
  }
}

}  // namespace
