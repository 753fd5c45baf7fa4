#include "worlds.hpp"

#include <fstream>

#include "convert/folder.hpp"
#include "convert/small_source.hpp"
#include "waste/convert/calibration.hpp"
#include "waste/format/manifest.hpp"
#include "waste/format/usage_log.hpp"
#include "waste/io/checksums.hpp"

namespace waste::damage {
namespace {

namespace fs = std::filesystem;
using test::TinySpec;

TinySpec small(TinySpec s) {
  s.hidden = 16;
  s.inter = 8;
  s.latent = 8;
  s.experts = 3;
  s.layers = 3;
  s.vocab = 272;
  s.trunk_threshold = 64;
  return s;
}

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

void put_calibration(const fs::path& path, const format::Manifest& m) {
  convert::Calibration c;
  c.config_crc32 = convert::config_identity(m.config);
  c.tokens = 9;
  c.uses.assign(std::size_t{m.model.moe_layers()} * m.model.num_experts, 3);
  for (const auto& [key, cols] : convert::calibration_sites(m.model)) {
    quant::InputMoments moments(cols, cols);
    std::vector<float> x(cols);
    for (std::size_t i = 0; i < cols; ++i) x[i] = static_cast<float>(i % 5) - 2;
    moments.add({x.data(), 1, cols});
    c.moments.emplace(key, std::move(moments));
  }
  convert::write_calibration(path, m.model, c);
}

World container(const fs::path& root, const std::string& name, const TinySpec& spec) {
  World w;
  w.name = name;
  w.tiny = test::make_tiny(spec);
  w.dir = root / name;
  w.tiny.write(w.dir);
  const auto m = format::parse_manifest(test::read_bytes(w.dir / "manifest.json"), "manifest.json");
  put(w.dir / "specials.json", R"([{"id": 300, "text": "<|end|>"}, {"id": 301, "text": "<|x|>"}])");
  put(w.dir / "chat.json", R"({"user": ["<|x|>", "<|end|>"], "open": "<|x|>"})");
  io::Checksums sums = io::compute_checksums(w.dir, m);
  if (!w.files_summed()) sums.files.clear();
  put(w.dir / io::checksums_file, io::dump_checksums(sums));
  format::UsageLog log;
  log.clock = 40;
  log.entries = {{1, 0, 5, 39, 0}, {1, 2, 3, 20, 0}, {2, 1, 9, 40, 0}};
  const auto usage = format::dump_usage(log);
  put(w.dir / "usage.waste", {usage.begin(), usage.end()});
  put(w.dir / "trace.jsonl",
      "{\"tok\": 0, \"layers\": [[0, 1], [2, 0]]}\n{\"tok\": 1, \"layers\": [[1, 2], [0, 1]]}\n");
  put_calibration(w.dir / "c.wcal", m);
  for (const auto& [file, bytes] : test::folder_bytes(w.dir)) {
    w.files[file] = Bytes(bytes.begin(), bytes.end());
  }
  return w;
}

World checkpoint(const fs::path& root, const std::string& name, bool k3) {
  World w;
  w.name = name;
  w.source = true;
  w.dir = root / name;
  test::SmallSource s;
  s.k3 = k3;
  s.experts = 2;
  s.inter = 32;
  test::make_source(w.dir, s);
  for (const auto& [file, bytes] : test::folder_bytes(w.dir)) {
    w.files[file] = Bytes(bytes.begin(), bytes.end());
  }
  return w;
}

}  // namespace

std::vector<std::string> World::named(const std::string& stem) const {
  std::vector<std::string> out;
  for (const auto& [file, bytes] : files) {
    if (file.starts_with(stem)) out.push_back(file);
  }
  return out;
}

std::vector<World> make_worlds(const fs::path& root) {
  std::vector<World> out;
  for (const std::uint32_t block : {64u, 0u}) {
    for (const auto& [name, spec] : {std::pair("vq3r", TinySpec::vq3r()),
                                     {"vq2r", TinySpec::vq2r()},
                                     {"vq4p", TinySpec::vq4p()}}) {
      TinySpec s = small(spec);
      s.index_block = block;
      if (block == 0) s.trunk_fmt = 7;
      out.push_back(container(root, name + std::to_string(block), s));
    }
  }
  TinySpec few = small(TinySpec::kimi_k3()), few4 = small(TinySpec::vq4p());
  few.entries = 200;
  few4.entries = 40;
  out.push_back(container(root, "k3-200", few));
  out.push_back(container(root, "vq4p-40", few4));
  out.push_back(checkpoint(root, "bf16", false));
  out.push_back(checkpoint(root, "mxfp4", true));
  return out;
}

}  // namespace waste::damage
