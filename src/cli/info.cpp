// waste info: what a container is.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "commands.hpp"
#include "sizes.hpp"
#include "waste/format/family.hpp"
#include "waste/format/json.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/io/container.hpp"
#include "waste/io/substitutes.hpp"

namespace waste::cli {
namespace {

namespace fs = std::filesystem;
using Ull = unsigned long long;

std::uint64_t file_size_or_zero(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<std::uint64_t>(size);
}

struct FormatTotal {
  std::uint64_t tensors = 0, elements = 0, bytes = 0;
};

/// A folder that banks really lie in, and the drive (file system) that holds it.
struct BankFolder {
  fs::path directory;
  std::uint64_t device = 0, banks = 0, bytes = 0;
};

struct Facts {
  Container container;
  std::uint64_t expert_bytes = 0, trunk_bytes = 0, codebook_bytes = 0, manifest_bytes = 0;
  std::uint64_t expert_weights = 0, active_expert_weights = 0;
  std::uint64_t trunk_weights = 0, active_trunk_weights = 0;
  std::uint64_t resident_bytes = 0, hole_bytes = 0;
  std::uint32_t kda_layers = 0;
  std::array<FormatTotal, 9> by_format{};
  std::vector<std::string> side_files;
  std::vector<BankFolder> folders;     ///< in the order of their first banks
  std::uint64_t substitute_bytes = 0;  ///< 0: there are none

  explicit Facts(Container opened) : container(std::move(opened)) {
    const Container& c = container;
    const format::Manifest& m = c.manifest();
    const format::ModelConfig& model = m.model;
    for (const io::ExpertBank& bank : c.banks()) {
      const std::uint64_t bytes = bank.experts() * bank.record_bytes();
      expert_bytes += bytes;
      const fs::path home = fs::canonical(bank.file().path()).parent_path();
      auto it = std::find_if(folders.begin(), folders.end(),
                             [&](const BankFolder& f) { return f.directory == home; });
      if (it == folders.end()) it = folders.insert(it, {home, bank.device(), 0, 0});
      ++it->banks;
      it->bytes += bytes;
    }
    const format::SubstituteBanks substitutes = format::substitutes_of(m);
    if (io::has_substitutes(c.directory(), substitutes)) {
      substitute_bytes = file_size_or_zero(c.directory() / format::substitute_codebooks_file);
      for (const format::BankEntry& bank : substitutes.layers) {
        substitute_bytes += file_size_or_zero(c.directory() / bank.file);
      }
    }
    const std::uint64_t per_expert =
        3 * std::uint64_t{model.moe_intermediate_size} * model.expert_width();
    expert_weights = per_expert * model.num_experts * model.moe_layers();
    active_expert_weights = per_expert * model.num_experts_per_token * model.moe_layers();
    for (const format::TrunkEntry& t : m.trunk) {
      FormatTotal& total = by_format[static_cast<std::size_t>(t.fmt)];
      ++total.tensors;
      total.elements += t.rows() * t.cols();
      total.bytes += t.bytes;
      trunk_weights += t.rows() * t.cols();
    }
    trunk_bytes = format::trunk_end(m);
    hole_bytes = format::trunk_hole_bytes(m);
    for (const std::string& name : io::resident_tensors(m)) {
      const format::TrunkEntry& t = c.trunk().entry(name);
      resident_bytes += t.bytes;
      active_trunk_weights += t.rows() * t.cols();
    }
    codebook_bytes = file_size_or_zero(c.directory() / "codebooks.bin");
    manifest_bytes = file_size_or_zero(c.directory() / "manifest.json");
    kda_layers = static_cast<std::uint32_t>(
        std::count(model.attention.begin(), model.attention.end(), format::AttentionKind::kda));
    for (const char* name : {"tokenizer.model", "specials.json", "chat.json", "chat_template.jinja",
                             "vision.json", "usage.waste"}) {
      if (fs::exists(c.directory() / name)) side_files.push_back(name);
    }
  }

