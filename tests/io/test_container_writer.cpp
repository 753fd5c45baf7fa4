#include "waste/io/container_writer.hpp"

#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "convert/folder.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/core/half.hpp"
#include "waste/io/container.hpp"

using namespace waste;
using namespace waste::test;
using format::Kind;
namespace fs = std::filesystem;

namespace {

/// Two MoE layers of three experts, rows that 64 does not divide.
io::ContainerPlan small_plan(format::ExpertQuant quant = format::vq3r) {
  io::ContainerPlan plan;
  plan.arch = "kimi-linear";
  plan.config = parse_json(
      "{\"vocab_size\":12,\"hidden_size\":40,\"intermediate_size\":48,\"num_hidden_layers\":3,"
      "\"first_k_dense_replace\":1,\"rms_norm_eps\":1e-05,\"mla_use_nope\":true,"
      "\"num_attention_heads\":2,\"q_lora_rank\":null,\"kv_lora_rank\":8,\"qk_nope_head_dim\":8,"
      "\"qk_rope_head_dim\":4,\"v_head_dim\":8,\"moe_intermediate_size\":72,\"num_experts\":3,"
      "\"num_experts_per_token\":2,\"num_shared_experts\":1,\"moe_router_activation_func\":"
      "\"sigmoid\",\"hidden_act\":\"silu\",\"linear_attn_config\":{\"num_heads\":2,\"head_dim\":8,"
      "\"short_conv_kernel_size\":4,\"kda_layers\":[1,2],\"full_attn_layers\":[3]}}",
      "config");
  plan.expert_quant = quant;
  for (const auto& t :
       format::required_tensors(format::parse_model_config(plan.config, "config"))) {
    format::TrunkEntry e;
    e.name = t.name;
    e.shape = t.shape;
    if (t.name == "lm_head.weight") e.fmt = format::Fmt::q4g;
    plan.trunk.push_back(e);
  }
  return plan;
}

/// f32 values that are exactly f16, different in every entry.
std::vector<float> some_books(const format::ExpertQuant& q, std::uint32_t salt) {
  std::vector<float> out(format::kinds * q.stages * (std::size_t{1} << q.index_bits) * 8);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(static_cast<int>((i * 7 + salt) % 2001) - 1000) / 512.0f;
  }
  return out;
}

void fill(io::RecordBuffer& record, std::uint32_t salt) {
  for (const Kind k : {Kind::gate, Kind::up, Kind::down}) {
    const format::IndexLayout layout = record.layout().indices(k);
    for (std::size_t r = 0; r < layout.rows; ++r) {
      for (std::size_t p = 0; p < layout.positions; ++p) {
        for (std::size_t b = 0; b < layout.run; ++b) {
          record.indices(k)[layout.offset(r, p) + b] =
              static_cast<std::uint8_t>(r * 31 + p * 7 + b + salt);
        }
      }
      store_le(record.scales(k).data() + 2 * r, f32_to_f16(0.5f + static_cast<float>(r)));
    }
  }
}

void write_layer(const io::ContainerWriter& writer, LayerId layer) {
  writer.write_codebooks(layer, some_books(writer.manifest().expert_quant, to_index(layer)));
  io::BankWriter bank = writer.open_bank(layer);
  io::RecordBuffer record(writer.layout());
  for (std::uint32_t e = 0; e < 3; ++e) {
    fill(record, e);
    bank.write(ExpertId{e}, record.seal(layer, ExpertId{e}, writer.codebook_base(layer)));
  }
  bank.publish();
}

void write_trunk(const io::ContainerWriter& writer) {
  io::TrunkWriter trunk = writer.open_trunk();
  const auto& entries = writer.manifest().trunk;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto rows = entries[i].rows();
    std::vector<std::uint8_t> payload(
        rows * format::trunk_row_bytes(entries[i].fmt, entries[i].cols()),
        entries[i].fmt == format::Fmt::q4g ? 0x88 : 0);
    const std::vector<std::uint8_t> scales(
        rows * format::trunk_row_scale_bytes(entries[i].fmt, entries[i].cols()), 0x30);
    trunk.write_rows(i, 0, payload, scales);
  }
  trunk.publish();
}

}  // namespace

