// Tensor shapes and configurations of the tiny models, from the specification's section 8.
#include "support/tiny_container.hpp"

namespace waste::test {
namespace {

/// The shapes of a model, named as the specification's section 8 names them.
class Shapes {
 public:
  explicit Shapes(const TinySpec& s) : s_(s), prefix_(s.k3 ? "language_model." : "") {}

  std::vector<TinyTensor> all() {
    const std::uint64_t h = s_.hidden;
    add("lm_head.weight", {s_.vocab, h});
    add("model.embed_tokens.weight", {s_.vocab, h});
    add("model.norm.weight", {h});
    for (std::uint32_t l = 0; l < s_.layers; ++l) layer(l);
    if (s_.k3) {
      add("model.output_attn_res_norm.weight", {h});
      add("model.output_attn_res_proj.weight", {1, h});
      prefix_.clear();
      add("mm_projector.proj.0.weight", {h, 96});
      add("vision_tower.patch_embed.proj.weight", {16, 3, 14, 14});
    }
    return out_;
  }

 private:
  void add(const std::string& name, std::vector<std::uint64_t> shape) {
    out_.push_back({prefix_ + name, std::move(shape), 0, {}});
  }
  void layer(std::uint32_t l) {
    const std::uint64_t h = s_.hidden, sh = s_.inter * s_.shared;
    const std::string base = "model.layers." + std::to_string(l) + ".";
    add(base + "input_layernorm.weight", {h});
    add(base + "post_attention_layernorm.weight", {h});
    if (s_.k3) {
      for (const char* part : {"self_attention_res", "mlp_res"}) {
        add(base + part + "_norm.weight", {h});
        add(base + part + "_proj.weight", {1, h});
      }
    }
    attention(base + "self_attn.", l % 4 == 2);
    if (l == 0) {
      add(base + "mlp.gate_proj.weight", {200, h});
      add(base + "mlp.up_proj.weight", {200, h});
      add(base + "mlp.down_proj.weight", {h, 200});
      return;
    }
    const std::string moe = base + "block_sparse_moe.";
    add(moe + "gate.weight", {s_.experts, h});
    add(moe + "gate.e_score_correction_bias", {s_.experts});
    add(moe + "shared_experts.gate_proj.weight", {sh, h});
    add(moe + "shared_experts.up_proj.weight", {sh, h});
    add(moe + "shared_experts.down_proj.weight", {h, sh});
    if (s_.k3) {
      add(moe + "routed_expert_down_proj.weight", {s_.latent, h});
      add(moe + "routed_expert_up_proj.weight", {h, s_.latent});
      add(moe + "routed_expert_norm.weight", {s_.latent});
    }
  }
  void attention(const std::string& a, bool mla) {
    const std::uint64_t h = s_.hidden;
    if (mla) {  // 2 heads, nope 16, rope 8, v 16, kv_lora 32, K3: q_lora 48 and an output gate
      if (s_.k3) {
        add(a + "q_a_proj.weight", {48, h});
        add(a + "q_a_layernorm.weight", {48});
        add(a + "q_b_proj.weight", {48, 48});
        add(a + "g_proj.weight", {32, h});
      } else {
        add(a + "q_proj.weight", {48, h});
      }
      add(a + "kv_a_proj_with_mqa.weight", {40, h});
      add(a + "kv_a_layernorm.weight", {32});
      add(a + "kv_b_proj.weight", {64, 32});
      add(a + "o_proj.weight", {h, 32});
      return;
    }
    for (const char* x : {"q", "k", "v"}) {  // 3 heads of 16
      add(a + x + "_proj.weight", {48, h});
      add(a + x + "_conv1d.weight", {48, 1, 4});
    }
    add(a + "f_a_proj.weight", {16, h});
    add(a + "f_b_proj.weight", {48, 16});
    add(a + "b_proj.weight", {3, h});
    if (s_.k3) {
      add(a + "A_log", {16});  // padded from 3 heads to head_dim
      add(a + "g_proj.weight", {48, h});
    } else {
      add(a + "A_log", {1, 1, 3, 1});
      add(a + "g_a_proj.weight", {16, h});
      add(a + "g_b_proj.weight", {48, 16});
    }
    add(a + "dt_bias", {48});
    add(a + "o_norm.weight", {16});
    add(a + "o_proj.weight", {h, 48});
  }

  const TinySpec& s_;
  std::string prefix_;
  std::vector<TinyTensor> out_;
};

}  // namespace

std::vector<TinyTensor> tiny_tensors(const TinySpec& spec) { return Shapes(spec).all(); }

nlohmann::ordered_json tiny_config(const TinySpec& s) {
  nlohmann::ordered_json kda = nlohmann::json::array(), full = nlohmann::json::array();
  for (std::uint32_t l = 0; l < s.layers; ++l) (l % 4 == 2 ? full : kda).push_back(l + 1);
  nlohmann::ordered_json c = {{"model_type", "kimi_linear"},
                              {"hidden_size", s.hidden},
                              {"num_hidden_layers", s.layers},
                              {"first_k_dense_replace", 1},
                              {"intermediate_size", 200},
                              {"moe_intermediate_size", s.inter},
                              {"num_experts", s.experts},
                              {"num_experts_per_token", s.top_k},
                              {"num_shared_experts", s.shared},
                              {"moe_renormalize", true},
                              {"moe_router_activation_func", "sigmoid"},
                              {"routed_scaling_factor", 2.446},
                              {"num_attention_heads", 2},
                              {"qk_nope_head_dim", 16},
                              {"qk_rope_head_dim", 8},
                              {"v_head_dim", 16},
                              {"kv_lora_rank", 32},
                              {"q_lora_rank", nullptr},
                              {"mla_use_nope", true},
                              {"rms_norm_eps", 1e-05},
                              {"vocab_size", s.vocab},
                              {"tie_word_embeddings", false},
                              {"bos_token_id", 256},
                              {"eos_token_id", 258},
                              {"hidden_act", "silu"},
                              {"linear_attn_config",
                               {{"head_dim", 16},
                                {"num_heads", 3},
                                {"short_conv_kernel_size", 4},
                                {"kda_layers", kda},
                                {"full_attn_layers", full}}}};
  if (!s.k3) return c;
  c["routed_scaling_factor"] = 1.0;
  c["q_lora_rank"] = 48;
  c["hidden_act"] = "situ";
  c["linear_attn_config"]["use_full_rank_gate"] = true;
  c["linear_attn_config"]["gate_lower_bound"] = -5.0;
  c["routed_expert_hidden_size"] = s.latent;
  c["latent_moe_use_norm"] = true;
  c["activation_situ_beta"] = 4.0;
  c["activation_situ_linear_beta"] = 25.0;
  c["attn_res_block_size"] = 2;
  c["mla_use_output_gate"] = true;
  c["_outer"] = {{"model_type", "kimi_k3"}, {"vision_config", {{"patch_size", 14}}}};
  return c;
}

}  // namespace waste::test
