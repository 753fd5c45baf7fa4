#include "waste/convert/calibration.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "waste/core/checked.hpp"
#include "waste/core/half.hpp"
#include "waste/format/manifest.hpp"
#include "waste/io/crc32.hpp"

namespace waste::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t magic = 0x4C414357;
constexpr std::uint32_t version = 1;
constexpr std::size_t header_bytes = 48;
constexpr std::size_t entry_bytes = 32;
constexpr std::size_t crc_at = 40;

struct Named {
  std::string_view name;
  Site site;
};
constexpr Named attention_names[] = {
    {"q_proj", Site::attention},
    {"k_proj", Site::attention},
    {"v_proj", Site::attention},
    {"f_a_proj", Site::attention},
    {"b_proj", Site::attention},
    {"g_proj", Site::attention},
    {"g_a_proj", Site::attention},
    {"q_a_proj", Site::attention},
    {"kv_a_proj_with_mqa", Site::attention},
    {"f_b_proj", Site::decay},
    {"g_b_proj", Site::low_gate},
    {"q_b_proj", Site::low_query},
    {"kv_b_proj", Site::latent},
    {"o_proj", Site::attention_out},
};
constexpr Named other_names[] = {
    {"mlp.gate_proj", Site::mlp},
    {"mlp.up_proj", Site::mlp},
    {"mlp.down_proj", Site::mlp_down},
    {"block_sparse_moe.gate", Site::moe},
    {"block_sparse_moe.routed_expert_down_proj", Site::moe},
    {"block_sparse_moe.shared_experts.gate_proj", Site::moe},
    {"block_sparse_moe.shared_experts.up_proj", Site::moe},
    {"block_sparse_moe.shared_experts.down_proj", Site::shared_down},
    {"block_sparse_moe.routed_expert_up_proj", Site::latent_up},
};

bool of_experts(Site site) noexcept { return site == Site::expert || site == Site::expert_down; }

std::span<const std::uint8_t> bytes_of(std::span<const double> values) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace

std::optional<MomentKey> site_of(std::string_view name) {
  constexpr std::string_view stem = "model.layers.", tail = ".weight", attention = "self_attn.";
  if (!name.starts_with(stem) || !name.ends_with(tail)) return std::nullopt;
  name.remove_prefix(stem.size());
  name.remove_suffix(tail.size());
  MomentKey key;
  const auto [at, ec] = std::from_chars(name.data(), name.data() + name.size(), key.layer);
  if (ec != std::errc() || at == name.data() + name.size() || *at != '.') return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(at - name.data()) + 1);
  const bool in_attention = name.starts_with(attention);
  if (in_attention) name.remove_prefix(attention.size());
  for (const Named& n : in_attention ? std::span<const Named>(attention_names)
                                     : std::span<const Named>(other_names)) {
    if (n.name == name) {
      key.site = n.site;
      return key;
    }
  }
  return std::nullopt;
}

std::map<MomentKey, std::uint32_t> calibration_sites(const format::ModelConfig& model) {
  std::map<MomentKey, std::uint32_t> out;
  for (const format::RequiredTensor& t : format::required_tensors(model)) {
    if (t.role != format::RequiredTensor::Role::matrix) continue;
    if (const auto key = site_of(t.name)) out[*key] = static_cast<std::uint32_t>(t.shape.back());
  }
  for (std::uint32_t l = model.first_k_dense_replace; l < model.num_hidden_layers; ++l) {
    const auto layer = static_cast<std::uint16_t>(l);
    out[{layer, Site::expert}] = model.expert_width();
    out[{layer, Site::expert_down}] = model.moe_intermediate_size;
  }
  return out;
}

std::uint64_t moment_sums(std::uint64_t cols, std::uint64_t block) noexcept {
  block = std::min(block, cols);
  if (block == 0) return 0;
  const std::uint64_t whole = cols / block, rest = cols % block;
  return whole * (block * (block + 1) / 2) + rest * (rest + 1) / 2;
}

