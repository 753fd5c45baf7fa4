#include <algorithm>

#include "model_config_internal.hpp"
#include "waste/format/family.hpp"

namespace waste::format {
namespace {

constexpr auto max_dimension = static_cast<std::uint32_t>(limits::dimension);

/// Only the numbers whose meaning this code shares: 1 expert group, every layer from the first MoE
/// layer on.
void require_one(const JsonFields& in, const char* field) {
  const std::uint64_t v = in.integer_or(field, 0, ~std::uint64_t{0}, 1);
  if (v != 1) in.refuse(fault(Errc::unsupported, field, v, 1));
}

/// mlp_only_layers as a count of dense layers: they must be the first ones, because a container's
/// banks are those of all layers from the first one with experts on.
std::uint32_t leading_dense_layers(const JsonFields& in, std::uint32_t layers) {
  const char* field = "mlp_only_layers";
  const JsonValue* list = in.find(field);
  if (list == nullptr || list->is_null()) return 0;
  std::vector<std::uint64_t> dense;
  for (const JsonValue& v : in.array(field)) {
    const std::uint64_t* n = v.as_unsigned();
    if (n == nullptr) {
      in.refuse(Errc::bad_field, field, "wanted integers, got " + std::string(kind_of(v)));
    }
    dense.push_back(*n);
  }
  std::sort(dense.begin(), dense.end());
  for (std::uint64_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != i) {
      in.refuse(fault(Errc::unsupported, field, dense[i], i), "wanted the first layers, each once");
    }
  }
  if (dense.size() >= layers) in.refuse(fault(Errc::out_of_range, field, dense.size(), layers - 1));
  return static_cast<std::uint32_t>(dense.size());
}

void read_layers(const JsonFields& in, ModelConfig& m) {
  require_one(in, "decoder_sparse_step");
  require_one(in, "moe_layer_freq");
  m.first_k_dense_replace = m.family == Family::deepseek
                                ? static_cast<std::uint32_t>(in.integer_or(
                                      "first_k_dense_replace", 0, m.num_hidden_layers - 1, 0))
                                : leading_dense_layers(in, m.num_hidden_layers);
  if (m.first_k_dense_replace > 0) {
    m.intermediate_size = in.u32("intermediate_size", 1, max_dimension);
  }
}

void read_gqa(const JsonFields& in, ModelConfig& m) {
  m.attention.assign(m.num_hidden_layers, AttentionKind::gqa);
  m.num_attention_heads = in.u32("num_attention_heads", 1, 65536);
  m.num_key_value_heads = static_cast<std::uint32_t>(
      in.optional_integer("num_key_value_heads", 1, m.num_attention_heads)
          .value_or(m.num_attention_heads));
  if (m.num_attention_heads % m.num_key_value_heads != 0) {
    in.refuse(
        fault(Errc::mismatch, "num_key_value_heads", m.num_key_value_heads, m.num_attention_heads),
        "num_attention_heads is no multiple of it");
  }
  m.head_dim = static_cast<std::uint32_t>(
      in.optional_integer("head_dim", 1, 65536).value_or(m.hidden_size / m.num_attention_heads));
  if (m.head_dim == 0) in.refuse(fault(Errc::out_of_range, "head_dim", 0, 1));
  detail::bound_product("num_attention_heads", m.num_attention_heads, m.head_dim, in.file());
  m.attention_bias = m.family == Family::qwen2_moe ? in.boolean_or("qkv_bias", true)
                                                   : in.boolean_or("attention_bias", false);
}

void read_moe(const JsonFields& in, ModelConfig& m) {
  const ConfigNames& names = names_of(m.family).config;
  m.num_experts = in.u32(names.experts, 1, static_cast<std::uint32_t>(limits::experts));
  m.num_experts_per_token = in.u32(names.top_k, 1, m.num_experts);
  m.moe_intermediate_size = in.u32(names.expert_rows, 1, max_dimension);
  m.moe_renormalize = names.renormalize == nullptr
                          ? names.renormalized
                          : in.boolean_or(names.renormalize, names.renormalized);
  if (names.shared != nullptr) {
    m.num_shared_experts =
        static_cast<std::uint32_t>(in.optional_integer(names.shared, 0, 1024).value_or(0));
    detail::bound_product(names.shared, m.num_shared_experts, m.moe_intermediate_size, in.file());
  }
  if (m.family == Family::qwen2_moe) {
    m.num_shared_experts = 1;
    m.shared_expert_intermediate_size = in.u32("shared_expert_intermediate_size", 1, max_dimension);
  }
  if (m.family == Family::deepseek) {
    const std::string* method = in.optional_string("topk_method", 256);
    const bool v2 = in.string("model_type", 256) == "deepseek_v2";
    m.router_bias = method != nullptr ? *method == "noaux_tc" : !v2;
    m.routed_scaling_factor =
        static_cast<float>(in.number_or("routed_scaling_factor", 1e-6, 1e6, 1.0));
  }
}

/// Collects tensors below a prefix.
class TensorList {
 public:
  using Role = RequiredTensor::Role;
  std::string prefix;
  std::vector<RequiredTensor> tensors;

