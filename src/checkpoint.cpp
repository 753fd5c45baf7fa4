#include "waste/convert/checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "waste/format/manifest.hpp"
#include "waste/io/file.hpp"
#include "waste/quant/mxfp4.hpp"

namespace waste::convert {
namespace {

using format::Kind;
using io::Dtype;
using io::SourceTensor;

constexpr std::uint64_t max_config_bytes = 16u << 20;
constexpr std::uint64_t max_mtp_layers = 16;
constexpr std::string_view layers_stem = "model.layers.";
constexpr std::string_view packed_suffix = ".weight_packed";
constexpr std::string_view scale_suffix = ".weight_scale";

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    out += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return out + "]";
}

/// Takes a decimal number without leading zeros off the front of `text`.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t n = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (ec != std::errc() || digits == 0 || (digits > 1 && text[0] == '0')) return std::nullopt;
  text.remove_prefix(digits);
  return n;
}

bool take(std::string_view& text, std::string_view head) {
  if (!text.starts_with(head)) return false;
  text.remove_prefix(head.size());
  return true;
}

struct ExpertName {
  std::uint32_t layer = 0, expert = 0;
  Kind kind = Kind::gate;
  std::string_view suffix;  ///< "weight", "weight_packed", "weight_scale" or something else
};

/// Reads `model.layers.{L}{infix}{e}.{matrix}.{suffix}` (the tensor prefix already gone).
std::optional<ExpertName> parse_expert_name(std::string_view name) {
  if (!take(name, layers_stem)) return std::nullopt;
  ExpertName out;
  const auto layer = take_number(name);
  if (!layer) return std::nullopt;
  out.layer = *layer;
  for (const ExpertNames& names : expert_names) {
    std::string_view rest = name;
    if (!take(rest, names.infix)) continue;
    const auto expert = take_number(rest);
    if (!expert || !take(rest, ".")) return std::nullopt;
    out.expert = *expert;
    for (std::size_t k = 0; k < format::kinds; ++k) {
      std::string_view suffix = rest;
      if (take(suffix, names.matrices[k]) && take(suffix, ".")) {
        out.kind = static_cast<Kind>(k);
        out.suffix = suffix;
        return out;
      }
    }
    return std::nullopt;
  }
  return std::nullopt;
}

bool is_vision(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
}

bool is_mtp(std::string_view name, std::uint32_t layers) {
  if (name.starts_with("mtp.") || name.starts_with("model.mtp.")) return true;
  if (!take(name, layers_stem)) return false;
  const auto layer = take_number(name);
  return layer && name.starts_with(".") && *layer >= layers && *layer < layers + max_mtp_layers;
}

/// Exact, but for what checkpoints may pad or squeeze: A_log holds at least its heads, a [1][h]
/// projection may drop the 1.
bool shape_fits(const format::RequiredTensor& want, const SourceTensor& got) {
  if (want.name.ends_with("A_log")) {
    std::uint64_t heads = 1;
    for (const std::uint64_t d : want.shape) heads *= d;
    return got.elements() >= heads;
  }
  if (want.shape.size() == 2 && want.shape[0] == 1 && got.shape.size() == 1) {
    return got.shape[0] == want.shape[1];
  }
  return got.shape == want.shape;
}

std::string arch_of(const JsonValue& config) {
  std::string name;
  if (const JsonValue* list = config.find("architectures"); list && list->as_array()) {
    if (!list->as_array()->empty() && list->as_array()->front().is_string()) {
      name = *list->as_array()->front().as_string();
    }
  }
  if (name.empty()) {
    if (const JsonValue* type = config.find("model_type"); type && type->is_string()) {
      name = *type->as_string();
    }
  }
  if (name.starts_with("KimiK3") || name == "kimi_k3") return "kimi-k3";
  if (name.starts_with("KimiLinear") || name == "kimi_linear") return "kimi-linear";
  return name.empty() ? "unknown" : name;
}

