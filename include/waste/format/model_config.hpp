// The model's shape as its config.json states it, typed and bounded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/record_layout.hpp"

namespace waste::format {

enum class Activation : std::uint8_t { silu, situ };
enum class AttentionKind : std::uint8_t { kda, mla, gqa };

/// Families of models whose containers can be written and read (format/family.hpp). The forward
/// pass in model/ is kimi's: Kimi-Linear and K3.
enum class Family : std::uint8_t { kimi, olmoe, qwen2_moe, qwen3_moe, mixtral, deepseek };

/// Text-model configuration. Field names follow the released config.json of Kimi-Linear and K3;
/// absent optional parts are nullopt. Read from a config by parse_model_config, which refuses by
/// name what changes kimi's mathematics and no code here implements (softmax routers, expert
/// groups, tied embeddings, rotary). Of other families it holds the sizes; what else their forward
/// pass needs (RoPE's base, say) stands in the manifest's verbatim config.
struct ModelConfig {
  Family family = Family::kimi;
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t intermediate_size = 0;
  std::uint32_t num_hidden_layers = 0;
  std::uint32_t first_k_dense_replace = 0;
  float rms_norm_eps = 1e-6f;

  std::vector<AttentionKind> attention;  ///< one per layer

  // KDA (linear_attn_config)
  std::uint32_t kda_heads = 0;
  std::uint32_t kda_head_dim = 0;
  std::uint32_t short_conv_kernel_size = 0;
  bool use_full_rank_gate = false;
  std::optional<float> gate_lower_bound;

  // MLA
  std::uint32_t num_attention_heads = 0;
  std::optional<std::uint32_t> q_lora_rank;
  std::uint32_t kv_lora_rank = 0;
  std::uint32_t qk_nope_head_dim = 0;
  std::uint32_t qk_rope_head_dim = 0;
  std::uint32_t v_head_dim = 0;
  bool mla_use_output_gate = false;

  // MoE
  std::uint32_t num_experts = 0;
  std::uint32_t num_experts_per_token = 0;
  std::uint32_t num_shared_experts = 0;
  std::uint32_t moe_intermediate_size = 0;
  std::optional<std::uint32_t> routed_expert_hidden_size;
  bool latent_moe_use_norm = false;
  float routed_scaling_factor = 1.0f;
  bool moe_renormalize = true;

  Activation hidden_act = Activation::silu;
  float situ_beta = 1.0f;
  std::optional<float> situ_linear_beta;

  std::optional<std::uint32_t> attn_res_block_size;

  // Other families than kimi
  std::uint32_t num_key_value_heads = 0;  ///< GQA; num_attention_heads a multiple of it
  std::uint32_t head_dim = 0;             ///< GQA
  bool attention_bias = false;
  bool tie_word_embeddings = false;  ///< no lm_head.weight: the head is the embedding table
  bool router_bias = false;          ///< e_score_correction_bias beside the router
  std::uint32_t shared_expert_intermediate_size = 0;  ///< of a shared expert with its own gate

  std::vector<std::uint32_t> eos_token_ids;  ///< ends a generation
  std::optional<std::uint32_t> bos_token_id;

  bool is_moe(std::uint32_t layer) const noexcept { return layer >= first_k_dense_replace; }
  std::uint32_t moe_layers() const noexcept { return num_hidden_layers - first_k_dense_replace; }
  std::uint32_t expert_width() const noexcept {
    return routed_expert_hidden_size.value_or(hidden_size);
  }
  ExpertShape expert_shape() const noexcept { return {moe_intermediate_size, expert_width()}; }
  std::uint32_t kda_channels() const noexcept { return kda_heads * kda_head_dim; }
  std::uint32_t qk_head_dim() const noexcept { return qk_nope_head_dim + qk_rope_head_dim; }
};

}  // namespace waste::format