TEST_CASE("a container is there when its manifest is, and not before") {
  const auto quant = GENERATE(format::vq3r, format::vq4p, format::vq2r);
  const fs::path dir = scratch_dir("writer");
  io::ContainerWriter writer(dir, small_plan(quant));
  CHECK(failure_of([&] { writer.finish(); }).code() == Errc::missing);
  write_layer(writer, LayerId{2});  // in any order
  CHECK(failure_of([&] { writer.finish(); }).code() == Errc::missing);
  write_layer(writer, LayerId{1});
  const Error e = failure_of([&] { writer.finish(); });
  CHECK(std::string(e.what()).find("trunk.bin") != std::string::npos);
  write_trunk(writer);
  CHECK(failure_of([&] { Container::open(dir); }).code() == Errc::not_found);
  writer.write_side_file("chat.json", "{}");
  writer.finish();

  const Container c = Container::open(dir, {.verify_records = waste::io::Verify::always});
  CHECK(c.manifest().layers.size() == 2);
  for (std::uint32_t l = 1; l < 3; ++l) {
    const auto books = some_books(quant, l);
    for (const Kind k : {Kind::gate, Kind::up, Kind::down}) {
      const float* got = c.codebooks().of(writer.codebook_base(LayerId{l}), k);
      const std::size_t n = books.size() / 3;
      CHECK(std::equal(got, got + n, books.begin() + static_cast<std::size_t>(k) * n));
    }
    const Expert expert = c.bank(LayerId{l}).read(ExpertId{2});
    io::RecordBuffer want(writer.layout());
    fill(want, 2);
    const auto bytes = want.seal(LayerId{l}, ExpertId{2}, writer.codebook_base(LayerId{l}));
    CHECK(std::equal(bytes.begin(), bytes.end(), expert.record().begin(), expert.record().end()));
  }
  CHECK(read_bytes(dir / "chat.json") == "{}");
  for (const auto& entry : fs::directory_iterator(dir)) {
    CHECK(entry.path().filename().string().find(".part") == std::string::npos);
  }
  CHECK(failure_of([&] { io::ContainerWriter again(dir, small_plan(quant)); }).code() ==
        Errc::exists);
}

TEST_CASE("a sealed record is the reference's, byte for byte") {
  const Golden golden = read_golden("quantizers");
  const int count = std::stoi(golden.metadata.at("record/count"));
  REQUIRE(count > 0);
  for (int i = 0; i < count; ++i) {
    const std::string stem = "record." + std::to_string(i) + "/";
    const auto number = [&](const char* key) {
      return static_cast<std::uint32_t>(std::stoul(golden.metadata.at(stem + key)));
    };
    format::ExpertQuant quant;
    quant.fmt = static_cast<format::Fmt>(number("fmt"));
    quant.stages = number("stages");
    quant.index_bits = number("index_bits");
    quant.index_block = number("index_block");
    quant.entries = quant.index_bits == 6 ? 64 : 256;
    format::RecordLayout layout;
    REQUIRE(format::derive_layout(quant, {72, 40}, layout).ok());
    io::RecordBuffer record(layout);
    const std::pair<Kind, std::string> kinds[] = {
        {Kind::gate, "gate"}, {Kind::up, "up"}, {Kind::down, "down"}};
    for (const auto& [kind, name] : kinds) {
      const auto index = golden.get<std::uint8_t>(stem + name + "_index");
      const auto scale = golden.get<std::uint16_t>(stem + name + "_scale");
      const format::IndexLayout at = layout.indices(kind);
      for (std::size_t r = 0; r < at.rows; ++r) {
        for (std::size_t p = 0; p < at.positions; ++p) {
          const std::uint8_t* s = index.data() + (r * at.positions + p) * quant.stages;
          std::uint8_t* to = record.indices(kind).data() + at.offset(r, p);
          if (quant.index_bits == 6) {
            const auto packed = format::pack6(s);
            std::copy(packed.begin(), packed.end(), to);
          } else {
            std::copy(s, s + quant.stages, to);
          }
        }
        store_le(record.scales(kind).data() + 2 * r, scale[r]);
      }
    }
    const auto got =
        record.seal(LayerId{number("layer")}, ExpertId{number("expert")}, number("codebook_id"));
    const auto want = golden.get<std::uint8_t>(stem + "record");
    CHECK(std::equal(got.begin(), got.end(), want.begin(), want.end()));
  }
}