  void matrix(std::string_view name, std::uint64_t rows, std::uint64_t cols) {
    tensors.push_back({prefix + std::string(name), {rows, cols}, Role::matrix});
  }
  void vector(const char* name, std::uint64_t n) {
    tensors.push_back({prefix + name, {n}, Role::vector});
  }
  /// gate and up [rows][hidden], down [hidden][rows].
  void ffn(const char* stem, std::uint64_t rows, std::uint64_t hidden) {
    const std::string at = prefix;
    prefix += stem;
    matrix("gate_proj.weight", rows, hidden);
    matrix("up_proj.weight", rows, hidden);
    matrix("down_proj.weight", hidden, rows);
    prefix = at;
  }
};

void list_gqa(const ModelConfig& m, TensorList& out) {
  const std::uint64_t h = m.hidden_size, d = m.head_dim;
  const std::uint64_t q = m.num_attention_heads * d, kv = m.num_key_value_heads * d;
  out.matrix("q_proj.weight", q, h);
  out.matrix("k_proj.weight", kv, h);
  out.matrix("v_proj.weight", kv, h);
  out.matrix("o_proj.weight", h, q);
  if (m.attention_bias) {
    out.vector("q_proj.bias", q);
    out.vector("k_proj.bias", kv);
    out.vector("v_proj.bias", kv);
    if (m.family != Family::qwen2_moe) out.vector("o_proj.bias", h);
  }
  if (m.family == Family::olmoe || m.family == Family::qwen3_moe) {
    const bool each_head = m.family == Family::qwen3_moe;
    out.vector("q_norm.weight", each_head ? d : q);
    out.vector("k_norm.weight", each_head ? d : kv);
  }
}

void list_mla(const ModelConfig& m, TensorList& out) {
  const std::uint64_t h = m.hidden_size, nh = m.num_attention_heads, kvl = m.kv_lora_rank;
  if (m.q_lora_rank) {
    out.matrix("q_a_proj.weight", *m.q_lora_rank, h);
    out.vector("q_a_layernorm.weight", *m.q_lora_rank);
    out.matrix("q_b_proj.weight", nh * m.qk_head_dim(), *m.q_lora_rank);
  } else {
    out.matrix("q_proj.weight", nh * m.qk_head_dim(), h);
  }
  out.matrix("kv_a_proj_with_mqa.weight", kvl + m.qk_rope_head_dim, h);
  out.vector("kv_a_layernorm.weight", kvl);
  out.matrix("kv_b_proj.weight", nh * (m.qk_nope_head_dim + m.v_head_dim), kvl);
  out.matrix("o_proj.weight", h, nh * m.v_head_dim);
}

void list_moe(const ModelConfig& m, TensorList& out) {
  const std::uint64_t h = m.hidden_size;
  out.matrix(names_of(m.family).moe.router, m.num_experts, h);
  if (m.router_bias) out.vector("mlp.gate.e_score_correction_bias", m.num_experts);
  if (m.family == Family::qwen2_moe) {
    out.ffn("mlp.shared_expert.", m.shared_expert_intermediate_size, h);
    out.tensors.push_back(
        {out.prefix + "mlp.shared_expert_gate.weight", {1, h}, TensorList::Role::row});
  } else if (m.num_shared_experts > 0) {
    out.ffn("mlp.shared_experts.", std::uint64_t{m.num_shared_experts} * m.moe_intermediate_size,
            h);
  }
}

}  // namespace