std::uint32_t config_identity(const JsonValue& container_config) {
  const std::string text = dump_json(container_config);
  return io::crc32({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

void write_calibration(const fs::path& path, const format::ModelConfig& model,
                       const Calibration& calibration) {
  const auto known = calibration_sites(model);
  const std::size_t uses = std::size_t{model.moe_layers()} * model.num_experts;
  if (calibration.uses.size() != uses) {
    throw Error(fault(Errc::bad_argument, "uses", calibration.uses.size(), uses), path.string());
  }
  std::vector<std::uint8_t> head(header_bytes + 8 * uses +
                                 entry_bytes * calibration.moments.size());
  for (std::size_t i = 0; i < uses; ++i) {
    store_le<std::uint64_t>(&head[header_bytes + 8 * i], calibration.uses[i]);
  }
  std::uint64_t end = head.size();
  std::uint8_t* at = head.data() + header_bytes + 8 * uses;
  for (const auto& [key, m] : calibration.moments) {
    MomentKey whole = key;
    whole.expert = MomentKey::all;
    const auto site = known.find(whole);
    const bool known_expert =
        key.expert == MomentKey::all || (of_experts(key.site) && key.expert < model.num_experts);
    if (site == known.end() || !known_expert || site->second != m.cols() || m.count() == 0) {
      throw Error(fault(Errc::bad_argument, "moments", m.cols(), m.count()).at(LayerId{key.layer}),
                  path.string(), "no site of the model, or nothing seen");
    }
    store_le<std::uint16_t>(at, key.layer);
    store_le<std::uint16_t>(at + 2, key.expert);
    at[4] = static_cast<std::uint8_t>(key.site);
    store_le<std::uint32_t>(at + 8, static_cast<std::uint32_t>(m.cols()));
    store_le<std::uint32_t>(at + 12, static_cast<std::uint32_t>(m.block()));
    store_le<std::uint64_t>(at + 16, m.count());
    store_le<std::uint32_t>(at + 24, io::crc32(bytes_of(m.sums())));
    at += entry_bytes;
    end += m.sums().size_bytes();
  }
  store_le<std::uint32_t>(&head[0], magic);
  store_le<std::uint32_t>(&head[4], version);
  store_le<std::uint64_t>(&head[8], end);
  store_le<std::uint64_t>(&head[16], calibration.tokens);
  store_le<std::uint32_t>(&head[24], calibration.config_crc32);
  store_le<std::uint32_t>(&head[28], model.moe_layers());
  store_le<std::uint32_t>(&head[32], model.num_experts);
  store_le<std::uint32_t>(&head[36], static_cast<std::uint32_t>(calibration.moments.size()));
  store_le<std::uint32_t>(&head[crc_at], io::crc32(head));

  io::write_atomically(path, [&](const io::File& file) {
    file.pwrite(head, 0);
    std::uint64_t off = head.size();
    for (const auto& [key, m] : calibration.moments) {
      file.pwrite(bytes_of(m.sums()), off);
      off += m.sums().size_bytes();
    }
  });
}

CalibrationFile CalibrationFile::open(const fs::path& path, const format::ModelConfig& model,
                                      std::uint32_t config_crc32) {
  CalibrationFile out;
  out.file_ = io::File::open(path);
  const std::string name = path.string();
  const auto require = [&](Errc code, const char* field, std::uint64_t got, std::uint64_t want) {
    if (got != want) throw Error(fault(code, field, got, want), name);
  };
  const std::uint64_t size = out.file_.size();
  if (size < header_bytes) {
    throw Error(fault(Errc::truncated, "file size", size, header_bytes), name);
  }
  std::vector<std::uint8_t> head(header_bytes);
  out.file_.pread(head, 0);
  const auto u32 = [&](std::size_t off) { return load_le<std::uint32_t>(&head[off]); };
  require(Errc::bad_magic, "magic", u32(0), magic);
  require(Errc::bad_version, "version", u32(4), version);
  require(Errc::truncated, "file size", size, load_le<std::uint64_t>(&head[8]));
  require(Errc::mismatch, "MoE layers", u32(28), model.moe_layers());
  require(Errc::mismatch, "experts", u32(32), model.num_experts);

  // No more entries than the model has sites, and no table longer than the file.
  const auto known = calibration_sites(model);
  const std::uint64_t uses = std::uint64_t{model.moe_layers()} * model.num_experts;
  const std::uint64_t entries = u32(36), most = known.size() + 2 * uses;
  if (entries > most) throw Error(fault(Errc::out_of_range, "entries", entries, most), name);
  const std::uint64_t table_end = header_bytes + 8 * uses + entry_bytes * entries;
  if (table_end > size) throw Error(fault(Errc::truncated, "table", size, table_end), name);
  head.resize(static_cast<std::size_t>(table_end));
  out.file_.pread(std::span(head).subspan(header_bytes), header_bytes);
  out.identity_ = u32(crc_at);
  store_le<std::uint32_t>(&head[crc_at], 0);
  require(Errc::checksum, "crc32", io::crc32(head), out.identity_);
  require(Errc::bad_field, "reserved", u32(44), 0);
  if (u32(24) != config_crc32) {
    throw Error(fault(Errc::mismatch, "config crc32", u32(24), config_crc32), name,
                "it was made with another model");
  }
  out.tokens_ = load_le<std::uint64_t>(&head[16]);
  out.first_moe_ = model.first_k_dense_replace;
  out.experts_ = model.num_experts;
  for (std::uint64_t i = 0; i < uses; ++i) {
    out.uses_.push_back(load_le<std::uint64_t>(&head[header_bytes + 8 * i]));
  }

  CheckedSize off(table_end);
  for (std::uint64_t i = 0; i < entries; ++i) {
    const std::uint8_t* const at = head.data() + header_bytes + 8 * uses + entry_bytes * i;
    MomentKey key;
    key.layer = load_le<std::uint16_t>(at);
    key.expert = load_le<std::uint16_t>(at + 2);
    if (at[4] >= sites) throw Error(fault(Errc::bad_field, "site", at[4], sites), name);
    key.site = static_cast<Site>(at[4]);
    require(Errc::bad_field, "reserved", at[5] | at[6] | at[7] | load_le<std::uint32_t>(at + 28),
            0);
    MomentKey whole = key;
    whole.expert = MomentKey::all;
    const auto site = known.find(whole);
    if (site == known.end()) {
      throw Error(fault(Errc::mismatch, "site").at(LayerId{key.layer}), name,
                  "the model's layer has no site " + std::to_string(at[4]));
    }
    if (key.expert != MomentKey::all &&
        (!of_experts(key.site) || key.expert >= model.num_experts)) {
      throw Error(fault(Errc::out_of_range, "expert", key.expert, model.num_experts - 1), name);
    }
    if (!out.keys_.empty() && !(out.keys_.back() < key)) {
      throw Error(fault(Errc::bad_field, "order of entries").at(LayerId{key.layer}), name);
    }
    Entry e;
    e.cols = load_le<std::uint32_t>(at + 8);
    e.block = load_le<std::uint32_t>(at + 12);
    e.count = load_le<std::uint64_t>(at + 16);
    e.crc32 = load_le<std::uint32_t>(at + 24);
    e.off = off.value();
    require(Errc::mismatch, "cols", e.cols, site->second);
    if (e.block == 0 || e.block > e.cols ||
        (e.block != 1 && e.block != e.cols && e.block % 8 != 0)) {
      throw Error(fault(Errc::bad_field, "block", e.block, e.cols), name);
    }
    if (e.count == 0) throw Error(fault(Errc::bad_field, "inputs seen", 0, 1), name);
    off.add(CheckedSize(moment_sums(e.cols, e.block)).mul(sizeof(double)).value());
    out.keys_.push_back(key);
    out.entries_.push_back(e);
  }
  if (!off.ok()) throw Error(fault(Errc::overflow, "sums"), name);
  require(Errc::truncated, "file size", size, off.value());
  return out;
}

std::span<const std::uint64_t> CalibrationFile::uses(LayerId layer) const {
  const std::uint64_t slot = std::uint64_t{to_index(layer)} - first_moe_;
  if (to_index(layer) < first_moe_ || (slot + 1) * experts_ > uses_.size()) {
    throw Error(fault(Errc::bad_argument, "layer").at(layer), path().string());
  }
  return std::span(uses_).subspan(static_cast<std::size_t>(slot) * experts_, experts_);
}

std::size_t CalibrationFile::find(const MomentKey& key) const noexcept {
  const auto it = std::lower_bound(keys_.begin(), keys_.end(), key);
  return it != keys_.end() && *it == key ? static_cast<std::size_t>(it - keys_.begin())
                                         : keys_.size();
}

std::uint32_t CalibrationFile::block(const MomentKey& key) const noexcept {
  const std::size_t i = find(key);
  return i == keys_.size() ? 0 : entries_[i].block;
}

std::uint64_t CalibrationFile::count(const MomentKey& key) const noexcept {
  const std::size_t i = find(key);
  return i == keys_.size() ? 0 : entries_[i].count;
}

quant::InputMoments CalibrationFile::moments(const MomentKey& key) const {
  const std::size_t i = find(key);
  if (i == keys_.size()) {
    throw Error(fault(Errc::missing, "moments").at(LayerId{key.layer}), path().string());
  }
  const Entry& e = entries_[i];
  std::vector<double> sums(static_cast<std::size_t>(moment_sums(e.cols, e.block)));
  const std::span<std::uint8_t> bytes(reinterpret_cast<std::uint8_t*>(sums.data()),
                                      sums.size() * sizeof(double));
  file_.pread(bytes, e.off);
  const std::uint32_t crc = io::crc32(bytes);
  if (crc != e.crc32) {
    throw Error(fault(Errc::checksum, "crc32 of moments", crc, e.crc32).at(LayerId{key.layer}),
                path().string());
  }
  for (const double s : sums) {
    if (!std::isfinite(s)) {
      throw Error(fault(Errc::out_of_range, "moments").at(LayerId{key.layer}), path().string(),
                  "not finite");
    }
  }
  quant::InputMoments out(e.cols, e.block);
  out.set_sums(sums, e.count);
  for (std::size_t c = 0; c < e.cols; ++c) {
    if (out.mean(c, c) < 0) {
      throw Error(fault(Errc::out_of_range, "moments").at(LayerId{key.layer}), path().string(),
                  "a mean square is negative");
    }
  }
  return out;
}

}  // namespace waste::convert