TEST_CASE("seal covers the payload with zlib's crc32 and clears what a former record left") {
  format::RecordLayout layout;
  REQUIRE(format::derive_layout(format::vq4p, {72, 40}, layout).ok());
  io::RecordBuffer record(layout);
  fill(record, 9);
  const auto bytes = record.seal(LayerId{3}, ExpertId{4}, 65536 + 7);
  const auto header = format::load_record_header(bytes.data());
  CHECK(header.crc32 == ::crc32(0, bytes.data() + 48, layout.payload_end - 48));
  CHECK(header.codebook_id == 7);
  CHECK(std::all_of(bytes.begin() + layout.payload_end, bytes.end(),
                    [](std::uint8_t b) { return b == 0; }));
}

TEST_CASE("a bank takes only its own records and keeps whole ones over a restart") {
  const fs::path dir = scratch_dir("writer-bank");
  io::ContainerWriter writer(dir, small_plan());
  CHECK(failure_of([&] { writer.open_bank(LayerId{1}); }).code() == Errc::missing);  // no codebooks
  CHECK(failure_of([&] { writer.open_bank(LayerId{0}); }).code() == Errc::bad_argument);
  writer.write_codebooks(LayerId{1}, some_books(format::vq3r, 1));
  io::RecordBuffer record(writer.layout());
  fill(record, 0);
  {
    const io::BankWriter bank = writer.open_bank(LayerId{1});
    CHECK_FALSE(bank.has(ExpertId{1}));
    const auto sealed = record.seal(LayerId{1}, ExpertId{1}, 0);
    CHECK(failure_of([&] { bank.write(ExpertId{0}, sealed); }).code() == Errc::mismatch);
    CHECK(failure_of([&] { bank.write(ExpertId{3}, sealed); }).code() == Errc::out_of_range);
    CHECK(failure_of([&] { bank.write(ExpertId{1}, sealed.first(4096)); }).code() ==
          Errc::bad_argument);
    bank.write(ExpertId{1}, sealed);
    CHECK(bank.has(ExpertId{1}));
    CHECK(failure_of([&] { writer.open_bank(LayerId{1}); }).code() == Errc::exists);  // locked
  }
  CHECK_FALSE(writer.has_bank(LayerId{1}));
  const fs::path part = dir / "experts-L1.bin.part";
  {
    const io::BankWriter bank = writer.open_bank(LayerId{1});
    CHECK_FALSE(bank.has(ExpertId{0}));
    CHECK(bank.has(ExpertId{1}));
    CHECK_FALSE(bank.has(ExpertId{7}));
  }
  const std::size_t n = writer.layout().record_bytes;
  for (const std::size_t at :
       {n + 0, n + 33, n + 48, n + std::size_t{writer.layout().payload_end}, n + n - 1}) {
    std::fstream file(part, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char was = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(was ^ 1));
    file.flush();
    INFO(at - n);
    CHECK_FALSE(writer.open_bank(LayerId{1}).has(ExpertId{1}));
    file.seekp(static_cast<std::streamoff>(at));
    file.put(was);
  }
  CHECK(writer.open_bank(LayerId{1}).has(ExpertId{1}));
}