  std::uint64_t total_bytes() const {
    return expert_bytes + trunk_bytes + codebook_bytes + manifest_bytes + substitute_bytes;
  }
  std::size_t drives() const {
    std::set<std::uint64_t> devices;
    for (const BankFolder& f : folders) devices.insert(f.device);
    return devices.size();
  }
};

std::string attention_text(const Facts& f) {
  const format::ModelConfig& c = f.container.model();
  if (c.attention.front() == format::AttentionKind::gqa) {
    return "GQA, " + std::to_string(c.num_attention_heads) + " heads on " +
           std::to_string(c.num_key_value_heads) + " of " + std::to_string(c.head_dim);
  }
  return std::to_string(f.kda_layers) + " KDA, " +
         std::to_string(c.num_hidden_layers - f.kda_layers) + " MLA";
}

void print_info(const Facts& f) {
  const format::Manifest& m = f.container.manifest();
  const format::ModelConfig& c = m.model;
  const format::ExpertQuant& q = m.expert_quant;
  std::printf("%s\n", f.container.directory().c_str());
  std::printf("  %-34s %s, family %s\n", "architecture", m.arch.c_str(),
              std::string(to_string(c.family)).c_str());
  std::printf("  %-34s %u: %u dense, %u with experts; %s\n", "layers", c.num_hidden_layers,
              c.first_k_dense_replace, c.moe_layers(), attention_text(f).c_str());
  std::printf("  %-34s %u hidden, %u vocabulary\n", "width", c.hidden_size, c.vocab_size);
  std::printf("  %-34s %u a layer, %u a token, %u shared; gate and up [%u][%u], down [%u][%u]\n",
              "experts", c.num_experts, c.num_experts_per_token, c.num_shared_experts,
              c.moe_intermediate_size, c.expert_width(), c.expert_width(), c.moe_intermediate_size);
  std::printf("  %-34s %s: %u stages of %u entries, %u-bit indices, %.2f bits/weight, %s\n",
              "expert format", std::string(to_string(q.fmt)).c_str(), q.stages, q.entries,
              q.index_bits, q.bits_per_weight(),
              q.index_block == 0 ? "row-major" : "blocks of 64 rows");
  std::printf("  %-34s %s bytes = %llu pages\n", "record", grouped(m.layout.record_bytes).c_str(),
              static_cast<Ull>(m.layout.record_bytes / format::page_bytes));
  std::printf("  %-34s %s experts + %s trunk; active per token %s + %s\n", "weights",
              grouped(f.expert_weights).c_str(), grouped(f.trunk_weights).c_str(),
              grouped(f.active_expert_weights).c_str(), grouped(f.active_trunk_weights).c_str());
  std::printf("\nfiles\n");
  size_line("experts (" + std::to_string(f.container.banks().size()) + " banks)", f.expert_bytes);
  if (f.folders.size() > 1) {
    for (const BankFolder& folder : f.folders) {
      size_line("  " + std::to_string(folder.banks) + " banks", folder.bytes,
                "in " + folder.directory.string());
    }
    std::printf("  %-34s %22zu%s\n", "  drives", f.drives(),
                f.drives() == 1 ? "   one file system: no faster than one folder" : "");
  }
  size_line("substitutes", f.substitute_bytes, f.substitute_bytes == 0 ? "none" : "");
  size_line("trunk.bin", f.trunk_bytes,
            f.hole_bytes == 0 ? "" : grouped(f.hole_bytes) + " bytes in no tensor's use");
  size_line("codebooks.bin", f.codebook_bytes);
  size_line("manifest.json", f.manifest_bytes);
  size_line("together", f.total_bytes());
  std::printf("  %-34s", "beside them");
  for (const std::string& name : f.side_files) std::printf(" %s", name.c_str());
  std::printf("%s\n\ntrunk\n", f.side_files.empty() ? " nothing" : "");
  for (std::size_t i = 0; i < f.by_format.size(); ++i) {
    const FormatTotal& t = f.by_format[i];
    if (t.tensors == 0) continue;
    char bits[32];
    std::snprintf(bits, sizeof bits, "%.3f bits/weight",
                  8.0 * static_cast<double>(t.bytes) / static_cast<double>(t.elements));
    size_line(std::string(to_string(static_cast<format::Fmt>(i))) + " (" +
                  std::to_string(t.tensors) + " tensors)",
              t.bytes, bits);
  }
  size_line("resident for text", f.resident_bytes);
}

JsonValue info_json(const Facts& f) {
  const format::Manifest& m = f.container.manifest();
  const format::ModelConfig& c = m.model;
  const format::ExpertQuant& q = m.expert_quant;
  JsonValue out;
  out.set("directory", f.container.directory().string());
  out.set("arch", m.arch);
  out.set("family", to_string(c.family));
  out.set("layers", c.num_hidden_layers);
  out.set("dense_layers", c.first_k_dense_replace);
  out.set("moe_layers", c.moe_layers());
  out.set("kda_layers", f.kda_layers);
  out.set("hidden_size", c.hidden_size);
  out.set("vocab_size", c.vocab_size);
  out.set("num_experts", c.num_experts);
  out.set("num_experts_per_token", c.num_experts_per_token);
  out.set("num_shared_experts", c.num_shared_experts);
  out.set("expert_rows", c.moe_intermediate_size);
  out.set("expert_cols", c.expert_width());
  out.set("expert_format", to_string(q.fmt));
  out.set("stages", q.stages);
  out.set("entries", q.entries);
  out.set("index_bits", q.index_bits);
  out.set("index_block", q.index_block);
  out.set("bits_per_weight", q.bits_per_weight());
  out.set("record_bytes", m.layout.record_bytes);
  out.set("expert_weights", f.expert_weights);
  out.set("active_expert_weights", f.active_expert_weights);
  out.set("trunk_weights", f.trunk_weights);
  out.set("active_trunk_weights", f.active_trunk_weights);
  out.set("expert_bytes", f.expert_bytes);
  out.set("trunk_bytes", f.trunk_bytes);
  out.set("trunk_hole_bytes", f.hole_bytes);
  out.set("resident_trunk_bytes", f.resident_bytes);
  out.set("codebook_bytes", f.codebook_bytes);
  out.set("manifest_bytes", f.manifest_bytes);
  out.set("total_bytes", f.total_bytes());
  out.set("substitute_bytes", f.substitute_bytes == 0 ? JsonValue() : f.substitute_bytes);
  JsonValue folders = JsonValue::Array{};
  for (const BankFolder& folder : f.folders) {
    JsonValue one;
    one.set("directory", folder.directory.string());
    one.set("device", folder.device);
    one.set("banks", folder.banks);
    one.set("bytes", folder.bytes);
    folders.push_back(std::move(one));
  }
  out.set("bank_folders", std::move(folders));
  out.set("drives", static_cast<std::uint64_t>(f.drives()));
  JsonValue formats = JsonValue::Object{};
  for (std::size_t i = 0; i < f.by_format.size(); ++i) {
    const FormatTotal& t = f.by_format[i];
    if (t.tensors == 0) continue;
    JsonValue entry;
    entry.set("tensors", t.tensors);
    entry.set("elements", t.elements);
    entry.set("bytes", t.bytes);
    formats.set(std::string(to_string(static_cast<format::Fmt>(i))), std::move(entry));
  }
  out.set("trunk_formats", std::move(formats));
  JsonValue side = JsonValue::Array{};
  for (const std::string& name : f.side_files) side.push_back(name);
  out.set("side_files", std::move(side));
  return out;
}

}  // namespace

void add_info(CLI::App& app, Context&) {
  auto directory = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  CLI::App* info = app.add_subcommand("info", "Show what a container holds");
  info->add_option("container", *directory, "Directory with a manifest.json")->required();
  info->add_flag("--json", *json, "Print one JSON object");
  info->callback([directory, json] {
    OpenOptions options;
    options.resident_trunk = false;
    const Facts facts(Container::open(*directory, options));
    if (*json) {
      std::printf("%s\n", dump_json(info_json(facts), 1).c_str());
    } else {
      print_info(facts);
    }
  });
}

}  // namespace waste::cli
