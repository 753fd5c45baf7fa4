// Index layouts, record layouts and headers: byte for byte with the oracle and the specification.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/format/codebook.hpp"
#include "waste/format/record_layout.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/format/vq_view.hpp"

namespace {

using namespace waste;
using namespace waste::format;
using Bytes = std::vector<std::uint8_t>;

RecordLayout layout_of(const ExpertQuant& q, ExpertShape shape) {
  RecordLayout out;
  const Fault f = derive_layout(q, shape, out);
  REQUIRE(f.ok());
  return out;
}

TEST_CASE("record sizes are the specification's", "[layout]") {
  const struct {
    ExpertQuant quant;
    ExpertShape shape;
    std::uint64_t index_bytes, scale_bytes, record_bytes;
  } cases[] = {
      {vq3r, {3072, 3584}, 12386304, 19456, 12406784},
      {vq4p, {3072, 3584}, 12386304, 19456, 12406784},
      {vq2r, {3072, 3584}, 8257536, 19456, 8278016},
      {vq3r, {1024, 2304}, 2654208, 8704, 2666496},
      {vq4p, {1024, 2304}, 2654208, 8704, 2666496},
      {vq2r, {1024, 2304}, 1769472, 8704, 1781760},
      {sub1, {3072, 3584}, 4128768, 19456, 4149248},
      {sub1, {1024, 2304}, 884736, 8704, 897024},
  };
  for (const auto& c : cases) {
    const RecordLayout l = layout_of(c.quant, c.shape);
    CHECK(l.scale_off == 48 + c.index_bytes);
    CHECK(l.payload_end - l.scale_off == c.scale_bytes);
    CHECK(l.record_bytes == c.record_bytes);
    CHECK(l.indices(Kind::gate).bytes() * 2 + l.indices(Kind::down).bytes() == c.index_bytes);
    CHECK(l.scales(Kind::gate) == l.scale_off);
    CHECK(l.scales(Kind::up) == l.scale_off + 2 * c.shape.inter);
    CHECK(l.scales(Kind::down) == l.scale_off + 4 * c.shape.inter);
  }
}

TEST_CASE("index regions equal the oracle's, padding included", "[layout][golden]") {
  const auto golden = test::read_golden("quantizers");
  const auto count = std::stoul(golden.metadata.at("layout/count"));
  REQUIRE(count >= 8);
  for (std::size_t n = 0; n < count; ++n) {
    const std::string at = "layout." + std::to_string(n);
    const auto& index = golden[at + "/index"];
    const auto want = golden.get<std::uint8_t>(at + "/bytes");
    ExpertQuant q;
    q.index_bits = static_cast<std::uint32_t>(std::stoul(golden.metadata.at(at + "/index_bits")));
    q.index_block = static_cast<std::uint32_t>(std::stoul(golden.metadata.at(at + "/index_block")));
    q.stages = static_cast<std::uint32_t>(index.shape.at(2));
    if (q.index_bits == 6) q.entries = 64, q.fmt = Fmt::vq4p;
    const std::size_t rows = index.shape[0], positions = index.shape[1];
    const IndexLayout layout(q, rows, positions * 8);
    REQUIRE(layout.bytes() == want.size());
    Bytes got(layout.bytes(), 0);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t v = 0; v < positions; ++v) {
        const std::uint8_t* i = index.bytes.data() + (r * positions + v) * q.stages;
        std::uint8_t* to = got.data() + layout.offset(r, v);
        if (q.index_bits == 6) {
          const auto packed = pack6(i);
          std::memcpy(to, packed.data(), 3);
        } else {
          std::memcpy(to, i, q.stages);
        }
        for (std::size_t s = 0; s < q.stages; ++s) {
          REQUIRE(index_at(want.data() + layout.offset(r, v), s, q.index_bits) == i[s]);
        }
      }
    }
    CHECK(got == want);
  }
}

TEST_CASE("six-bit packing equals the oracle's and inverts", "[layout][golden]") {
  const auto golden = test::read_golden("quantizers");
  const auto count = std::stoul(golden.metadata.at("pack6/count"));
  REQUIRE(count >= 1);
  for (std::size_t n = 0; n < count; ++n) {
    const std::string at = "pack6." + std::to_string(n);
    const auto index = golden.get<std::uint8_t>(at + "/index");
    const auto packed = golden.get<std::uint8_t>(at + "/packed");
    REQUIRE(index.size() / 4 == packed.size() / 3);
    for (std::size_t i = 0; i < packed.size() / 3; ++i) {
      const auto got = pack6(index.data() + 4 * i);
      REQUIRE(std::memcmp(got.data(), packed.data() + 3 * i, 3) == 0);
      const auto back = unpack6(packed.data() + 3 * i);
      REQUIRE(std::memcmp(back.data(), index.data() + 4 * i, 4) == 0);
    }
  }
  for (std::uint32_t word = 0; word < 1u << 24; word += 4099) {
    const std::uint8_t b[3] = {static_cast<std::uint8_t>(word),
                               static_cast<std::uint8_t>(word >> 8),
                               static_cast<std::uint8_t>(word >> 16)};
    const auto s = unpack6(b);
    const auto again = pack6(s.data());
    REQUIRE(std::memcmp(again.data(), b, 3) == 0);
  }
}

