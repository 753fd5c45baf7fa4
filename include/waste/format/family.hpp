// The table of model families: how each spells its config, its router and its routed experts.
#pragma once

#include <array>
#include <string_view>

#include "waste/format/constants.hpp"
#include "waste/format/json.hpp"
#include "waste/format/model_config.hpp"

namespace waste::format {

/// Members of config. Null: the family has none, or its code knows better.
struct ConfigNames {
  const char* experts;      ///< routed experts a layer
  const char* top_k;        ///< of them a token meets
  const char* shared;       ///< shared experts
  const char* expert_rows;  ///< rows of a routed expert's gate and up
  const char* renormalize;  ///< whether a token's weights are divided by their sum
  bool renormalized;        ///< where config does not say
};

/// Tensors, behind {tensor_prefix}model.layers.{L}.
struct MoeNames {
  std::string_view router;         ///< [experts][hidden_size], in the trunk
  std::string_view expert_prefix;  ///< {expert_prefix}{e}.{matrix}.weight [rows][cols]; or the
                                   ///< MXFP4 pair .weight_packed, .weight_scale
  std::array<std::string_view, kinds> matrices;  ///< gate, up, down
};

/// One family of checkpoints. A container repeats the source's config and tensor names verbatim, so
/// the same line serves a converter and a reader, and config.model_type says which line it is.
struct FamilyNames {
  Family family;
  std::string_view name;
  /// Values of config.model_type; none for the family of every config that no other line claims.
  std::array<std::string_view, 3> model_types;
  ConfigNames config;
  MoeNames moe;
};

inline constexpr MoeNames block_sparse_names{
    "block_sparse_moe.gate.weight", "block_sparse_moe.experts.", {"w1", "w3", "w2"}};
inline constexpr MoeNames mlp_names{
    "mlp.gate.weight", "mlp.experts.", {"gate_proj", "up_proj", "down_proj"}};

/// In the order of Family. A further family is a line here, an enumerator, and what its trunk has
/// beyond the others' in src/model_families.cpp.
// clang-format off
inline constexpr FamilyNames families[] = {
    {Family::kimi, "kimi", {},
     {"num_experts", "num_experts_per_token", "num_shared_experts", "moe_intermediate_size",
      "moe_renormalize", true}, block_sparse_names},
    {Family::olmoe, "olmoe", {"olmoe"},
     {"num_experts", "num_experts_per_tok", nullptr, "intermediate_size",
      "norm_topk_prob", false}, mlp_names},
    {Family::qwen2_moe, "qwen2_moe", {"qwen2_moe"},
     {"num_experts", "num_experts_per_tok", nullptr, "moe_intermediate_size",
      "norm_topk_prob", false}, mlp_names},
    {Family::qwen3_moe, "qwen3_moe", {"qwen3_moe"},
     {"num_experts", "num_experts_per_tok", nullptr, "moe_intermediate_size",
      "norm_topk_prob", false}, mlp_names},
    {Family::mixtral, "mixtral", {"mixtral"},
     {"num_local_experts", "num_experts_per_tok", nullptr, "intermediate_size",
      nullptr, true}, block_sparse_names},
    {Family::deepseek, "deepseek", {"deepseek_v2", "deepseek_v3", "kimi_k2"},
     {"n_routed_experts", "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size",
      "norm_topk_prob", false}, mlp_names},
};
// clang-format on

/// The line of a family.
constexpr const FamilyNames& names_of(Family family) noexcept {
  return families[static_cast<std::size_t>(family)];
}
constexpr std::string_view to_string(Family family) noexcept { return names_of(family).name; }

/// The family that config.model_type names; kimi where it names none of the table.
Family family_of(const JsonValue& config) noexcept;

/// Throws Error(unsupported) naming the family where it is not kimi: `what` is what would have to
/// know its forward pass.
void require_kimi(const ModelConfig& config, std::string_view what);

}  // namespace waste::format
