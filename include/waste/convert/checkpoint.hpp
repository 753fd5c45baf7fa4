// A source checkpoint seen through its config: trunk tensors, routed experts, and nothing
// unexplained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/matrix_view.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/json.hpp"
#include "waste/format/model_config.hpp"
#include "waste/io/safetensors.hpp"

namespace waste::convert {

/// What a trunk tensor belongs to.
enum class Role : std::uint8_t { text, vision, mtp };

/// One tensor of the future trunk.
struct TrunkSource {
  static constexpr std::uint32_t none = 0xffffffffu;

  std::string name;                  ///< in the container: an MXFP4 pair is named `.weight`
  std::vector<std::uint64_t> shape;  ///< of the decoded tensor
  Role role = Role::text;
  std::uint32_t weight = none;  ///< index into Checkpoint::files().tensors()
  std::uint32_t scale = none;   ///< of the MXFP4 scales, `none` for a plain tensor

  std::uint64_t cols() const noexcept { return shape.empty() ? 1 : shape.back(); }
  std::uint64_t rows() const noexcept {
    std::uint64_t n = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
  std::uint64_t elements() const noexcept { return rows() * cols(); }
};

/// The three matrices of a routed expert in f32: gate and up [inter][width], down [width][inter].
struct SourceExpert {
  format::ExpertShape shape;
  std::vector<float> gate, up, down;

  MatrixView<const float> matrix(format::Kind k) const noexcept {
    const std::vector<float>& w =
        k == format::Kind::gate ? gate : (k == format::Kind::up ? up : down);
    return {w.data(), shape.rows(k), shape.cols(k)};
  }
};

/// A checkpoint directory: config.json, safetensors shards, of any family of format/family.hpp,
/// which says how the routed experts are named. open() accounts for every tensor of
/// every shard: a trunk tensor of the text model with its exact shape, a matrix of a routed expert
/// with its exact shape, the vision tower (names beginning with vision_tower. or mm_projector.), a
/// multi-token-prediction head (layers past num_hidden_layers, or names beginning with mtp.), a
/// rotary table that the text model does not use (counted in ignored()); anything else is refused.
///
/// Weights are read on demand, in f32, exactly (BF16, F16, F32 and MXFP4 all convert exactly).
/// Reads are safe from several threads. To run the source model in float:
///     auto source = convert::Checkpoint::open(dir);
///     auto norm = source.tensor(source.prefix() + "model.norm.weight");       // f32, row-major
///     auto e = source.expert(LayerId{3}, ExpertId{7});                        // gate, up, down
class Checkpoint {
 public:
  /// Throws Error naming the file, tensor, wanted and got: whatever parse_json,
  /// parse_model_config and Safetensors::open refuse; a missing tensor (missing), a wrong shape
  /// (shape), a dtype that cannot be read (unsupported), an unexplained tensor (unsupported).
  static Checkpoint open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const noexcept { return files_.directory(); }
  const format::ModelConfig& model() const noexcept { return model_; }
  /// "language_model." where the config has a text_config, else "".
  const std::string& prefix() const noexcept { return prefix_; }
  /// "kimi-k3", "kimi-linear", else the name that the config gives.
  const std::string& arch() const noexcept { return arch_; }
  /// What a manifest's `config` holds: the config verbatim, or with a text_config that object's
  /// members followed by "_outer": everything else.
  const JsonValue& container_config() const noexcept { return container_config_; }
  /// config.json as it is.
  const JsonValue& raw_config() const noexcept { return raw_config_; }
  const io::Safetensors& files() const noexcept { return files_; }

  /// In byte order of their names.
  const std::vector<TrunkSource>& trunk() const noexcept { return trunk_; }
  std::uint64_t ignored() const noexcept { return ignored_; }

  /// Null pointer where there is none. `name` is the full name, prefix included.
  const TrunkSource* find(std::string_view name) const noexcept;
  bool has(std::string_view name) const noexcept { return find(name) != nullptr; }
  /// The whole tensor as f32, row-major. Throws Error(missing) naming it, and read errors.
  std::vector<float> tensor(std::string_view name) const;
  /// Rows [first_row, first_row + out.rows) of a trunk tensor seen as [rows()][cols()]; out.cols
  /// must be cols(). Throws Error: bad_argument for other rows or columns and for a tensor that is
  /// none of this checkpoint's trunk(), and read errors.
  void read_rows(const TrunkSource& tensor, std::uint64_t first_row,
                 const MatrixView<float>& out) const;

  /// All three matrices of a routed expert. Throws Error: out_of_range for a layer or an expert
  /// that the model has not, bad_argument for a layer without routed experts, and read errors.
  SourceExpert expert(LayerId layer, ExpertId expert) const;
  /// Rows [first_row, first_row + out.rows) of one matrix; out.cols must be its columns. Throws as
  /// read_rows() and expert() do.
  void read_expert_rows(LayerId layer, ExpertId expert, format::Kind kind, std::uint64_t first_row,
                        const MatrixView<float>& out) const;
  /// True where the routed experts are stored as MXFP4 (the first one decides what this says).
  bool packed_experts() const noexcept;

 private:
  struct Part {
    std::uint32_t weight = TrunkSource::none;
    std::uint32_t scale = TrunkSource::none;
  };
  void read_part(const Part& part, std::uint64_t first_row, const MatrixView<float>& out) const;
  const Part& part(LayerId layer, ExpertId expert, format::Kind kind) const;
  class Accountant;
  void account();
  std::size_t part_index(std::uint32_t layer, std::uint32_t expert,
                         format::Kind kind) const noexcept {
    const std::size_t l = layer - model_.first_k_dense_replace;
    return (l * model_.num_experts + expert) * format::kinds + static_cast<std::size_t>(kind);
  }

  io::Safetensors files_;
  JsonValue raw_config_, container_config_;
  format::ModelConfig model_;
  std::string prefix_, arch_;
  std::vector<TrunkSource> trunk_;
  std::vector<Part> experts_;  ///< [moe layer][expert][kind]
  std::uint64_t ignored_ = 0;
};

}  // namespace waste::convert