TEST_CASE("record layouts and headers fit the oracle's records", "[layout][golden]") {
  const auto golden = test::read_golden("quantizers");
  const auto count = std::stoul(golden.metadata.at("record/count"));
  REQUIRE(count >= 3);
  for (std::size_t n = 0; n < count; ++n) {
    const std::string at = "record." + std::to_string(n);
    const auto number = [&](const char* name) {
      return static_cast<std::uint32_t>(std::stoul(golden.metadata.at(at + "/" + name)));
    };
    ExpertQuant q;
    q.fmt = static_cast<Fmt>(number("fmt"));
    q.stages = number("stages");
    q.index_bits = number("index_bits");
    q.index_block = number("index_block");
    q.entries = q.index_bits == 6 ? 64 : 256;
    const auto record = golden.get<std::uint8_t>(at + "/record");
    const RecordLayout l = layout_of(q, {72, 40});
    REQUIRE(record.size() == l.record_bytes);
    const ExpertRecordHeader h = load_record_header(record.data());
    const LayerId layer{number("layer")};
    const ExpertId expert{number("expert")};
    const Fault f = validate_header(h, l, layer, expert, number("codebook_id"));
    INFO(describe(f));
    CHECK(f.ok());
    ExpertRecordHeader made = make_header(l, layer, expert, number("codebook_id"));
    made.crc32 = h.crc32;
    CHECK(std::memcmp(&made, record.data(), sizeof made) == 0);
    const char* names[] = {"gate", "up", "down"};
    for (std::size_t k = 0; k < kinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      const auto index = golden.get<std::uint8_t>(at + "/" + names[k] + "_index");
      const auto scale = golden.get<std::uint16_t>(at + "/" + names[k] + "_scale");
      VqMatrix m;
      m.indices = record.data() + l.index_off[k];
      m.scales = record.data() + l.scales(kind);
      m.n_rows = l.shape.rows(kind);
      m.n_cols = l.shape.cols(kind);
      m.quant = q;
      REQUIRE(scale.size() == m.rows());
      REQUIRE(index.size() == m.rows() * m.positions() * q.stages);
      for (std::size_t r = 0; r < m.rows(); ++r) {
        REQUIRE(static_cast<double>(m.scale(r)) == test::half_value(scale[r]));
        for (std::size_t v = 0; v < m.positions(); ++v) {
          for (std::size_t s = 0; s < q.stages; ++s) {
            REQUIRE(m.index(r, v, s) == index[(r * m.positions() + v) * q.stages + s]);
          }
        }
      }
    }
  }
}

TEST_CASE("layouts that cannot be are refused", "[layout]") {
  const auto refused = [](const ExpertQuant& q, ExpertShape shape) {
    RecordLayout out;
    return derive_layout(q, shape, out);
  };
  CHECK(refused(vq3r, {0, 8}).code == Errc::out_of_range);
  CHECK(refused(vq3r, {8, 0}).code == Errc::out_of_range);
  CHECK(refused(vq3r, {12, 8}).code == Errc::bad_field);
  CHECK(refused(vq3r, {8, 12}).code == Errc::bad_field);
  CHECK(std::string(refused(vq3r, {8, 12}).field) == "routed_expert_hidden_size");
  CHECK(std::string(refused(vq3r, {12, 8}).field) == "moe_intermediate_size");
  CHECK(refused(vq3r, {(1u << 20) + 8, 8}).code == Errc::out_of_range);
  // 2^20 x 2^20 x 3/8 bytes do not fit 32-bit offsets.
  CHECK(refused(vq3r, {1u << 20, 1u << 20}).code == Errc::overflow);
  CHECK(refused(vq3r, {1u << 20, 1u << 12}).code == Errc::overflow);
  CHECK(refused(vq2r, {1u << 20, 1u << 9}).ok());
}

