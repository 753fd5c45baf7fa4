#include "waste/convert/checkpoint.hpp"

#include <algorithm>

#include "waste/format/manifest.hpp"
#include "waste/io/file.hpp"
#include "waste/quant/mxfp4.hpp"

namespace waste::convert {
namespace {

using format::Kind;
using io::SourceTensor;

constexpr std::uint64_t max_config_bytes = 16u << 20;

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
  if (tensor.weight >= files_.tensors().size() ||
      (tensor.scale != TrunkSource::none && tensor.scale >= files_.tensors().size())) {
    throw Error(fault(Errc::bad_argument, "tensor", tensor.weight, files_.tensors().size()),
                directory().string(), "tensor " + tensor.name + " is not of this checkpoint");
  }
  if (out.cols != tensor.cols() || first_row > tensor.rows() ||
      out.rows > tensor.rows() - first_row) {
    throw Error(fault(Errc::bad_argument, "rows", first_row + out.rows, tensor.rows()), {},
                "tensor " + tensor.name);
  }
  read_part({tensor.weight, tensor.scale}, first_row, out);
}

const Checkpoint::Part& Checkpoint::part(LayerId layer, ExpertId expert, Kind kind) const {
  const std::uint32_t l = to_index(layer), e = to_index(expert);
  if (l >= model_.num_hidden_layers) {
    throw Error(fault(Errc::out_of_range, "layer", l, model_.num_hidden_layers - 1));
  }
  if (!model_.is_moe(l)) {
    throw Error(fault(Errc::bad_argument, "layer").at(layer), {}, "it has no routed experts");
  }
  if (e >= model_.num_experts) {
    throw Error(fault(Errc::out_of_range, "expert", e, model_.num_experts - 1).at(layer, expert));
  }
  return experts_[part_index(l, e, kind)];
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
