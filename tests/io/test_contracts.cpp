// What the functions of io say of sizes, numbers and spans that their contracts rule out, word for
// word: nothing is read or written for them.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/core/half.hpp"
#include "waste/io/audit.hpp"
#include "waste/io/container.hpp"
#include "waste/io/container_writer.hpp"
#include "waste/io/crc32.hpp"
#include "waste/io/safetensors.hpp"

namespace {

namespace fs = std::filesystem;
using namespace waste;
using test::failure_of;

struct Opened {
  explicit Opened(io::Verify verify) : dir(test::scratch_dir("contract-bank")) {
    test::make_tiny({}).write(dir);
    OpenOptions options;
    options.verify_records = verify;
    container = Container::open(dir, options);
  }
  const io::ExpertBank& bank() const { return container.bank(LayerId{2}); }

  fs::path dir;
  Container container;
};

std::string text(const Fault& f) { return describe(f, {}, {}); }

std::string said(const std::function<void()>& call) { return failure_of(call).what(); }

TEST_CASE("a bank reads its own experts into records of their size", "[contract]") {
  for (const auto verify : {io::Verify::off, io::Verify::once, io::Verify::always}) {
    const Opened o(verify);
    const io::ExpertBank& bank = o.bank();
    const std::string size = std::to_string(bank.record_bytes());
    AlignedBuffer<std::uint8_t> record(bank.record_bytes());
    const auto all = record.span();
    const std::string absent = "expert 5 of layer 2: expert: out of range, got 5, wanted at most 4";
    const std::string small =
        "expert 4 of layer 2: record buffer: invalid argument, got 48, wanted " + size;
    CHECK(text(bank.check_request(ExpertId{5}, all)) == absent);
    CHECK(text(bank.try_read_raw(ExpertId{5}, all)) == absent);
    CHECK(text(bank.try_read(ExpertId{5}, all)) == absent);
    CHECK(text(bank.try_read(ExpertId{5}, all, true)) == absent);
    CHECK(text(bank.try_read(ExpertId{5}, all, false)) == absent);
    CHECK(text(bank.accept(ExpertId{5}, all, {})) == absent);
    CHECK(text(bank.check_request(ExpertId{4}, all.first(48))) == small);
    CHECK(text(bank.try_read_raw(ExpertId{4}, all.first(48))) == small);
    CHECK(text(bank.try_read(ExpertId{4}, all.first(48))) == small);
    CHECK(text(bank.accept(ExpertId{4}, all.first(48), {})) == small);
    CHECK(std::count(record.begin(), record.end(), 0) ==
          static_cast<std::ptrdiff_t>(record.size()));  // nothing was read

    // A record that says of itself to be an expert the bank has not: right in every other way.
    REQUIRE(bank.try_read_raw(ExpertId{4}, all).ok());
    format::ExpertRecordHeader header = format::load_record_header(record.data());
    header.expert_id = 4000;
    format::store_record_header(record.data(), header);
    REQUIRE(bank.check_record(ExpertId{4000}, all, true).ok());
    CHECK(text(bank.accept(ExpertId{4000}, all, {})) ==
          "expert 4000 of layer 2: expert: out of range, got 4000, wanted at most 4");
    header.expert_id = 4;
    format::store_record_header(record.data(), header);
    CHECK(bank.accept(ExpertId{4}, all, {}).ok());
    CHECK(text(bank.accept(ExpertId{4}, all, fault(Errc::io, "read"))) ==
          "expert 4 of layer 2: read: input/output error");
  }
}

TEST_CASE("a record is nobody's beyond the 16 bits of its header", "[contract]") {
  const Opened o(io::Verify::once);
  const io::ExpertBank& bank = o.bank();
  AlignedBuffer<std::uint8_t> record(bank.record_bytes());
  REQUIRE(bank.try_read_raw(ExpertId{3}, record.span()).ok());
  const auto check = [&](std::uint32_t layer, std::uint32_t expert) {
    const Fault f = io::check_record(bank.layout(), LayerId{layer}, ExpertId{expert},
                                     bank.codebook_base(), record.span(), true);
    CHECK(text(io::audit_record(bank.layout(), LayerId{layer}, ExpertId{expert},
                                bank.codebook_base(), record.span())) == text(f));
    return text(f);
  };
  CHECK(check(2, 3) == "no fault");
  CHECK(check(2, 65539) ==
        "expert 65539 of layer 2: expert: out of range, got 65539, wanted at most 65535");
  CHECK(check(65538, 3) ==
        "expert 3 of layer 65538: layer: out of range, got 65538, wanted at most 65535");
  CHECK(text(io::audit_record(bank, ExpertId{3}, record.span().first(4096))) ==
        "expert 3 of layer 2: record buffer: invalid argument, got 4096, wanted " +
            std::to_string(bank.record_bytes()));
  CHECK(text(io::audit_record(bank, ExpertId{3}, {})) ==
        "expert 3 of layer 2: record buffer: invalid argument, got 0, wanted " +
            std::to_string(bank.record_bytes()));

  io::RecordBuffer buffer(bank.layout());
  CHECK(said([&] { buffer.seal(LayerId{2}, ExpertId{65536}, 0); }) ==
        "expert: out of range, got 65536, wanted at most 65535");
  CHECK(said([&] { buffer.seal(LayerId{65537}, ExpertId{65536}, 0); }) ==
        "layer: out of range, got 65537, wanted at most 65535");
  CHECK(buffer.seal(LayerId{65535}, ExpertId{65535}, 0).size() == bank.record_bytes());
}

TEST_CASE("a bank has codebooks of its quantization", "[contract]") {
  const Opened o(io::Verify::once);
  const format::Manifest& m = o.container.manifest();
  const format::BankEntry& entry = m.layers.at(1);
  const std::string file = (o.dir / entry.file).string();
  const auto open = [&](std::shared_ptr<const io::Codebooks> books) {
    return said([&] { io::ExpertBank(o.dir, entry, m.layout, books); });
  };
  CHECK(open(nullptr) == file + ": layer 2: codebooks: invalid argument; there are none");
  const fs::path two = test::scratch_dir("contract-books");
  test::make_tiny(test::TinySpec::vq2r()).write(two);
  io::Codebooks others =
      io::Codebooks::load(two / "codebooks.bin", format::vq2r, {m.layers.data(), 1});
  CHECK(open(std::make_shared<io::Codebooks>(std::move(others))) ==
        file + ": layer 2: codebooks: invalid argument; they are of another quantization");
  CHECK(io::ExpertBank(o.dir, entry, m.layout, std::make_shared<io::Codebooks>()).experts() == 5);

  // A quantization that the format cannot hold would be read past its tables.
  format::ExpertQuant wide = m.expert_quant;
  wide.entries = 257;
  const std::string books = (o.dir / "codebooks.bin").string();
  const std::string refused = books + ": entries: out of range, got 257, wanted at most 256";
  CHECK(said([&] { io::Codebooks::load(books, wide, m.layers); }) == refused);
  CHECK(said([&] { io::audit_codebooks(books, wide, m.layers, {}); }) == refused);
  CHECK(said([&] {
          io::codebook_records(wide, 0, std::vector<float>(3 * wide.stages * 256 * 8));
        }) == "entries: out of range, got 257, wanted at most 256");
  const std::vector<float> few(7);
  CHECK(said([&] { io::codebook_records(m.expert_quant, 0, few); }) ==
        "codebook values: invalid argument, got 7, wanted 18432");
  CHECK(o.container.codebooks().of(1000, format::Kind::up) == nullptr);
}

TEST_CASE("values of the trunk are looked at in whole elements", "[contract]") {
  const auto bytes = [](auto... values) {
    std::vector<std::uint8_t> out(sizeof...(values) * 4);
    std::size_t at = 0;
    (store_le(out.data() + 4 * at++, values), ...);
    return out;
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto check = [](format::Fmt fmt, std::span<const std::uint8_t> payload,
                        std::span<const std::uint8_t> scales) {
    return text(io::check_trunk_values(fmt, payload, scales));
  };
  const auto good = bytes(1.0f, -2.0f), bad = bytes(1.0f, -infinity);
  CHECK(check(format::Fmt::f32, {}, {}) == "no fault");
  CHECK(check(format::Fmt::f32, good, {}) == "no fault");
  CHECK(check(format::Fmt::f32, bad, {}) == "trunk element is not finite: invalid value");
  CHECK(check(format::Fmt::f32, std::span(bad).first(7), {}) == "no fault");  // no whole second
  const std::vector<std::uint8_t> nan = {0x00, 0x3c, 0x01, 0x7c};             // f16 1, NaN
  CHECK(check(format::Fmt::f16, nan, {}) == "trunk element is not finite: invalid value");
  CHECK(check(format::Fmt::f16, std::span(nan).first(3), {}) == "no fault");
  CHECK(check(format::Fmt::q4g, nan, {}) == "no fault");  // codes
  CHECK(check(format::Fmt::q4g, {}, nan) == "trunk scale is not finite: invalid value");
  CHECK(check(format::Fmt::q8g, good, std::span(nan).first(3)) == "no fault");
}

TEST_CASE("a trunk's rows and tensors are there or an error", "[contract]") {
  const Opened o(io::Verify::once);
  const io::Trunk& trunk = o.container.trunk();
  const std::string file = (o.dir / "trunk.bin").string();
  AlignedBuffer<std::uint8_t> row;
  CHECK(said([&] { trunk.read_row("model.norm.weight", 1, row); }) ==
        file + ": row: out of range, got 1, wanted at most 0; model.norm.weight");
  CHECK(said([&] { trunk.read_row("nothing", 0, row); }) ==
        file + ": trunk tensor: missing; nothing");
  CHECK(said([&] { trunk.entry(""); }) == file + ": trunk tensor: missing");
  CHECK(said([&] { trunk.values("model.embed_tokens.weight"); }) ==
        file + ": tensor is not resident: invalid argument; model.embed_tokens.weight");
  CHECK(row.size() == 0);
}

io::ContainerPlan tiny_plan() {
  const test::TinyContainer tiny = test::make_tiny({});
  const format::Manifest m = format::parse_manifest(tiny.manifest.dump(), "manifest.json");
  io::ContainerPlan plan;
  plan.arch = m.arch;
  plan.tensor_prefix = m.tensor_prefix;
  plan.config = m.config;
  plan.expert_quant = m.expert_quant;
  plan.trunk = m.trunk;
  return plan;
}

TEST_CASE("a writer takes what its plan has and writes nowhere else", "[contract]") {
  const fs::path root = test::scratch_dir("contract-writer"), dir = root / "c.waste";
  const io::ContainerWriter writer(dir, tiny_plan());
  const std::string in = dir.string();
  const std::size_t tensors = writer.manifest().trunk.size();
  {
    io::TrunkWriter trunk = writer.open_trunk();
    const std::string count = std::to_string(tensors);
    CHECK(said([&] { trunk.write_rows(tensors, 0, {}, {}); }) ==
          in + ": tensor: invalid argument, got " + count + ", wanted " + count);
    CHECK(said([&] { trunk.commit(tensors + 1); }) ==
          in + ": finished tensors: invalid argument, got " + std::to_string(tensors + 1) +
              ", wanted " + count);
    CHECK(trunk.finished() == 0);
    CHECK_FALSE(fs::exists(dir / "trunk.progress"));
    const format::TrunkEntry& head = *writer.manifest().tensor("lm_head.weight");
    const auto index = static_cast<std::size_t>(&head - writer.manifest().trunk.data());
    const std::vector<std::uint8_t> payload(format::trunk_row_bytes(head.fmt, head.cols())),
        scales(format::trunk_row_scale_bytes(head.fmt, head.cols()));
    REQUIRE_FALSE(scales.empty());
    const std::string rows = "rows: invalid argument, got ", tail = "; tensor lm_head.weight";
    CHECK(said([&] { trunk.write_rows(index, 272, payload, scales); }) ==
          rows + "273, wanted 272" + tail);
    CHECK(said([&] { trunk.write_rows(index, 0, payload, {}); }) == rows + "1, wanted 272" + tail);
    CHECK(said([&] { trunk.write_rows(index, 0, {}, scales); }) == rows + "0, wanted 272" + tail);
    CHECK(said([&] { trunk.write_rows(index, 5, std::span(payload).first(9), scales); }) ==
          rows + "5, wanted 272" + tail);
    trunk.write_rows(index, 271, payload, scales);
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../escaped"),
        std::string("/escaped"), std::string("a/b"), std::string("manifest.json")}) {
    CHECK(said([&] { writer.write_side_file(name, "x"); }) ==
          in +
              ": side file: invalid argument; wanted a plain file name other than manifest.json, "
              "got \"" +
              name + "\"");
  }
  CHECK(test::code_of([&] { writer.write_side_file(std::string("a\0b", 3), "x"); }) ==
        Errc::bad_argument);
  CHECK(std::distance(fs::directory_iterator(root), fs::directory_iterator()) == 1);
  CHECK_FALSE(fs::exists(dir / "manifest.json"));
  writer.write_side_file("chat.json", "{}");
  CHECK(fs::file_size(dir / "chat.json") == 2);

  const std::string none = in + ": layer 0: layer without experts: invalid argument";
  CHECK(said([&] { writer.codebook_base(LayerId{0}); }) == none);
  CHECK(said([&] { writer.bank_file(LayerId{0}); }) == none);
  CHECK(said([&] { writer.open_bank(LayerId{0}); }) == none);
  CHECK(said([&] { writer.write_codebooks(LayerId{0}, {}); }) == none);
  CHECK(said([&] { writer.layout(io::BankSet::substitutes); }) ==
        in + ": substitutes: invalid argument; the plan has none");
  io::remove_parts(root / "nowhere");
  CHECK_FALSE(fs::exists(root / "nowhere"));
}

TEST_CASE("a file says what cannot be done with it", "[contract]") {
  const fs::path dir = test::scratch_dir("contract-file");
  io::write_atomically(dir / "f", "abc");
  const io::File file = io::File::open(dir / "f"), closed;
  const std::vector<std::uint8_t> byte(1);
  std::vector<std::uint8_t> four(4);
  const std::string name = (dir / "f").string();
  CHECK(text(file.try_pread(four, 0)) == "read: truncated, got 3, wanted 4");
  CHECK(failure_of([&] { file.pwrite(byte, 0); }).code() == Errc::io);  // opened for reading
  CHECK(failure_of([&] { file.truncate(0); }).code() == Errc::io);
  CHECK(io::read_text(dir / "f", 3) == "abc");
  CHECK(failure_of([&] { io::read_text(dir / "f", 2); }).code() == Errc::out_of_range);
  CHECK(closed.try_pread(four, 0).code == Errc::io);
  CHECK(closed.check_unchanged({}).code == Errc::io);
  CHECK(failure_of([&] { closed.size(); }).code() == Errc::io);
  CHECK(failure_of([&] { closed.sync(); }).code() == Errc::io);
  CHECK(failure_of([&] { closed.pread(four, 0); }).code() == Errc::io);
  CHECK(failure_of([&] { io::publish(dir / "nothing", dir / "f"); }).code() == Errc::not_found);
  CHECK(io::read_text(dir / "f", 3) == "abc");
  CHECK(io::crc32({}) == 0);
}

TEST_CASE("a safetensors header is text of a file of some size", "[contract]") {
  const auto parse = [](const std::string& json, std::uint64_t bytes) {
    return said([&] { io::parse_safetensors_header(json, 8 + json.size(), bytes, "f"); });
  };
  const std::string one = R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  CHECK(io::parse_safetensors_header(one, 8 + one.size(), 4, "f").at(0).off == 8 + one.size());
  CHECK(parse(one, 3).find("f: ") == 0);
  CHECK(parse(one, 5).find("f: ") == 0);
  CHECK(failure_of([&] { io::parse_safetensors_header("", 8, 0, "f"); }).code() == Errc::bad_json);
  CHECK(failure_of([&] { io::parse_safetensors_header("[]", 8, 0, "f"); }).code() ==
        Errc::bad_field);
}

}  // namespace