TEST_CASE("expert_quant holds what the format can", "[layout]") {
  const auto code = [](auto change, ExpertQuant q = vq3r) {
    change(q);
    return validate(q);
  };
  for (std::uint32_t s = 1; s <= 8; ++s) {
    CHECK(code([&](ExpertQuant& q) { q.stages = s; }).ok());
  }
  CHECK(code([](ExpertQuant& q) { q.stages = 0; }).code == Errc::out_of_range);
  CHECK(code([](ExpertQuant& q) { q.stages = 9; }).code == Errc::out_of_range);
  CHECK(code([](ExpertQuant& q) { q.entries = 0; }).code == Errc::out_of_range);
  CHECK(code([](ExpertQuant& q) { q.entries = 1; }).ok());
  CHECK(code([](ExpertQuant& q) { q.entries = 257; }).code == Errc::out_of_range);
  CHECK(code([](ExpertQuant& q) { q.vec_dim = 4; }).code == Errc::unsupported);
  CHECK(code([](ExpertQuant& q) { q.index_block = 0; }).ok());
  CHECK(code([](ExpertQuant& q) { q.index_block = 32; }).code == Errc::unsupported);
  CHECK(code([](ExpertQuant& q) { q.index_bits = 7; }).code == Errc::unsupported);
  CHECK(code([](ExpertQuant& q) { q.fmt = Fmt::vq4p; }).code == Errc::mismatch);
  CHECK(code([](ExpertQuant& q) { q.fmt = Fmt::sub1; }).code == Errc::unsupported);
  CHECK(code([](ExpertQuant& q) { q.stages = 1; }, sub1).ok());
  CHECK(code([](ExpertQuant& q) { q.stages = 2; }, sub1).code == Errc::unsupported);
  CHECK(code([](ExpertQuant& q) { q.index_bits = 6; }, sub1).code != Errc::ok);
  CHECK(code([](ExpertQuant& q) { q.entries = 65; }, vq4p).code == Errc::out_of_range);
  CHECK(code([](ExpertQuant& q) { q.stages = 3; }, vq4p).code == Errc::unsupported);
  CHECK(code([](ExpertQuant& q) { q.fmt = Fmt::vq3r; }, vq4p).code == Errc::mismatch);
  CHECK(vq4p.run_bytes() == 3);
  CHECK(vq4p.bits_per_weight() == 3.0);
  CHECK(vq2r.bits_per_weight() == 2.0);
}

struct HeaderChange {
  const char* field;
  Errc code;
  std::function<void(ExpertRecordHeader&)> change;
};

TEST_CASE("every field of a header must be the derived one", "[header]") {
  const LayerId layer{37};
  const ExpertId expert{412};
  const std::uint32_t base = 65536 + 9;  // stored as its low 16 bits
  const HeaderChange changes[] = {
      {"magic", Errc::bad_magic, [](auto& h) { h.magic ^= 1; }},
      {"layer", Errc::mismatch, [](auto& h) { h.layer = 36; }},
      {"expert_id", Errc::mismatch, [](auto& h) { h.expert_id = 413; }},
      {"fmt", Errc::mismatch, [](auto& h) { h.fmt = 0; }},
      {"fmt", Errc::mismatch, [](auto& h) { h.fmt = 6; }},
      {"flags", Errc::bad_field, [](auto& h) { h.flags = 8; }},
      {"flags (bf16 payload)", Errc::unsupported, [](auto& h) { h.flags = 1; }},
      {"codebook_id", Errc::mismatch, [](auto& h) { h.codebook_id = 10; }},
      {"lowrank_id", Errc::unsupported, [](auto& h) { h.lowrank_id = 1; }},
      {"reserved0", Errc::bad_field, [](auto& h) { h.reserved0 = 1; }},
      {"rec_4k_blocks", Errc::mismatch, [](auto& h) { h.rec_4k_blocks += 1; }},
      {"gate_off", Errc::mismatch, [](auto& h) { h.gate_off = 47; }},
      {"up_off", Errc::mismatch, [](auto& h) { h.up_off += 1; }},
      {"down_off", Errc::mismatch, [](auto& h) { h.down_off -= 1; }},
      {"down_off", Errc::mismatch, [](auto& h) { h.down_off = h.up_off; }},
      {"chan_corr_off", Errc::mismatch, [](auto& h) { h.chan_corr_off = 0xffffffffu; }},
      {"reserved1", Errc::bad_field, [](auto& h) { h.reserved1[0] = 1; }},
      {"reserved1", Errc::bad_field, [](auto& h) { h.reserved1[1] = 0x80000000u; }},
  };
  for (const ExpertQuant& q : {vq3r, vq2r, vq4p}) {
    const RecordLayout l = layout_of(q, {72, 160});
    const ExpertRecordHeader good = make_header(l, layer, expert, base);
    CHECK(good.codebook_id == 9);
    CHECK(validate_header(good, l, layer, expert, base).ok());
    for (const HeaderChange& c : changes) {
      ExpertRecordHeader h = good;
      c.change(h);
      const Fault f = validate_header(h, l, layer, expert, base);
      INFO(c.field);
      CHECK(f.code == c.code);
      CHECK(std::string(f.field) == c.field);
      CHECK(f.layer == 37);
      CHECK(f.expert == 412);
    }
    for (const std::uint8_t hints : {0, 2, 4, 6}) {
      ExpertRecordHeader h = good;
      h.flags = hints;
      CHECK(validate_header(h, l, layer, expert, base).ok());
    }
    for (const std::uint8_t fmt : {4, 5, 8}) {
      ExpertRecordHeader h = good;
      h.fmt = fmt;
      const bool fits = q.index_bits == 6 ? fmt == 8 : fmt != 8;
      CHECK(validate_header(h, l, layer, expert, base).ok() == fits);
    }
  }
}

