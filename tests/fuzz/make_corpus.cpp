// Writes the seed corpora. Usage: make_corpus FOLDER (what stands in tests/fuzz/corpus)
// Built by hand, linked with the library and tests/support.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "scratch_container.hpp"
#include "waste/convert/calibration.hpp"
#include "waste/core/half.hpp"
#include "waste/format/manifest.hpp"
#include "waste/io/checksums.hpp"
#include "waste/io/crc32.hpp"

namespace {

namespace fs = std::filesystem;
using waste::test::Bytes;
using waste::test::TinySpec;

void save(const fs::path& path, const Bytes& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}
Bytes of(const std::string& text) { return {text.begin(), text.end()}; }
Bytes with_front(std::uint8_t first, Bytes bytes) {
  bytes.insert(bytes.begin(), first);
  return bytes;
}

/// Two sites and an expert's own moments of the model that the target has.
void save_calibration(const fs::path& folder) {
  using namespace waste;
  const test::TinySpec spec = fuzz::small(TinySpec::vq3r());
  const auto model = format::parse_manifest(test::make_tiny(spec).manifest.dump(), "m").model;
  convert::Calibration c;
  c.config_crc32 = 7;
  c.tokens = 5;
  c.uses = {3, 4, 1, 2};
  const auto add = [&](convert::MomentKey key, std::size_t cols, std::size_t block) {
    quant::InputMoments m(cols, block);
    std::vector<float> x(2 * cols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
    m.add({x.data(), 2, cols});
    c.moments.emplace(key, std::move(m));
  };
  add({1, convert::Site::expert}, spec.hidden, spec.hidden);
  add({1, convert::Site::expert_down, 1}, spec.inter, 1);
  add({2, convert::Site::moe}, spec.hidden, 8);
  const fs::path file = folder / "written";
  fs::create_directories(folder);
  convert::write_calibration(file, model, c);
  std::ifstream in(file, std::ios::binary);
  const Bytes bytes{std::istreambuf_iterator<char>(in), {}};
  fs::remove(file);
  save(folder / "as-written", with_front(0, bytes));
  save(folder / "mended", with_front(1, bytes));
}

/// Of the target's own model: an empty session, and one of three positions with two tokens pending.
void save_sessions(const fs::path& dir) {
  using namespace waste;
  for (const std::uint8_t position : {0, 3}) {
    const std::uint8_t pending = position == 0 ? 0 : 2;
    Bytes b(64);
    const std::uint32_t header[] = {0x53414457, 2, 2, 8, 1, 2, 4, 3, position, 0, pending, 7};
    for (std::size_t i = 0; i < 12; ++i) store_le(b.data() + 4 * i, header[i]);
    const std::size_t floats = 2 * 2 + 3 * 3 * 2 + std::size_t{3} * position;
    b.resize(64 + 4 * (pending + floats));
    for (std::size_t i = 0; i < pending; ++i) store_le<std::uint32_t>(&b[64 + 4 * i], 40);
    for (std::size_t i = 0; i < floats; ++i) {
      store_le(&b[64 + 4 * (pending + i)], static_cast<float>(i) / 8);
    }
    save(dir / ("mended" + std::to_string(position)), with_front(3, b));
    store_le(b.data() + 48, io::crc32(std::span<const std::uint8_t>(b).subspan(64)));
    store_le(b.data() + 60, io::crc32(std::span<const std::uint8_t>(b).first(60)));
    save(dir / ("whole" + std::to_string(position)), with_front(0, b));
  }
}

void save_checksums(const fs::path& file) {
  using namespace waste;
  const fuzz::ScratchContainer base(fuzz::small(TinySpec::vq2r()));
  save(file, of(io::dump_checksums(
                 io::compute_checksums(base.dir, format::parse_manifest(base.manifest, "m")))));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  const fs::path root = argv[1];
  const struct {
    const char* name;
    TinySpec spec;
  } specs[] = {{"vq3r", TinySpec::vq3r()},
               {"vq2r", TinySpec::vq2r()},
               {"vq4p", TinySpec::vq4p()},
               {"k3", TinySpec::kimi_k3()}};
  std::uint8_t number = 0;
  for (const auto& s : specs) {
    const auto tiny = waste::test::make_tiny(waste::fuzz::small(s.spec));
    const std::string name = s.name;
    save(root / "manifest" / name, of(tiny.manifest.dump()));
    if (name == "vq3r" || name == "k3") {
      save(root / "trunk" / name,
           with_front(name == "k3" ? 1 : 0, of(tiny.manifest["trunk"].dump())));
    }
    if (name != "k3")
      save(root / "codebooks" / name, with_front(number, tiny.files.at("codebooks.bin")));
    // One damage of each kind per container, with and without a mended crc.
    for (std::uint8_t kind = 0; kind < 8; ++kind) {
      save(root / "container" / (name + "-" + std::to_string(kind)),
           {number, static_cast<std::uint8_t>(kind + number),
            static_cast<std::uint8_t>(kind | (kind % 2 ? 0x80 : 0)),
            static_cast<std::uint8_t>(60 + 37 * kind), kind, 0, 0, 3, 0});
    }
    ++number;
  }
  // Records of the target's own six layouts: gate and up 8 x 16, down 16 x 8.
  const struct {
    const char* fmt;
    std::uint32_t stages, entries, block, bits;
  } layouts[] = {{"VQ3R", 3, 256, 64, 8}, {"VQ2R", 2, 256, 64, 8}, {"VQ4P", 4, 64, 64, 6},
                 {"VQ3R", 3, 40, 0, 8},   {"VQ3R", 8, 1, 64, 8},   {"VQ4P", 4, 5, 0, 6}};
  for (std::uint8_t i = 0; i < 6; ++i) {
    TinySpec s = waste::fuzz::small(TinySpec{});
    s.fmt = layouts[i].fmt;
    s.stages = layouts[i].stages;
    s.entries = layouts[i].entries;
    s.index_block = layouts[i].block;
    s.index_bits = layouts[i].bits;
    const auto tiny = waste::test::make_tiny(s);
    Bytes record = waste::test::tiny_record(s, 3, 2, 9, tiny.layers[0].experts[0]);
    while (!record.empty() && record.back() == 0) record.pop_back();  // the target pads
    save(root / "record" / ("layout" + std::to_string(i)), with_front(i, record));
    save(root / "record" / ("mended" + std::to_string(i)),
         with_front(static_cast<std::uint8_t>(i + 6 * 32), record));  // 192 = 0xc0, a multiple of 6
  }
  save(root / "json" / "values",
       of(R"({"a":[1,-2,3.5e-7,true,false,null,"\u00e9\ud83d\ude00\n"],"b":{"c":{}},"d":[[[]]]})"));
  save(root / "json" / "numbers",
       of("[0,-0,1e308,18446744073709551615,-9223372036854775808,1E+2]"));
  save(root / "usage" / "three", {'W', 'U', 'S', 'G', 1, 0, 0, 0, 9, 0, 0, 0, 0,   0, 0, 0, 1, 0, 4,
                                  0,   3,   0,   0,   0, 6, 0, 0, 0, 0, 0, 0, 0,   1, 0, 4, 0, 1, 0,
                                  0,   0,   7,   0,   0, 0, 0, 0, 0, 0, 9, 0, 255, 0, 1, 1, 1, 1});
  save(root / "safetensors" / "two",
       of(std::string("\x28\0\0\0\0\0\0\0", 8) +
          R"({"__metadata__":{"format":"pt"},)"
          R"("a":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},)"
          R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[32,40]}})"));
  save(root / "ranks" / "bytes", of("AA== 0\nAQ== 1\nYQ== 2\nYWI= 3\nYWJj 4\n"));
  save_calibration(root / "calibration");
  save_sessions(root / "session");
  save_checksums(root / "checksums" / "right");
  save(root / "trace" / "three", of("{\"tok\":0,\"layers\":[[1,0],[2]]}\n"
                                    "{\"tok\":1,\"layers\":[[3],[2,0]]}\n"
                                    "{\"tok\":2,\"layers\":[[1],[65535]]}\n"));
  save(root / "text" / "words", of("The weather  isn't 12345 <|end|>x\r\n\n\tna\xc3\xafve "
                                   "\xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80 caf\xc3"));
  save(root / "side" / "specials",
       with_front(0, of(R"([{"id": 300, "text": "<|end|>"}, {"id": 301, "text": "\u00e9"}])")));
  save(root / "side" / "added",
       with_front(1, of(R"({"added_tokens_decoder": {"12": {"content": "<|b|>"}}, "x": 1})")));
  save(root / "side" / "chat",
       with_front(2, of(R"({"system": ["<s>", "</s>"], "user": ["<u>", ""], "open": "<a>"})")));
  // One damage of each kind to each file of substitutes of either base, crc mended or not.
  for (std::uint8_t kind = 0; kind < 8; ++kind) {
    for (std::uint8_t base = 0; base < 2; ++base) {
      save(root / "substitutes" / (std::to_string(base) + "-" + std::to_string(kind)),
           {base, kind, static_cast<std::uint8_t>(kind | (base == 1 ? 0x80 : 0)),
            static_cast<std::uint8_t>(60 + 37 * kind), static_cast<std::uint8_t>(kind % 2), 0, 0, 3,
            0});
    }
  }
  // One damage of each kind to each base of the checkpoint; one input per kernel family.
  for (std::uint8_t kind = 0; kind < 8; ++kind) {
    save(root / "checkpoint" / std::to_string(kind),
         {kind, kind, static_cast<std::uint8_t>(kind | (kind % 3 == 0 ? 0x80 : 0)),
          static_cast<std::uint8_t>(31 * kind), kind, 0, 0, 5, 0});
  }
  for (const std::uint8_t which : {0, 3, 8, 16, 24, 32, 33, 34, 35, 36, 64, 96}) {
    Bytes bytes = {which, static_cast<std::uint8_t>(3 * which + 63), which};
    for (int i = 0; i < 200; ++i) bytes.push_back(static_cast<std::uint8_t>(i * i + 7 * which));
    save(root / "tiers" / std::to_string(which), bytes);
  }
  std::printf("wrote %s\n", root.c_str());
  return 0;
}