JsonValue merged_config(const JsonValue& raw) {
  const JsonValue* text = raw.find("text_config");
  if (!text) return raw;
  JsonValue::Object merged, outer;
  for (const auto& [key, value] : *text->as_object()) {
    if (key != "_outer") merged.emplace_back(key, value);
  }
  for (const auto& [key, value] : *raw.as_object()) {
    if (key != "text_config") outer.emplace_back(key, value);
  }
  merged.emplace_back("_outer", JsonValue(std::move(outer)));
  return JsonValue(std::move(merged));
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& directory) {
  Checkpoint out;
  const std::filesystem::path config_path = directory / "config.json";
  const std::string config_file = config_path.string();
  out.raw_config_ = parse_json(io::read_text(config_path, max_config_bytes), config_file);
  if (!out.raw_config_.is_object()) {
    throw Error(fault(Errc::bad_field, "config"), config_file, "wanted an object");
  }
  if (const JsonValue* text = out.raw_config_.find("text_config")) {
    if (!text->is_object()) {
      throw Error(fault(Errc::bad_field, "text_config"), config_file, "wanted an object");
    }
    out.prefix_ = "language_model.";
  }
  out.arch_ = arch_of(out.raw_config_);
  out.container_config_ = merged_config(out.raw_config_);
  out.model_ = format::parse_model_config(out.container_config_, config_file);
  out.files_ = io::Safetensors::open(directory);
  out.account();
  return out;
}