Family family_of(const JsonValue& config) noexcept {
  const JsonValue* type = config.find("model_type");
  if (type == nullptr || !type->is_string()) return Family::kimi;
  for (const FamilyNames& line : families) {
    for (const std::string_view name : line.model_types) {
      if (!name.empty() && *type->as_string() == name) return line.family;
    }
  }
  return Family::kimi;
}

void require_kimi(const ModelConfig& config, std::string_view what) {
  if (config.family == Family::kimi) return;
  throw Error(fault(Errc::unsupported, "model_type"), {},
              std::string(to_string(config.family)) + ": " + std::string(what) +
                  " knows Kimi-Linear and K3; this family's containers can be read and verified, "
                  "and run by a forward pass of one's own (examples/custom_forward.cpp)");
}

namespace detail {

ModelConfig parse_other_family(Family family, const JsonFields& in) {
  ModelConfig m;
  m.family = family;
  m.vocab_size = in.u32("vocab_size", 1, static_cast<std::uint32_t>(limits::vocabulary));
  m.hidden_size = in.u32("hidden_size", 1, max_dimension);
  m.num_hidden_layers = in.u32("num_hidden_layers", 1, static_cast<std::uint32_t>(limits::layers));
  m.rms_norm_eps = static_cast<float>(in.number_or("rms_norm_eps", 1e-30, 1.0, 1e-6));
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", false);
  if (const auto* act = in.optional_string("hidden_act", 256); act != nullptr && *act != "silu") {
    in.refuse(Errc::unsupported, "hidden_act", "\"" + *act + "\", wanted silu");
  }
  read_layers(in, m);
  if (family == Family::deepseek) {
    m.attention.assign(m.num_hidden_layers, AttentionKind::mla);
    detail::read_mla(in, m);
    if (in.boolean_or("attention_bias", false)) {
      in.refuse(Errc::unsupported, "attention_bias", "true, wanted false");
    }
  } else {
    read_gqa(in, m);
  }
  read_moe(in, m);
  read_token_ids(in, m);
  return m;
}

std::vector<RequiredTensor> other_required_tensors(const ModelConfig& m) {
  TensorList out;
  out.matrix("model.embed_tokens.weight", m.vocab_size, m.hidden_size);
  out.vector("model.norm.weight", m.hidden_size);
  if (!m.tie_word_embeddings) out.matrix("lm_head.weight", m.vocab_size, m.hidden_size);
  for (std::uint32_t layer = 0; layer < m.num_hidden_layers; ++layer) {
    const std::string base = "model.layers." + std::to_string(layer) + ".";
    out.prefix = base;
    out.vector("input_layernorm.weight", m.hidden_size);
    out.vector("post_attention_layernorm.weight", m.hidden_size);
    out.prefix = base + "self_attn.";
    if (m.attention[layer] == AttentionKind::gqa) {
      list_gqa(m, out);
    } else {
      list_mla(m, out);
    }
    out.prefix = base;
    if (m.is_moe(layer)) {
      list_moe(m, out);
    } else {
      out.ffn("mlp.", m.intermediate_size, m.hidden_size);
    }
  }
  return std::move(out.tensors);
}

}  // namespace detail
}  // namespace waste::format