TEST_CASE("codebooks are stored exactly or not at all") {
  const fs::path dir = scratch_dir("writer-books");
  const io::ContainerWriter writer(dir, small_plan(format::vq2r));
  auto books = some_books(format::vq2r, 3);
  CHECK(failure_of([&] { writer.read_codebooks(LayerId{1}); }).code() == Errc::not_found);
  books[5] = 0x1p-24f;  // the smallest subnormal
  writer.write_codebooks(LayerId{2}, books);
  CHECK(writer.read_codebooks(LayerId{2}) == books);
  for (const float bad : {0.1f, 65536.0f, 1.0f / 0.0f, 0x1p-25f}) {
    books[77] = bad;
    CHECK(failure_of([&] { writer.write_codebooks(LayerId{1}, books); }).code() ==
          Errc::out_of_range);
  }
  books.pop_back();
  CHECK(failure_of([&] { writer.write_codebooks(LayerId{1}, books); }).code() ==
        Errc::bad_argument);
  CHECK_FALSE(writer.has_codebooks(LayerId{1}));

  const Golden golden = read_golden("quantizers");
  const int count = std::stoi(golden.metadata.at("codebook/count"));
  for (int i = 0; i < count; ++i) {
    const std::string stem = "codebook." + std::to_string(i) + "/";
    const auto bits = golden.get<std::uint16_t>(stem + "entries");
    format::ExpertQuant quant = bits.size() == 8 * 64 ? format::vq4p : format::vq3r;
    quant.fmt = static_cast<format::Fmt>(std::stoi(golden.metadata.at(stem + "fmt")));
    const std::size_t table = (std::size_t{1} << quant.index_bits) * 8;
    if (bits.size() != table) continue;
    std::vector<float> values(table * 3 * quant.stages);
    for (std::size_t v = 0; v < bits.size(); ++v) values[v] = f16_to_f32(bits[v]);
    const auto id = static_cast<std::uint32_t>(std::stoul(golden.metadata.at(stem + "id")));
    const auto want = golden.get<std::uint8_t>(stem + "record");
    const auto got = io::codebook_records(quant, id, values);
    CHECK(std::equal(want.begin(), want.end(), got.begin()));
  }
}

TEST_CASE("a trunk remembers what was committed and nothing else") {
  const fs::path dir = scratch_dir("writer-trunk");
  const io::ContainerWriter writer(dir, small_plan());
  const auto& entries = writer.manifest().trunk;
  const std::vector<std::uint8_t> row(entries[0].bytes, 0);
  {
    io::TrunkWriter trunk = writer.open_trunk();
    CHECK(trunk.finished() == 0);
    CHECK(failure_of([&] { trunk.write_rows(0, entries[0].rows() + 1, {}, {}); }).code() ==
          Errc::bad_argument);
    CHECK(failure_of([&] { trunk.write_rows(0, 1, row, {}); }).code() == Errc::bad_argument);
    trunk.commit(3);
  }
  CHECK(writer.open_trunk().finished() == 3);
  std::ofstream(dir / "trunk.progress") << "3x";
  CHECK(writer.open_trunk().finished() == 0);
  std::ofstream(dir / "trunk.progress") << "99999";
  CHECK(writer.open_trunk().finished() == 0);
  std::ofstream(dir / "trunk.progress") << "2";
  CHECK(writer.open_trunk().finished() == 2);
  fs::resize_file(dir / "trunk.bin.part", 10);
  CHECK(writer.open_trunk().finished() == 0);
}

TEST_CASE("a plan that no reader would accept is refused before a directory is made") {
  const fs::path dir = scratch_dir("writer-plan") / "new";
  io::ContainerPlan plan = small_plan();
  plan.trunk.pop_back();
  CHECK(failure_of([&] { io::ContainerWriter w(dir, plan); }).code() == Errc::missing);
  plan = small_plan();
  plan.trunk.push_back(plan.trunk.front());
  CHECK(failure_of([&] { io::ContainerWriter w(dir, plan); }).code() == Errc::duplicate);
  plan = small_plan();
  plan.expert_quant.vec_dim = 4;
  CHECK(failure_of([&] { io::ContainerWriter w(dir, plan); }).code() == Errc::unsupported);
  CHECK_FALSE(fs::exists(dir));
}

TEST_CASE("only a container's own leftovers are removed") {
  const fs::path dir = scratch_dir("writer-leftovers");
  for (const char* name : {"experts-L1.bin.part", "codebooks-L1.part", "trunk.bin.part",
                           "trunk.progress", "manifest.json.tmp12", "movie.part", "a.tmp12",
                           "experts-L1.bin", "trunk.bin", "manifest.json.tmpx"}) {
    std::ofstream(dir / name) << "x";
  }
  io::remove_parts(dir);
  std::string left;
  for (const char* name :
       {"movie.part", "a.tmp12", "experts-L1.bin", "trunk.bin", "manifest.json.tmpx"}) {
    if (fs::exists(dir / name)) left += std::string(name) + " ";
  }
  CHECK(left == "movie.part a.tmp12 experts-L1.bin trunk.bin manifest.json.tmpx ");
  CHECK(std::distance(fs::directory_iterator(dir), {}) == 5);
}