void Checkpoint::account() {
  const std::string where = directory().string();
  const auto file_of = [&](const SourceTensor& t) {
    return files_.shards()[t.shard].file.path().string();
  };
  std::map<std::string, format::RequiredTensor, std::less<>> required;
  for (format::RequiredTensor& t : format::required_tensors(model_)) {
    std::string name = prefix_ + t.name;
    required.emplace(std::move(name), std::move(t));
  }
  const std::uint32_t first_moe = model_.first_k_dense_replace;
  const std::uint64_t matrices =
      std::uint64_t{model_.moe_layers()} * model_.num_experts * format::kinds;
  if (matrices > files_.tensors().size()) {  // before believing the config's product
    throw Error(fault(Errc::missing, "tensors", files_.tensors().size(), matrices), where,
                "fewer tensors than the routed experts of config.json have matrices");
  }
  experts_.assign(static_cast<std::size_t>(matrices), {});

  const auto refuse_dtype = [&](const SourceTensor& t, const char* wanted) {
    throw Error(fault(Errc::unsupported, "dtype"), file_of(t),
                "tensor " + t.name + " is " + t.dtype_name + ", wanted " + wanted);
  };
  const auto require_float = [&](const SourceTensor& t) {
    if (t.dtype == Dtype::u8 || t.dtype == Dtype::other) refuse_dtype(t, "F32, F16 or BF16");
  };
  const auto require_bytes = [&](const SourceTensor& t) {
    if (t.dtype != Dtype::u8 && t.dtype_name != "F8_E8M0") refuse_dtype(t, "U8");
  };
  const auto require_shape = [&](const SourceTensor& t, const std::vector<std::uint64_t>& want) {
    if (t.shape != want) {
      throw Error(fault(Errc::shape, "tensor"), file_of(t),
                  t.name + " is " + shape_text(t.shape) + ", wanted " + shape_text(want));
    }
  };
  const auto unexpected = [&](const SourceTensor& t) {
    throw Error(fault(Errc::unsupported, "tensor"), file_of(t),
                t.name + " " + shape_text(t.shape) +
                    " is not part of the model that config.json describes");
  };
  const auto add_trunk = [&](const SourceTensor& t, std::uint32_t index, Role role) {
    // An MTP head's own experts may be packed: the pair becomes one `.weight`.
    if (role == Role::mtp && t.name.ends_with(scale_suffix)) {
      if (!files_.find(t.name.substr(0, t.name.size() - scale_suffix.size()) +
                       std::string(packed_suffix))) {
        unexpected(t);
      }
      return;
    }
    TrunkSource source{t.name, t.shape, role, index, TrunkSource::none};
    if (role == Role::mtp && t.name.ends_with(packed_suffix)) {
      const std::string stem = t.name.substr(0, t.name.size() - packed_suffix.size());
      const SourceTensor& scale = files_.at(stem + std::string(scale_suffix));
      require_bytes(t);
      require_bytes(scale);
      if (t.shape.size() != 2 || t.shape[1] % (quant::mxfp4_group / 2) != 0) unexpected(t);
      require_shape(scale, {t.shape[0], t.shape[1] * 2 / quant::mxfp4_group});
      source.name = stem + ".weight";
      if (files_.find(source.name)) {
        throw Error(fault(Errc::duplicate, "tensor"), file_of(t), t.name + " and " + source.name);
      }
      source.shape = {t.shape[0], t.shape[1] * 2};
      source.scale = static_cast<std::uint32_t>(&scale - files_.tensors().data());
    } else {
      require_float(t);
    }
    if (source.elements() == 0) unexpected(t);
    trunk_.push_back(std::move(source));
  };

  for (std::uint32_t i = 0; i < files_.tensors().size(); ++i) {
    const SourceTensor& t = files_.tensors()[i];
    if (is_vision(t.name)) {
      add_trunk(t, i, Role::vision);
      continue;
    }
    std::string_view name = t.name;
    if (!take(name, prefix_)) unexpected(t);
    if (const auto it = required.find(t.name); it != required.end()) {
      if (!shape_fits(it->second, t)) require_shape(t, it->second.shape);
      add_trunk(t, i, Role::text);
      required.erase(it);
      continue;
    }
    if (is_mtp(name, model_.num_hidden_layers)) {
      add_trunk(t, i, Role::mtp);
      continue;
    }
    if (name.ends_with(".rotary_emb.inv_freq")) {
      ++ignored_;
      continue;
    }
    const auto expert = parse_expert_name(name);
    if (!expert || !model_.is_moe(expert->layer) || expert->expert >= model_.num_experts) {
      unexpected(t);
    }
    Part& part =
        experts_[(std::size_t{expert->layer - first_moe} * model_.num_experts + expert->expert) *
                     format::kinds +
                 static_cast<std::size_t>(expert->kind)];
    const format::ExpertShape shape = model_.expert_shape();
    const std::uint64_t rows = shape.rows(expert->kind), cols = shape.cols(expert->kind);
    if (expert->suffix == "weight_scale") {
      require_bytes(t);
      require_shape(t, {rows, cols / quant::mxfp4_group});
      part.scale = i;
      continue;
    }
    if (expert->suffix == "weight") {
      require_float(t);
      require_shape(t, {rows, cols});
    } else if (expert->suffix == "weight_packed") {
      require_bytes(t);
      require_shape(t, {rows, cols / 2});
      if (cols % quant::mxfp4_group != 0) unexpected(t);
    } else {
      unexpected(t);
    }
    if (part.weight != TrunkSource::none) {
      throw Error(fault(Errc::duplicate, "tensor"), file_of(t),
                  t.name + " and " + files_.tensors()[part.weight].name);
    }
    part.weight = i;
  }

  if (!required.empty()) {
    const auto& [name, tensor] = *required.begin();
    throw Error(fault(Errc::missing, "tensor"), where, name + " " + shape_text(tensor.shape));
  }
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    const Part& part = experts_[i];
    const bool whole = part.weight != TrunkSource::none &&
                       files_.tensors()[part.weight].name.ends_with(packed_suffix) ==
                           (part.scale != TrunkSource::none);
    if (whole) continue;
    const auto kind = i % format::kinds;
    const auto e = static_cast<std::uint32_t>(i / format::kinds % model_.num_experts);
    const auto layer =
        first_moe + static_cast<std::uint32_t>(i / format::kinds / model_.num_experts);
    throw Error(fault(Errc::missing, "tensor").at(LayerId{layer}, ExpertId{e}), where,
                prefix_ + std::string(layers_stem) + std::to_string(layer) +
                    std::string(expert_names[0].infix) + std::to_string(e) + "." +
                    std::string(expert_names[0].matrices[kind]) +
                    (part.weight == TrunkSource::none && part.scale == TrunkSource::none
                         ? ".weight"
                         : " needs either .weight or .weight_packed with .weight_scale"));
  }
  std::sort(trunk_.begin(), trunk_.end(),
            [](const TrunkSource& a, const TrunkSource& b) { return a.name < b.name; });
}

const TrunkSource* Checkpoint::find(std::string_view name) const noexcept {
  const auto it =
      std::lower_bound(trunk_.begin(), trunk_.end(), name,
                       [](const TrunkSource& t, std::string_view n) { return t.name < n; });
  return it != trunk_.end() && it->name == name ? &*it : nullptr;
}