TEST_CASE("trunk row sizes follow the table of the specification", "[layout]") {
  CHECK(trunk_row_bytes(Fmt::f32, 7) == 28);
  CHECK(trunk_row_bytes(Fmt::f16, 7) == 14);
  CHECK(trunk_row_bytes(Fmt::q8g, 160) == 256);
  CHECK(trunk_row_bytes(Fmt::q4g, 160) == 128);
  CHECK(trunk_row_bytes(Fmt::q3g, 160) == 97);
  CHECK(trunk_row_bytes(Fmt::q3g, 128) == 49);
  for (const Fmt fmt : {Fmt::vq3r, Fmt::vq2r, Fmt::sub1, Fmt::vq4p}) {
    CHECK(trunk_row_bytes(fmt, 128) == 0);
  }
  CHECK(trunk_row_scale_bytes(Fmt::q8g, 129) == 4);
  CHECK(trunk_row_scale_bytes(Fmt::f32, 129) == 0);
  CHECK(trunk_sizes(Fmt::q4g, 600, 160).total() == 600 * (128 + 4));
}

TEST_CASE("codebook records equal the oracle's and nothing else passes", "[codebook][golden]") {
  const auto golden = test::read_golden("quantizers");
  const auto count = std::stoul(golden.metadata.at("codebook/count"));
  REQUIRE(count >= 1);
  for (std::size_t n = 0; n < count; ++n) {
    const std::string at = "codebook." + std::to_string(n);
    const auto& entries = golden[at + "/entries"];
    const auto record = golden.get<std::uint8_t>(at + "/record");
    const auto id = static_cast<std::uint32_t>(std::stoul(golden.metadata.at(at + "/id")));
    ExpertQuant q = entries.shape.at(0) == 64 ? vq4p : vq3r;
    q.entries = static_cast<std::uint32_t>(entries.shape[0]);
    CHECK(codebook_record_bytes(q) == record.size());
    const Fault f = validate_codebook(record, q, id);
    INFO(describe(f));
    CHECK(f.ok());
    CHECK(validate_codebook(record, q, id + 65536).ok());
    CHECK(std::memcmp(record.data() + 16, entries.bytes.data(), entries.bytes.size()) == 0);
    const struct {
      std::size_t at;
      std::uint8_t value;
      const char* field;
      Errc code;
    } damages[] = {{0, 0, "codebook magic", Errc::bad_magic},
                   {4, static_cast<std::uint8_t>(record[4] + 1), "codebook id", Errc::mismatch},
                   {6, 7, "codebook fmt", Errc::mismatch},
                   {7, 16, "codebook vec_dim", Errc::mismatch},
                   {9, 9, "codebook entries", Errc::mismatch},
                   {12, 1, "codebook reserved", Errc::bad_field},
                   {17, 0x7c, "codebook entry is not finite", Errc::bad_field},
                   {record.size() - 1, 0xff, "codebook entry is not finite", Errc::bad_field}};
    for (const auto& d : damages) {
      auto bad = record;
      bad[d.at] = d.value;
      const Fault got = validate_codebook(bad, q, id);
      CHECK(got.code == d.code);
      CHECK(std::string(got.field) == d.field);
    }
    CHECK(validate_codebook(std::span(record).first(record.size() - 1), q, id).code ==
          Errc::truncated);
    CHECK_FALSE(is_filler(record));
    CHECK(is_filler(Bytes(record.size(), 0)));
  }
}

}  // namespace
