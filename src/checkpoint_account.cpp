#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "waste/convert/checkpoint.hpp"
#include "waste/format/family.hpp"
#include "waste/format/manifest.hpp"
#include "waste/quant/mxfp4.hpp"

namespace waste::convert {
namespace {

using format::Kind;
using io::Dtype;
using io::SourceTensor;

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

/// Reads `model.layers.{L}.{expert_prefix}{e}.{matrix}.{suffix}` (the tensor prefix already gone).
std::optional<ExpertName> parse_expert_name(std::string_view name, const format::MoeNames& names) {
  if (!take(name, layers_stem)) return std::nullopt;
  ExpertName out;
  const auto layer = take_number(name);
  if (!layer || !take(name, ".") || !take(name, names.expert_prefix)) return std::nullopt;
  out.layer = *layer;
  const auto expert = take_number(name);
  if (!expert || !take(name, ".")) return std::nullopt;
  out.expert = *expert;
  for (std::size_t k = 0; k < format::kinds; ++k) {
    out.suffix = name;
    if (take(out.suffix, names.matrices[k]) && take(out.suffix, ".")) {
      out.kind = static_cast<Kind>(k);
      return out;
    }
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

}  // namespace

/// Gives every tensor of the files its place in a Checkpoint, or throws.
class Checkpoint::Accountant {
 public:
  explicit Accountant(Checkpoint& checkpoint) : c_(checkpoint), tensors_(c_.files_.tensors()) {
    for (format::RequiredTensor& t : format::required_tensors(c_.model_)) {
      std::string name = c_.prefix_ + t.name;
      required_.emplace(std::move(name), std::move(t));
    }
  }

  void run() {
    const std::uint64_t matrices =
        std::uint64_t{c_.model_.moe_layers()} * c_.model_.num_experts * format::kinds;
    if (matrices > tensors_.size()) {  // before believing the config's product
      throw Error(fault(Errc::missing, "tensors", tensors_.size(), matrices), directory(),
                  "fewer tensors than the routed experts of config.json have matrices");
    }
    c_.experts_.assign(static_cast<std::size_t>(matrices), {});
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) place(i);
    require_all();
    std::sort(c_.trunk_.begin(), c_.trunk_.end(),
              [](const TrunkSource& a, const TrunkSource& b) { return a.name < b.name; });
  }

 private:
  std::string directory() const { return c_.directory().string(); }
  std::string file_of(const SourceTensor& t) const {
    return c_.files_.shards()[t.shard].file.path().string();
  }

  [[noreturn]] void unexpected(const SourceTensor& t) const {
    throw Error(fault(Errc::unsupported, "tensor"), file_of(t),
                t.name + " " + shape_text(t.shape) +
                    " is not part of the model that config.json describes");
  }
  [[noreturn]] void twice(const SourceTensor& t, const std::string& other) const {
    throw Error(fault(Errc::duplicate, "tensor"), file_of(t), t.name + " and " + other);
  }
  void require_dtype(const SourceTensor& t, bool fits, const char* wanted) const {
    if (fits) return;
    throw Error(fault(Errc::unsupported, "dtype"), file_of(t),
                "tensor " + t.name + " is " + t.dtype_name + ", wanted " + wanted);
  }
  void require_float(const SourceTensor& t) const {
    require_dtype(t, t.dtype != Dtype::u8 && t.dtype != Dtype::other, "F32, F16 or BF16");
  }
  void require_bytes(const SourceTensor& t) const {
    require_dtype(t, t.dtype == Dtype::u8 || t.dtype_name == "F8_E8M0", "U8");
  }
  void require_shape(const SourceTensor& t, const std::vector<std::uint64_t>& want) const {
    if (t.shape == want) return;
    throw Error(fault(Errc::shape, "tensor"), file_of(t),
                t.name + " is " + shape_text(t.shape) + ", wanted " + shape_text(want));
  }

  void place(std::uint32_t index) {
    const SourceTensor& t = tensors_[index];
    if (is_vision(t.name)) return add_trunk(index, Role::vision);
    std::string_view name = t.name;
    if (!take(name, c_.prefix_)) unexpected(t);
    if (const auto it = required_.find(t.name); it != required_.end()) {
      if (!shape_fits(it->second, t)) require_shape(t, it->second.shape);
      required_.erase(it);
      return add_trunk(index, Role::text);
    }
    if (is_mtp(name, c_.model_.num_hidden_layers)) return add_mtp(index);
    if (name.ends_with(".rotary_emb.inv_freq")) {
      ++c_.ignored_;
      return;
    }
    if (c_.model_.tie_word_embeddings && name == "lm_head.weight") {  // a copy of the embedding
      require_shape(t, {c_.model_.vocab_size, c_.model_.hidden_size});
      return add_trunk(index, Role::text);
    }
    add_expert(index, name);
  }

  void add_trunk(std::uint32_t index, Role role) {
    const SourceTensor& t = tensors_[index];
    require_float(t);
    if (t.elements() == 0) unexpected(t);
    c_.trunk_.push_back({t.name, t.shape, role, index, TrunkSource::none});
  }

  /// An MTP head's own experts may be packed: the pair becomes one `.weight`.
  void add_mtp(std::uint32_t index) {
    const SourceTensor& t = tensors_[index];
    const auto stem = [&](std::string_view suffix) {
      return t.name.substr(0, t.name.size() - suffix.size());
    };
    if (t.name.ends_with(scale_suffix)) {
      if (!c_.files_.find(stem(scale_suffix) + std::string(packed_suffix))) unexpected(t);
      return;
    }
    if (!t.name.ends_with(packed_suffix)) return add_trunk(index, Role::mtp);
    const SourceTensor& scale = c_.files_.at(stem(packed_suffix) + std::string(scale_suffix));
    require_bytes(t);
    require_bytes(scale);
    if (t.shape.size() != 2 || t.elements() == 0 || t.shape[1] % (quant::mxfp4_group / 2) != 0) {
      unexpected(t);
    }
    require_shape(scale, {t.shape[0], t.shape[1] * 2 / quant::mxfp4_group});
    const std::string name = stem(packed_suffix) + ".weight";
    if (c_.files_.find(name)) twice(t, name);
    c_.trunk_.push_back({name,
                         {t.shape[0], t.shape[1] * 2},
                         Role::mtp,
                         index,
                         static_cast<std::uint32_t>(&scale - tensors_.data())});
  }

  void add_expert(std::uint32_t index, std::string_view name) {
    const SourceTensor& t = tensors_[index];
    const auto expert = parse_expert_name(name, names_);
    const format::ModelConfig& model = c_.model_;
    if (!expert || !model.is_moe(expert->layer) || expert->layer >= model.num_hidden_layers ||
        expert->expert >= model.num_experts) {
      unexpected(t);
    }
    const format::ExpertShape shape = model.expert_shape();
    const std::uint64_t rows = shape.rows(expert->kind), cols = shape.cols(expert->kind);
    Part& part = c_.experts_[c_.part_index(expert->layer, expert->expert, expert->kind)];
    if (expert->suffix == "weight_scale") {
      require_bytes(t);
      require_shape(t, {rows, cols / quant::mxfp4_group});
      part.scale = index;
      return;
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
    if (part.weight != TrunkSource::none) twice(t, tensors_[part.weight].name);
    part.weight = index;
  }

  void require_all() const {
    if (!required_.empty()) {
      const auto& [name, tensor] = *required_.begin();
      throw Error(fault(Errc::missing, "tensor"), directory(),
                  name + " " + shape_text(tensor.shape));
    }
    for (std::uint32_t l = c_.model_.first_k_dense_replace; l < c_.model_.num_hidden_layers; ++l) {
      for (std::uint32_t e = 0; e < c_.model_.num_experts; ++e) {
        for (std::size_t k = 0; k < format::kinds; ++k) require_part(l, e, static_cast<Kind>(k));
      }
    }
  }

  void require_part(std::uint32_t layer, std::uint32_t expert, Kind kind) const {
    const Part& part = c_.experts_[c_.part_index(layer, expert, kind)];
    const bool packed =
        part.weight != TrunkSource::none && tensors_[part.weight].name.ends_with(packed_suffix);
    if (part.weight != TrunkSource::none && packed == (part.scale != TrunkSource::none)) return;
    const bool nothing = part.weight == TrunkSource::none && part.scale == TrunkSource::none;
    throw Error(fault(Errc::missing, "tensor").at(LayerId{layer}, ExpertId{expert}), directory(),
                c_.prefix_ + std::string(layers_stem) + std::to_string(layer) + "." +
                    std::string(names_.expert_prefix) + std::to_string(expert) + "." +
                    std::string(names_.matrices[static_cast<std::size_t>(kind)]) +
                    (nothing ? ".weight" : " needs .weight, or .weight_packed with .weight_scale"));
  }

  Checkpoint& c_;
  const format::MoeNames& names_ = format::names_of(c_.model_.family).moe;
  const std::vector<SourceTensor>& tensors_;
  std::map<std::string, format::RequiredTensor, std::less<>> required_;  ///< not met yet
};

void Checkpoint::account() { Accountant(*this).run(); }

}  // namespace waste::convert