std::vector<float> Checkpoint::tensor(std::string_view name) const {
  const TrunkSource* t = find(name);
  if (!t) throw Error(fault(Errc::missing, "tensor"), directory().string(), name);
  std::vector<float> out(static_cast<std::size_t>(t->elements()));
  read_rows(*t, 0,
            {out.data(), static_cast<std::size_t>(t->rows()), static_cast<std::size_t>(t->cols())});
  return out;
}

void Checkpoint::read_part(const Part& part, std::uint64_t first_row,
                           const MatrixView<float>& out) const {
  const SourceTensor& weight = files_.tensors()[part.weight];
  if (part.scale == TrunkSource::none) {
    if (out.stride == out.cols) {
      files_.read_f32(weight, first_row * out.cols, {out.data, out.rows * out.cols});
    } else {
      for (std::size_t r = 0; r < out.rows; ++r) {
        files_.read_f32(weight, (first_row + r) * out.cols, out.row(r));
      }
    }
    return;
  }
  const SourceTensor& scale = files_.tensors()[part.scale];
  const std::size_t packed_cols = out.cols / 2, groups = out.cols / quant::mxfp4_group;
  const std::size_t piece = std::max<std::size_t>(1, (std::size_t{256} << 10) / packed_cols);
  std::vector<std::uint8_t> codes, scales;
  for (std::size_t r = 0; r < out.rows; r += piece) {
    const std::size_t n = std::min(piece, out.rows - r);
    codes.resize(n * packed_cols);
    scales.resize(n * groups);
    files_.read_bytes(weight, (first_row + r) * packed_cols, codes);
    files_.read_bytes(scale, (first_row + r) * groups, scales);
    check(quant::decode_mxfp4(codes.data(), scales.data(),
                              {out.data + r * out.stride, n, out.cols, out.stride}),
          files_.shards()[scale.shard].file.path().string(), "tensor " + scale.name);
  }
}

void Checkpoint::read_rows(const TrunkSource& tensor, std::uint64_t first_row,
                           const MatrixView<float>& out) const {
  if (out.cols != tensor.cols() || first_row > tensor.rows() ||
      out.rows > tensor.rows() - first_row) {
    throw Error(fault(Errc::bad_argument, "rows", first_row + out.rows, tensor.rows()), {},
                "tensor " + tensor.name);
  }
  read_part({tensor.weight, tensor.scale}, first_row, out);
}

const Checkpoint::Part& Checkpoint::part(LayerId layer, ExpertId expert, Kind kind) const {
  const std::uint32_t l = to_index(layer), e = to_index(expert);
  if (!model_.is_moe(l) || l >= model_.num_hidden_layers) {
    throw Error(fault(Errc::bad_argument, "layer", l, model_.num_hidden_layers));
  }
  if (e >= model_.num_experts) {
    throw Error(fault(Errc::bad_argument, "expert", e, model_.num_experts).at(layer));
  }
  return experts_[(std::size_t{l - model_.first_k_dense_replace} * model_.num_experts + e) *
                      format::kinds +
                  static_cast<std::size_t>(kind)];
}

SourceExpert Checkpoint::expert(LayerId layer, ExpertId id) const {
  SourceExpert out;
  out.shape = model_.expert_shape();
  for (const Kind k : {Kind::gate, Kind::up, Kind::down}) {
    std::vector<float>& w = k == Kind::gate ? out.gate : (k == Kind::up ? out.up : out.down);
    w.resize(out.shape.rows(k) * out.shape.cols(k));
    read_part(part(layer, id, k), 0, {w.data(), out.shape.rows(k), out.shape.cols(k)});
  }
  return out;
}

void Checkpoint::read_expert_rows(LayerId layer, ExpertId id, Kind kind, std::uint64_t first_row,
                                  const MatrixView<float>& out) const {
  const format::ExpertShape shape = model_.expert_shape();
  if (out.cols != shape.cols(kind) || first_row > shape.rows(kind) ||
      out.rows > shape.rows(kind) - first_row) {
    throw Error(
        fault(Errc::bad_argument, "rows", first_row + out.rows, shape.rows(kind)).at(layer, id));
  }
  read_part(part(layer, id, kind), first_row, out);
}

bool Checkpoint::packed_experts() const noexcept {
  return !experts_.empty() && experts_[0].scale != TrunkSource::none;
}

}  // namespace waste::convert
