// Manifests: what is read, every class of damage with its exact fault, and writing.
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/format/manifest.hpp"

namespace {

using namespace waste;
using namespace waste::format;
using Json = nlohmann::ordered_json;
using test::TinySpec;

struct Refusal {
  Errc code = Errc::ok;
  std::string field, message;
  std::uint32_t layer = Fault::none;
};

Refusal refusal(const std::string& text) {
  try {
    parse_manifest(text, "manifest.json");
  } catch (const Error& e) {
    CHECK(e.file() == "manifest.json");
    return {e.code(), e.fault().field, e.what(), e.fault().layer};
  }
  return {};
}

const Json& tiny_manifest() {
  static const Json manifest = test::make_tiny(TinySpec{}).manifest;
  return manifest;
}

using Change = std::function<void(Json&)>;

Refusal refusal(const Change& change) {
  Json m = tiny_manifest();
  change(m);
  return refusal(m.dump());
}

/// The trunk entry of this name.
Json& tensor(Json& m, const std::string& name) {
  for (Json& t : m["trunk"]) {
    if (t["name"] == name) return t;
  }
  throw std::runtime_error("no tensor " + name);
}

TEST_CASE("a manifest is read into typed fields", "[manifest]") {
  const auto tiny = test::make_tiny(TinySpec::kimi_k3());
  const Manifest m = parse_manifest(tiny.manifest.dump(), "manifest.json");
  CHECK(m.arch == "kimi-k3");
  CHECK(m.tensor_prefix == "language_model.");
  CHECK(m.config.find("_outer") != nullptr);
  CHECK(m.model.hidden_size == 192);
  CHECK(m.expert_quant == vq3r);
  CHECK(m.layout.record_bytes == tiny.record_bytes());
  REQUIRE(m.layers.size() == 3);
  CHECK(m.layers[1].layer == 2);
  CHECK(m.layers[1].file == "experts-L2.bin");
  CHECK(m.layers[1].codebook_base == 9);
  CHECK(m.bank(LayerId{0}) == nullptr);
  CHECK(m.bank(LayerId{3}) == &m.layers[2]);
  CHECK(m.bank(LayerId{4}) == nullptr);
  REQUIRE(m.trunk.size() == tiny.tensors.size());
  const TrunkEntry* head = m.tensor("language_model.lm_head.weight");
  REQUIRE(head != nullptr);
  CHECK(head->fmt == Fmt::q8g);
  CHECK(head->rows() == 272);
  CHECK(head->cols() == 192);
  CHECK(head->scale_off == head->off + 272 * 256);
  CHECK(m.tensor("lm_head.weight") == nullptr);
  CHECK(trunk_end(m) == tiny.files.at("trunk.bin").size());
  CHECK(trunk_hole_bytes(m) == 0);
}

TEST_CASE("formats in the world are read: any stages, row-major, old six keys", "[manifest]") {
  for (const std::uint32_t stages : {1u, 2u, 5u, 8u}) {
    TinySpec s;
    s.stages = stages;
    s.entries = 17;
    const Manifest m = parse_manifest(test::make_tiny(s).manifest.dump(), "m");
    CHECK(m.expert_quant.stages == stages);
    CHECK(m.expert_quant.entries == 17);
  }
  TinySpec s;
  s.index_block = 0;
  CHECK(parse_manifest(test::make_tiny(s).manifest.dump(), "m").expert_quant.index_block == 0);
  Json old = tiny_manifest();
  old["expert_quant"].erase("index_bits");
  old["expert_quant"].erase("bits_per_weight");
  CHECK(parse_manifest(old.dump(), "m").expert_quant == vq3r);
  // Members nobody here knows are ignored.
  Json more = tiny_manifest();
  more["checksums"] = {{"trunk.bin", "00"}};
  more["trunk"][0]["crc32"] = 7;
  more["layers"]["1"]["drive"] = "b";
  CHECK_NOTHROW(parse_manifest(more.dump(), "m"));
}

TEST_CASE("trunk entries may come in any order and leave holes", "[manifest]") {
  Json m = tiny_manifest();
  std::reverse(m["trunk"].begin(), m["trunk"].end());
  const Manifest in_order = parse_manifest(m.dump(), "m");
  for (std::size_t i = 1; i < in_order.trunk.size(); ++i) {
    CHECK(in_order.trunk[i - 1].off < in_order.trunk[i].off);
  }
  for (Json& t : m["trunk"]) {
    if (t["name"] <= "model.layers.1") continue;
    t["off"] = t["off"].get<std::uint64_t>() + 1000;
    if (t.contains("scale_off")) t["scale_off"] = t["scale_off"].get<std::uint64_t>() + 1000;
  }
  CHECK(trunk_hole_bytes(parse_manifest(m.dump(), "m")) == 1000);
}

TEST_CASE("every damage of the manifest has its fault", "[manifest]") {
  const auto set = [](const char* pointer, Json value) {
    return [=](Json& m) { m[Json::json_pointer(pointer)] = value; };
  };
  const auto erase = [](const char* object, const char* key) {
    return [=](Json& m) { m[Json::json_pointer(object)].erase(key); };
  };
  const std::string head = "lm_head.weight", gate = "model.layers.1.block_sparse_moe.gate.weight";
  const auto in_tensor = [](std::string name, const char* key, Json value) {
    return [=](Json& m) { tensor(m, name)[key] = value; };
  };
  const auto not_in_tensor = [](std::string name, const char* key) {
    return [=](Json& m) { tensor(m, name).erase(key); };
  };
  const struct {
    const char* what;
    Change change;
    Errc code;
    const char* field;
  } cases[] = {
      // The whole.
      {"an array", [](Json& m) { m = Json::array(); }, Errc::bad_field, "manifest"},
      {"null", [](Json& m) { m = nullptr; }, Errc::bad_field, "manifest"},
      // Version: exactly the integer 0.
      {"no version", erase("", "format_version"), Errc::bad_version, "format_version"},
      {"version 1", set("/format_version", 1), Errc::bad_version, "format_version"},
      {"version 0.0", set("/format_version", 0.0), Errc::bad_version, "format_version"},
      {"version \"0\"", set("/format_version", "0"), Errc::bad_version, "format_version"},
      {"version false", set("/format_version", false), Errc::bad_version, "format_version"},
      {"version null", set("/format_version", nullptr), Errc::bad_version, "format_version"},
      {"version 2^32", set("/format_version", 4294967296ull), Errc::bad_version, "format_version"},
      // Names.
      {"no arch", erase("", "arch"), Errc::missing, "arch"},
      {"arch number", set("/arch", 5), Errc::bad_field, "arch"},
      {"arch long", set("/arch", std::string(1025, 'a')), Errc::out_of_range, "arch"},
      {"no prefix", erase("", "tensor_prefix"), Errc::missing, "tensor_prefix"},
      {"prefix null", set("/tensor_prefix", nullptr), Errc::bad_field, "tensor_prefix"},
      {"other prefix", set("/tensor_prefix", "language_model."), Errc::missing, "trunk"},
      {"prefix with a control character", set("/tensor_prefix", "a\nb"), Errc::bad_field,
       "tensor_prefix"},
      // Config (its fields have a test of their own).
      {"no config", erase("", "config"), Errc::missing, "config"},
      {"config string", set("/config", "x"), Errc::bad_field, "config"},
      {"another hidden size", set("/config/hidden_size", 1024), Errc::mismatch, "layers.bytes"},
      {"another width of no use to records", set("/config/intermediate_size", 208), Errc::shape,
       "trunk.shape"},
      {"columns no multiple of 8", set("/config/moe_intermediate_size", 76), Errc::bad_field,
       "moe_intermediate_size"},
      {"a record beyond 2^32 bytes",
       [](Json& m) {
         m["config"]["moe_intermediate_size"] = 1u << 20;
         m["config"]["hidden_size"] = 1u << 20;
       },
       Errc::overflow, "record"},
      // expert_quant.
      {"no expert_quant", erase("", "expert_quant"), Errc::missing, "expert_quant"},
      {"expert_quant array", set("/expert_quant", Json::array()), Errc::bad_field, "expert_quant"},
      {"no fmt", erase("/expert_quant", "fmt"), Errc::missing, "expert_quant.fmt"},
      {"fmt SUB1", set("/expert_quant/fmt", "SUB1"), Errc::unsupported, "expert_quant.fmt"},
      {"fmt 4", set("/expert_quant/fmt", 4), Errc::bad_field, "expert_quant.fmt"},
      {"fmt VQ4P with 8 bits", set("/expert_quant/fmt", "VQ4P"), Errc::mismatch, "fmt"},
      {"stages 0", set("/expert_quant/stages", 0), Errc::out_of_range, "stages"},
      {"stages 9", set("/expert_quant/stages", 9), Errc::out_of_range, "stages"},
      {"stages 3.0", set("/expert_quant/stages", 3.0), Errc::bad_field, "expert_quant.stages"},
      {"stages 2", set("/expert_quant/stages", 2), Errc::mismatch, "expert_quant.bits_per_weight"},
      {"stages 2 and bits 2.0",
       [](Json& m) {
         m["expert_quant"]["stages"] = 2;
         m["expert_quant"]["bits_per_weight"] = 2.0;
       },
       Errc::mismatch, "layers.bytes"},
      {"vec_dim 16", set("/expert_quant/vec_dim", 16), Errc::unsupported, "vec_dim"},
      {"entries 257", set("/expert_quant/entries", 257), Errc::out_of_range, "entries"},
      {"entries 2^32 + 256", set("/expert_quant/entries", 4294967552ull), Errc::out_of_range,
       "expert_quant.entries"},
      {"index_block 128", set("/expert_quant/index_block", 128), Errc::unsupported, "index_block"},
      {"no index_block", erase("/expert_quant", "index_block"), Errc::missing,
       "expert_quant.index_block"},
      {"index_block 0", set("/expert_quant/index_block", 0), Errc::mismatch, "layers.bytes"},
      {"index_bits 6", set("/expert_quant/index_bits", 6), Errc::unsupported, "stages"},
      {"index_bits 7", set("/expert_quant/index_bits", 7), Errc::unsupported, "index_bits"},
      {"bits 4", set("/expert_quant/bits_per_weight", 4.0), Errc::mismatch,
       "expert_quant.bits_per_weight"},
      // layers.
      {"no layers", erase("", "layers"), Errc::missing, "layers"},
      {"layers array", set("/layers", Json::array()), Errc::bad_field, "layers"},
      {"layers empty", set("/layers", Json::object()), Errc::missing, "layers"},
      {"a layer missing", erase("/layers", "2"), Errc::missing, "layers"},
      {"the last layer missing", erase("/layers", "3"), Errc::missing, "layers"},
      {"the dense layer", set("/layers/0", tiny_manifest()["layers"]["1"]), Errc::out_of_range,
       "layers"},
      {"a layer too many", set("/layers/4", tiny_manifest()["layers"]["1"]), Errc::out_of_range,
       "layers"},
      {"layer 01", set("/layers/01", tiny_manifest()["layers"]["1"]), Errc::bad_field, "layers"},
      {"layer 1x", set("/layers/1x", tiny_manifest()["layers"]["1"]), Errc::bad_field, "layers"},
      {"layer -1", set("/layers/-1", tiny_manifest()["layers"]["1"]), Errc::bad_field, "layers"},
      {"layer +1", set("/layers/+1", tiny_manifest()["layers"]["1"]), Errc::bad_field, "layers"},
      {"layer 2^32 + 1", set("/layers/4294967297", tiny_manifest()["layers"]["1"]), Errc::bad_field,
       "layers"},
      {"layer empty", [](Json& m) { m["layers"][""] = m["layers"]["1"]; }, Errc::bad_field,
       "layers"},
      {"bank null", set("/layers/2", nullptr), Errc::bad_field, "layers"},
      {"file absolute", set("/layers/2/file", "/etc/passwd"), Errc::bad_field, "layers.file"},
      {"file ..", set("/layers/2/file", ".."), Errc::bad_field, "layers.file"},
      {"file .", set("/layers/2/file", "."), Errc::bad_field, "layers.file"},
      {"file ../x", set("/layers/2/file", "../x"), Errc::bad_field, "layers.file"},
      {"file a/b", set("/layers/2/file", "a/b"), Errc::bad_field, "layers.file"},
      {"file a\\b", set("/layers/2/file", "a\\b"), Errc::bad_field, "layers.file"},
      {"file empty", set("/layers/2/file", ""), Errc::bad_field, "layers.file"},
      {"file with NUL", set("/layers/2/file", std::string("a\0b", 3)), Errc::bad_field,
       "layers.file"},
      {"file long", set("/layers/2/file", std::string(256, 'a')), Errc::out_of_range,
       "layers.file"},
      {"file twice", set("/layers/2/file", "experts-L1.bin"), Errc::duplicate, "layers.file"},
      {"no file", erase("/layers/2", "file"), Errc::missing, "layers.file"},
      {"experts 4", set("/layers/2/experts", 4), Errc::mismatch, "layers.experts"},
      {"experts -5", set("/layers/2/experts", -5), Errc::bad_field, "layers.experts"},
      {"no experts", erase("/layers/2", "experts"), Errc::missing, "layers.experts"},
      {"bytes + 1", set("/layers/2/bytes", 5 * 24576 + 1), Errc::mismatch, "layers.bytes"},
      {"bytes 2^64", set("/layers/2/bytes", 1.8446744073709552e19), Errc::bad_field,
       "layers.bytes"},
      {"no bytes", erase("/layers/2", "bytes"), Errc::missing, "layers.bytes"},
      {"base 2^20", set("/layers/2/codebook_base", 1u << 20), Errc::out_of_range,
       "layers.codebook_base"},
      {"base \"9\"", set("/layers/2/codebook_base", "9"), Errc::bad_field, "layers.codebook_base"},
      {"no base", erase("/layers/2", "codebook_base"), Errc::missing, "layers.codebook_base"},
      // trunk.
      {"no trunk", erase("", "trunk"), Errc::missing, "trunk"},
      {"trunk object", set("/trunk", Json::object()), Errc::bad_field, "trunk"},
      {"trunk empty", set("/trunk", Json::array()), Errc::missing, "trunk"},
      {"entry null", set("/trunk/0", nullptr), Errc::bad_field, "trunk"},
      {"no name", erase("/trunk/0", "name"), Errc::missing, "trunk.name"},
      {"name empty", set("/trunk/0/name", ""), Errc::bad_field, "trunk.name"},
      {"name long", set("/trunk/0/name", std::string(1025, 'n')), Errc::out_of_range, "trunk.name"},
      {"name twice", in_tensor(head, "name", "model.norm.weight"), Errc::duplicate, "trunk.name"},
      {"required tensor renamed", in_tensor(head, "name", "lm_head.bias"), Errc::missing, "trunk"},
      {"fmt 4", in_tensor(head, "fmt", 4), Errc::unsupported, "trunk.fmt"},
      {"fmt 6", in_tensor(head, "fmt", 6), Errc::unsupported, "trunk.fmt"},
      {"fmt 9", in_tensor(head, "fmt", 9), Errc::unsupported, "trunk.fmt"},
      {"fmt 256", in_tensor(head, "fmt", 256), Errc::out_of_range, "trunk.fmt"},
      {"fmt Q8G", in_tensor(head, "fmt", "Q8G"), Errc::bad_field, "trunk.fmt"},
      {"fmt Q4G over Q8G bytes", in_tensor(head, "fmt", 3), Errc::mismatch, "trunk.bytes"},
      {"no fmt", not_in_tensor(head, "fmt"), Errc::missing, "trunk.fmt"},
      {"norm as Q8G",
       [](Json& m) {
         Json& t = m["trunk"].back();
         REQUIRE(t["name"] == "model.norm.weight");
         t["fmt"] = 2;
         t["group"] = 128;
         t["scale_off"] = t["off"].get<std::uint64_t>() + 256;
         t["bytes"] = 260;
       },
       Errc::unsupported, "trunk.fmt"},
      {"shape transposed", in_tensor(head, "shape", {160, 272}), Errc::mismatch, "trunk.bytes"},
      {"shape transposed, same bytes", in_tensor(gate, "shape", {160, 5}), Errc::shape,
       "trunk.shape"},
      {"shape flat, same bytes", in_tensor(gate, "shape", Json::array({800})), Errc::shape,
       "trunk.shape"},
      {"shape string", in_tensor(head, "shape", "272x160"), Errc::bad_field, "trunk.shape"},
      {"shape of a float", in_tensor(head, "shape", {272.0, 160}), Errc::bad_field, "trunk.shape"},
      {"shape negative", in_tensor(head, "shape", {-272, 160}), Errc::bad_field, "trunk.shape"},
      {"shape of 0", in_tensor(head, "shape", {0, 160}), Errc::out_of_range, "trunk.shape"},
      {"shape of 2^24 + 1", in_tensor(head, "shape", {(1 << 24) + 1, 160}), Errc::out_of_range,
       "trunk.shape"},
      {"shape of 9 dimensions", in_tensor(head, "shape", {1, 1, 1, 1, 1, 1, 1, 272, 160}),
       Errc::out_of_range, "trunk.shape"},
      {"shape that overflows", in_tensor(head, "shape", {1 << 24, 1 << 24, 1 << 24}),
       Errc::overflow, "trunk.shape"},
      {"no shape", not_in_tensor(head, "shape"), Errc::missing, "trunk.shape"},
      {"off 2^62 + 1", in_tensor(head, "off", (1ull << 62) + 1), Errc::out_of_range, "trunk.off"},
      {"off -1", in_tensor(head, "off", -1), Errc::bad_field, "trunk.off"},
      {"off + 4: overlap",
       in_tensor(gate, "off",
                 tensor(const_cast<Json&>(tiny_manifest()), gate)["off"].get<std::uint64_t>() + 4),
       Errc::mismatch, "trunk.off"},
      {"off + 1: overlap of one byte",
       [gate](Json& m) {
         Json& t = tensor(m, gate);
         t["off"] = t["off"].get<std::uint64_t>() + 1;
       },
       Errc::mismatch, "trunk.off"},
      {"off moved, scales not", in_tensor(head, "off", 1), Errc::mismatch, "trunk.scale_off"},
      {"no off", not_in_tensor(head, "off"), Errc::missing, "trunk.off"},
      {"group 64", in_tensor(head, "group", 64), Errc::unsupported, "trunk.group"},
      {"no group", not_in_tensor(head, "group"), Errc::missing, "trunk.group"},
      {"scale_off + 1",
       [head](Json& m) {
         Json& t = tensor(m, head);
         t["scale_off"] = t["scale_off"].get<std::uint64_t>() + 1;
       },
       Errc::mismatch, "trunk.scale_off"},
      {"no scale_off", not_in_tensor(head, "scale_off"), Errc::missing, "trunk.scale_off"},
      {"bytes 0", in_tensor(head, "bytes", 0), Errc::mismatch, "trunk.bytes"},
      {"bytes 2^64 - 1", in_tensor(head, "bytes", 18446744073709551615ull), Errc::mismatch,
       "trunk.bytes"},
      {"no bytes", not_in_tensor(head, "bytes"), Errc::missing, "trunk.bytes"},
  };
  for (const auto& c : cases) {
    const Refusal r = refusal(c.change);
    INFO(c.what << ": " << r.message);
    CHECK(waste::to_string(r.code) == waste::to_string(c.code));
    CHECK(r.field == c.field);
  }
}

TEST_CASE("every tensor of the model is missed by name", "[manifest]") {
  for (const TinySpec& spec : {TinySpec{}, TinySpec::kimi_k3()}) {
    const Json whole = test::make_tiny(spec).manifest;
    for (std::size_t i = 0; i < whole["trunk"].size(); ++i) {
      const std::string name = whole["trunk"][i]["name"];
      Json m = whole;
      m["trunk"].erase(i);
      const Refusal r = refusal(m.dump());
      const bool optional = name.starts_with("vision") || name.starts_with("mm_");
      INFO(name);
      CHECK(r.code == (optional ? Errc::ok : Errc::missing));
      if (!optional) CHECK(r.message == "manifest.json: trunk: missing; " + name);
    }
  }
}

TEST_CASE("messages name layer, tensor, wanted and got", "[manifest]") {
  const auto set = [](const char* pointer, Json value) {
    return Change([=](Json& m) { m[Json::json_pointer(pointer)] = value; });
  };
  const Refusal bytes = refusal(set("/layers/2/bytes", 7));
  CHECK(bytes.layer == 2);
  CHECK(bytes.message ==
        "manifest.json: layer 2: layers.bytes: mismatch, got 7, wanted 122880; 5 records of 24576 "
        "bytes");
  CHECK(refusal(set("/format_version", 1)).message ==
        "manifest.json: format_version: wrong version, got 1, wanted 0");
  CHECK(refusal(set("/layers/2/file", "../x")).message ==
        "manifest.json: layer 2: layers.file: invalid value; \"../x\", wanted a file name inside "
        "the container");
  CHECK(refusal(Change([](Json& m) { tensor(m, "lm_head.weight")["bytes"] = 5; })).message ==
        "manifest.json: trunk.bytes: mismatch, got 5, wanted 70720; lm_head.weight");
  CHECK(refusal(Change([](Json& m) { m["layers"].erase("2"); })).message ==
        "manifest.json: layers: missing; layer 2");
}

TEST_CASE("text damage is bad_json", "[manifest]") {
  const std::string text = tiny_manifest().dump();
  CHECK(refusal(text + " x").code == Errc::bad_json);
  CHECK(refusal("\xef\xbb\xbf" + text).code == Errc::bad_json);
  CHECK(refusal(text.substr(0, text.size() / 2)).code == Errc::bad_json);
  CHECK(refusal("").code == Errc::bad_json);
  std::string twice = text;
  twice.insert(1, "\"format_version\":0,");
  CHECK(refusal(twice).field == "duplicate key");
}

TEST_CASE("every prefix of a manifest is refused", "[manifest]") {
  const std::string text = tiny_manifest().dump();
  for (std::size_t n = 0; n < text.size(); n += 1 + text.size() / 400) {
    CHECK(refusal(text.substr(0, n)).code == Errc::bad_json);
  }
}

TEST_CASE("a flipped byte is refused or changes nothing that is read as a size", "[manifest]") {
  const std::string text = tiny_manifest().dump();
  const Manifest whole = parse_manifest(text, "m");
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < text.size(); at += 7) {
    std::string bad = text;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 7));
    try {
      const Manifest m = parse_manifest(bad, "m");
      ++accepted;
      CHECK(m.layout.record_bytes == whole.layout.record_bytes);
      // An offset may have moved the last tensor away: the file's size then tells.
      CHECK(trunk_end(m) >= trunk_end(whole));
    } catch (const Error&) {
    }
  }
  CHECK(accepted < text.size() / 70);
}

TEST_CASE("dump and parse are inverse", "[manifest]") {
  for (const TinySpec& spec :
       {TinySpec{}, TinySpec::vq2r(), TinySpec::vq4p(), TinySpec::kimi_k3()}) {
    const std::string text = test::make_tiny(spec).manifest.dump(1);
    const std::string again = dump_manifest(parse_manifest(text, "m"));
    CHECK(again == dump_manifest(parse_manifest(again, "m")));
    const bool same = Json::parse(again) == Json::parse(text);
    CHECK(same);
  }
}

TEST_CASE("containers in the world: read, and written back byte for byte", "[manifest][shared]") {
  const auto shared = test::shared_dir();
  if (shared.empty()) {
    waste::test::skipped("WASTE_SHARED is unset: manifests of another writer were not read");
    return;
  }
  for (const char* name : {"k3.waste", "vq2r.waste", "vq3r.waste", "vq4p.waste"}) {
    std::ifstream in(shared / "interop" / name / "manifest.json", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    REQUIRE_FALSE(text.empty());
    const Manifest m = parse_manifest(text, name);
    CHECK(dump_manifest(m) == text);
    CHECK(trunk_hole_bytes(m) == 0);
  }
}

}  // namespace
