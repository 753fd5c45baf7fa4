#include <algorithm>
#include <cmath>

#include "model_config_internal.hpp"
#include "waste/core/checked.hpp"
#include "waste/format/family.hpp"
#include "waste/format/json_fields.hpp"
#include "waste/format/manifest.hpp"

namespace waste::format {
namespace {

using detail::bound_product;
using detail::read_token_ids;

constexpr auto max_dimension = static_cast<std::uint32_t>(limits::dimension);

float as_float(double v) { return static_cast<float>(v); }

/// What changes the mathematics and no code here implements, by name.
void refuse_unimplemented(const JsonFields& in) {
  if (const auto* f = in.optional_string("moe_router_activation_func", 256);
      f != nullptr && *f != "sigmoid") {
    in.refuse(Errc::unsupported, "moe_router_activation_func", "\"" + *f + "\", wanted sigmoid");
  }
  for (const char* field : {"num_expert_group", "topk_group", "moe_layer_freq"}) {
    const std::uint64_t v = in.integer_or(field, 0, ~std::uint64_t{0}, 1);
    if (v != 1) in.refuse(fault(Errc::unsupported, field, v, 1));
  }
  if (in.boolean_or("tie_word_embeddings", false)) {
    in.refuse(Errc::unsupported, "tie_word_embeddings", "true, wanted false");
  }
  if (!in.boolean_or("mla_use_nope", false)) {
    in.refuse(Errc::unsupported, "mla_use_nope",
              "false or absent means rotary attention, wanted true");
  }
  if (const JsonValue* scaling = in.find("rope_scaling");
      scaling != nullptr && !scaling->is_null()) {
    in.refuse(Errc::unsupported, "rope_scaling", "wanted null or none");
  }
}

std::vector<std::uint32_t> layer_list(const JsonFields& in, const char* field,
                                      std::uint32_t layers) {
  std::vector<std::uint32_t> out;
  for (const JsonValue& v : in.array(field)) {
    const std::uint64_t* n = v.as_unsigned();
    if (n == nullptr) {
      in.refuse(Errc::bad_field, field, "wanted integers, got " + std::string(kind_of(v)));
    }
    if (*n < 1 || *n > layers) {
      in.refuse(fault(Errc::out_of_range, field, *n, *n < 1 ? 1 : layers), "layers count from 1");
    }
    out.push_back(static_cast<std::uint32_t>(*n - 1));
  }
  std::sort(out.begin(), out.end());
  if (const auto twice = std::adjacent_find(out.begin(), out.end()); twice != out.end()) {
    in.refuse(Errc::duplicate, field, "layer " + std::to_string(*twice + 1));
  }
  return out;
}

void read_attention_kinds(const JsonFields& linear, ModelConfig& m) {
  const char* kda_field = "linear_attn_config.kda_layers";
  const char* full_field = "linear_attn_config.full_attn_layers";
  m.attention.assign(m.num_hidden_layers, AttentionKind::mla);
  const auto kda = layer_list(linear, kda_field, m.num_hidden_layers);
  for (const std::uint32_t l : kda) m.attention[l] = AttentionKind::kda;
  if (linear.find(full_field) == nullptr) return;
  const auto full = layer_list(linear, full_field, m.num_hidden_layers);
  for (const std::uint32_t l : full) {
    if (m.attention[l] == AttentionKind::kda) {
      linear.refuse(Errc::duplicate, full_field,
                    "layer " + std::to_string(l + 1) + " is in kda_layers too");
    }
  }
  if (kda.size() + full.size() != m.num_hidden_layers) {
    linear.refuse(fault(Errc::mismatch, full_field, kda.size() + full.size(), m.num_hidden_layers),
                  "kda_layers and full_attn_layers must name every layer");
  }
}

void read_linear_attention(const JsonFields& in, ModelConfig& m) {
  const JsonFields linear(in.require("linear_attn_config"), "linear_attn_config", {in.file()});
  m.kda_heads = linear.u32("linear_attn_config.num_heads", 1, 65536);
  m.kda_head_dim = linear.u32("linear_attn_config.head_dim", 1, 4096);
  m.short_conv_kernel_size = linear.u32("linear_attn_config.short_conv_kernel_size", 2, 64);
  m.use_full_rank_gate = linear.boolean_or("linear_attn_config.use_full_rank_gate", false);
  if (const auto v = linear.optional_number("linear_attn_config.gate_lower_bound", -80.0, -1e-3)) {
    m.gate_lower_bound = as_float(*v);
  }
  bound_product("linear_attn_config.num_heads", m.kda_heads, m.kda_head_dim, in.file());
  read_attention_kinds(linear, m);
}

void read_moe(const JsonFields& in, ModelConfig& m) {
  m.num_experts = in.u32("num_experts", 1, static_cast<std::uint32_t>(limits::experts));
  m.num_experts_per_token = in.u32("num_experts_per_token", 1, m.num_experts);
  m.num_shared_experts = in.u32("num_shared_experts", 1, 1024);
  m.moe_intermediate_size = in.u32("moe_intermediate_size", 1, max_dimension);
  bound_product("num_shared_experts", m.num_shared_experts, m.moe_intermediate_size, in.file());
  if (const auto v = in.optional_integer("routed_expert_hidden_size", 1, max_dimension)) {
    m.routed_expert_hidden_size = static_cast<std::uint32_t>(*v);
  }
  m.latent_moe_use_norm = in.boolean_or("latent_moe_use_norm", false);
  if (m.latent_moe_use_norm && !m.routed_expert_hidden_size) {
    in.refuse(Errc::mismatch, "latent_moe_use_norm", "true without routed_expert_hidden_size");
  }
  m.routed_scaling_factor = as_float(in.number_or("routed_scaling_factor", 1e-6, 1e6, 1.0));
  m.moe_renormalize = in.boolean_or("moe_renormalize", true);
}

void read_activation(const JsonFields& in, ModelConfig& m) {
  const std::string& act = in.string("hidden_act", 256);
  if (act == "silu") {
    m.hidden_act = Activation::silu;
  } else if (act == "situ") {
    m.hidden_act = Activation::situ;
    m.situ_beta = as_float(in.number_or("activation_situ_beta", 1e-6, 1e6, 1.0));
    const double linear = in.number_or("activation_situ_linear_beta", 0.0, 1e6, 0.0);
    if (linear > 0.0) m.situ_linear_beta = as_float(linear);
  } else {
    in.refuse(Errc::unsupported, "hidden_act", "\"" + act + "\", wanted silu or situ");
  }
}

}  // namespace

namespace detail {

void bound_product(const char* field, std::uint64_t a, std::uint64_t b, std::string_view file) {
  const auto product = checked_mul(a, b);
  if (!product || *product > limits::dimension) {
    throw Error(
        fault(Errc::out_of_range, field, product.value_or(~std::uint64_t{0}), limits::dimension),
        file);
  }
}

void read_mla(const JsonFields& in, ModelConfig& m) {
  m.num_attention_heads = in.u32("num_attention_heads", 1, 65536);
  if (const auto v = in.optional_integer("q_lora_rank", 1, max_dimension)) {
    m.q_lora_rank = static_cast<std::uint32_t>(*v);
  }
  m.kv_lora_rank = in.u32("kv_lora_rank", 1, max_dimension);
  m.qk_nope_head_dim = in.u32("qk_nope_head_dim", 1, 65536);
  m.qk_rope_head_dim = in.u32("qk_rope_head_dim", 0, 65536);
  m.v_head_dim = in.u32("v_head_dim", 1, 65536);
  bound_product("num_attention_heads", m.num_attention_heads, m.qk_head_dim(), in.file());
  bound_product("num_attention_heads", m.num_attention_heads, m.qk_nope_head_dim + m.v_head_dim,
                in.file());
}

void read_token_ids(const JsonFields& in, ModelConfig& m) {
  const std::uint32_t last = m.vocab_size - 1;
  if (const auto v = in.optional_integer("bos_token_id", 0, last)) {
    m.bos_token_id = static_cast<std::uint32_t>(*v);
  }
  const JsonValue* eos = in.find("eos_token_id");
  if (eos == nullptr || !eos->is_array()) {
    if (const auto v = in.optional_integer("eos_token_id", 0, last)) {
      m.eos_token_ids.push_back(static_cast<std::uint32_t>(*v));
    }
    return;
  }
  for (const JsonValue& v : *eos->as_array()) {
    const std::uint64_t* id = v.as_unsigned();
    if (id == nullptr) {
      in.refuse(Errc::bad_field, "eos_token_id", "wanted integers, got " + std::string(kind_of(v)));
    }
    if (*id > last) in.refuse(fault(Errc::out_of_range, "eos_token_id", *id, last));
    m.eos_token_ids.push_back(static_cast<std::uint32_t>(*id));
  }
}

}  // namespace detail

ModelConfig parse_model_config(const JsonValue& config, std::string_view file) {
  const JsonFields in(config, "config", {file});
  if (const Family family = family_of(config); family != Family::kimi) {
    return detail::parse_other_family(family, in);
  }
  ModelConfig m;
  m.vocab_size = in.u32("vocab_size", 1, static_cast<std::uint32_t>(limits::vocabulary));
  m.hidden_size = in.u32("hidden_size", 1, max_dimension);
  m.num_hidden_layers = in.u32("num_hidden_layers", 1, static_cast<std::uint32_t>(limits::layers));
  m.first_k_dense_replace = static_cast<std::uint32_t>(
      in.integer_or("first_k_dense_replace", 0, m.num_hidden_layers - 1, 0));
  if (m.first_k_dense_replace > 0) {
    m.intermediate_size = in.u32("intermediate_size", 1, max_dimension);
  }
  m.rms_norm_eps = as_float(in.number_or("rms_norm_eps", 1e-30, 1.0, 1e-6));
  refuse_unimplemented(in);
  read_linear_attention(in, m);
  detail::read_mla(in, m);
  m.mla_use_output_gate = in.boolean_or("mla_use_output_gate", false);
  read_moe(in, m);
  read_activation(in, m);
  if (const auto v = in.optional_integer("attn_res_block_size", 1, limits::layers)) {
    m.attn_res_block_size = static_cast<std::uint32_t>(*v);
  }
  read_token_ids(in, m);
  return m;
}

std::vector<RequiredTensor> required_tensors(const ModelConfig& m) {
  if (m.family != Family::kimi) return detail::other_required_tensors(m);
  using Role = RequiredTensor::Role;
  std::vector<RequiredTensor> out;
  std::string prefix;
  const auto matrix = [&](const char* name, std::uint64_t rows, std::uint64_t cols) {
    out.push_back({prefix + name, {rows, cols}, Role::matrix});
  };
  const auto vector = [&](const char* name, std::uint64_t n) {
    out.push_back({prefix + name, {n}, Role::vector});
  };
  const auto residual = [&](const char* norm, const char* proj) {
    vector(norm, m.hidden_size);
    out.push_back({prefix + proj, {1, m.hidden_size}, Role::row});
  };
  const std::uint64_t h = m.hidden_size, c = m.kda_channels(), d = m.kda_head_dim;
  const std::uint64_t nh = m.num_attention_heads, kvl = m.kv_lora_rank;

  prefix = "model.";
  matrix("embed_tokens.weight", m.vocab_size, h);
  vector("norm.weight", h);
  if (m.attn_res_block_size) residual("output_attn_res_norm.weight", "output_attn_res_proj.weight");
  prefix.clear();
  matrix("lm_head.weight", m.vocab_size, h);

  for (std::uint32_t layer = 0; layer < m.num_hidden_layers; ++layer) {
    const std::string base = "model.layers." + std::to_string(layer) + ".";
    prefix = base;
    vector("input_layernorm.weight", h);
    vector("post_attention_layernorm.weight", h);
    if (m.attn_res_block_size) {
      residual("self_attention_res_norm.weight", "self_attention_res_proj.weight");
      residual("mlp_res_norm.weight", "mlp_res_proj.weight");
    }
    prefix = base + "self_attn.";
    if (m.attention[layer] == AttentionKind::kda) {
      for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
        matrix(name, c, h);
      }
      for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
        out.push_back({prefix + name, {c, 1, m.short_conv_kernel_size}, Role::vector});
      }
      matrix("f_a_proj.weight", d, h);
      matrix("f_b_proj.weight", c, d);
      matrix("b_proj.weight", m.kda_heads, h);
      out.push_back({prefix + "A_log", {m.kda_heads}, Role::at_least});
      vector("dt_bias", c);
      if (m.use_full_rank_gate) {
        matrix("g_proj.weight", c, h);
      } else {
        matrix("g_a_proj.weight", d, h);
        matrix("g_b_proj.weight", c, d);
      }
      vector("o_norm.weight", d);
      matrix("o_proj.weight", h, c);
    } else {
      if (m.q_lora_rank) {
        matrix("q_a_proj.weight", *m.q_lora_rank, h);
        vector("q_a_layernorm.weight", *m.q_lora_rank);
        matrix("q_b_proj.weight", nh * m.qk_head_dim(), *m.q_lora_rank);
      } else {
        matrix("q_proj.weight", nh * m.qk_head_dim(), h);
      }
      matrix("kv_a_proj_with_mqa.weight", kvl + m.qk_rope_head_dim, h);
      vector("kv_a_layernorm.weight", kvl);
      matrix("kv_b_proj.weight", nh * (m.qk_nope_head_dim + m.v_head_dim), kvl);
      if (m.mla_use_output_gate) matrix("g_proj.weight", nh * m.v_head_dim, h);
      matrix("o_proj.weight", h, nh * m.v_head_dim);
    }
    if (!m.is_moe(layer)) {
      prefix = base + "mlp.";
      matrix("gate_proj.weight", m.intermediate_size, h);
      matrix("up_proj.weight", m.intermediate_size, h);
      matrix("down_proj.weight", h, m.intermediate_size);
      continue;
    }
    prefix = base + "block_sparse_moe.";
    const std::uint64_t shared = std::uint64_t{m.num_shared_experts} * m.moe_intermediate_size;
    matrix("gate.weight", m.num_experts, h);
    vector("gate.e_score_correction_bias", m.num_experts);
    matrix("shared_experts.gate_proj.weight", shared, h);
    matrix("shared_experts.up_proj.weight", shared, h);
    matrix("shared_experts.down_proj.weight", h, shared);
    if (m.routed_expert_hidden_size) {
      matrix("routed_expert_down_proj.weight", *m.routed_expert_hidden_size, h);
      matrix("routed_expert_up_proj.weight", h, *m.routed_expert_hidden_size);
      if (m.latent_moe_use_norm) {
        vector("routed_expert_norm.weight", *m.routed_expert_hidden_size);
      }
    }
  }
  return out;
}

}  // namespace waste::format
