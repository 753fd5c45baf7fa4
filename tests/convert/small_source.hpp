// A small checkpoint of random weights, whole or damaged, for tests of reading and converting.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/write_safetensors.hpp"
#include "waste/core/half.hpp"
#include "waste/format/json.hpp"
#include "waste/format/manifest.hpp"

namespace waste::test {

struct SmallSource {
  bool k3 = false;      ///< text_config, prefix, latent, MXFP4 experts, vision tensors
  bool mtp = false;     ///< a packed expert and a matrix of one layer past the last
  bool single = false;  ///< one model.safetensors without an index
  std::uint32_t experts = 6;
  std::uint32_t layers = 3;
  std::uint32_t inter = 96;  ///< rows of an expert's gate

  std::string prefix() const { return k3 ? "language_model." : ""; }

  std::string text_config() const {
    std::string kda;
    for (std::uint32_t l = 1; l < layers; ++l) kda += (l > 1 ? "," : "") + std::to_string(l);
    std::string c =
        "{\"model_type\":\"kimi_linear\",\"architectures\":[\"KimiLinearForCausalLM\"],"
        "\"vocab_size\":520,\"hidden_size\":160,\"intermediate_size\":416,\"num_hidden_layers\":" +
        std::to_string(layers) +
        ",\"first_k_dense_replace\":1,\"rms_norm_eps\":1e-05,\"mla_use_nope\":true,"
        "\"num_attention_heads\":4,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,"
        "\"qk_rope_head_dim\":8,\"v_head_dim\":16,\"moe_intermediate_size\":" +
        std::to_string(inter) + ",\"num_experts\":" + std::to_string(experts) +
        ",\"num_experts_per_token\":2,\"num_shared_experts\":1,\"routed_scaling_factor\":2.446,"
        "\"moe_renormalize\":true,\"moe_router_activation_func\":\"sigmoid\","
        "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,"
        "\"linear_attn_config\":{\"num_heads\":4,\"head_dim\":32,\"short_conv_kernel_size\":4,"
        "\"kda_layers\":[" +
        kda + "],\"full_attn_layers\":[" + std::to_string(layers) + "]";
    if (!k3) return c + "},\"q_lora_rank\":null,\"hidden_act\":\"silu\"}";
    return c +
           ",\"use_full_rank_gate\":true,\"gate_lower_bound\":-5.0},\"q_lora_rank\":48,"
           "\"hidden_act\":\"situ\",\"activation_situ_beta\":4.0,"
           "\"activation_situ_linear_beta\":25.0,\"routed_expert_hidden_size\":64,"
           "\"latent_moe_use_norm\":true,\"attn_res_block_size\":2,\"mla_use_output_gate\":true}";
  }
  std::string config() const {
    if (!k3) return text_config();
    return "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"text_config\":" +
           text_config() +
           ",\"vision_config\":{\"vt_hidden_size\":48,\"_private\":1},"
           "\"media_placeholder_token_id\":515}";
  }
};

class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  std::uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33);
  }
  /// Sum of four uniforms, of variance 1/3.
  float value() {
    float x = 0;
    for (int i = 0; i < 4; ++i) x += static_cast<float>(bits()) * 0x1p-30f - 1.0f;
    return 0.5f * x;
  }

 private:
  std::uint64_t state_;
};

inline std::size_t count_of(const std::vector<std::uint64_t>& shape) {
  std::size_t n = 1;
  for (const auto d : shape) n *= static_cast<std::size_t>(d);
  return n;
}

inline RawTensor bf16_tensor(const std::string& name, const std::vector<std::uint64_t>& shape,
                             Numbers& numbers) {
  std::vector<std::uint16_t> raw(count_of(shape));
  for (auto& r : raw) r = f32_to_bf16(0.1f * numbers.value());
  return {name, "BF16", {shape.begin(), shape.end()}, bytes_of(raw)};
}

inline void add_mxfp4(std::vector<RawTensor>& out, const std::string& stem, std::size_t rows,
                      std::size_t cols, Numbers& numbers) {
  std::vector<std::uint8_t> packed(rows * cols / 2), scale(rows * cols / 32);
  for (auto& p : packed) p = static_cast<std::uint8_t>(numbers.bits());
  for (auto& s : scale) s = static_cast<std::uint8_t>(121 + numbers.bits() % 3);
  out.push_back({stem + ".weight_packed", "U8", {rows, cols / 2}, packed});
  out.push_back({stem + ".weight_scale", "U8", {rows, cols / 32}, scale});
}

/// Every tensor of the checkpoint, in no particular order.
inline std::vector<RawTensor> source_tensors(const SmallSource& s, std::uint64_t seed = 1) {
  Numbers numbers(seed);
  const JsonValue config = parse_json(s.text_config(), "config");
  const format::ModelConfig model = format::parse_model_config(config, "config");
  std::vector<RawTensor> out;
  for (const auto& t : format::required_tensors(model)) {
    auto shape = t.shape;
    if (s.k3 && t.name.ends_with("A_log")) shape = {model.kda_head_dim};  // padded as K3 does
    out.push_back(bf16_tensor(s.prefix() + t.name, shape, numbers));
  }
  const format::ExpertShape shape = model.expert_shape();
  const auto expert = [&](const std::string& stem, format::Kind k, const char* w) {
    if (s.k3) {
      add_mxfp4(out, stem + w, shape.rows(k), shape.cols(k), numbers);
    } else {
      out.push_back(bf16_tensor(stem + w + ".weight", {shape.rows(k), shape.cols(k)}, numbers));
    }
  };
  for (std::uint32_t l = 1; l < s.layers; ++l) {
    for (std::uint32_t e = 0; e < s.experts; ++e) {
      const std::string stem = s.prefix() + "model.layers." + std::to_string(l) +
                               ".block_sparse_moe.experts." + std::to_string(e) + ".";
      expert(stem, format::Kind::gate, "w1");
      expert(stem, format::Kind::up, "w3");
      expert(stem, format::Kind::down, "w2");
    }
  }
  if (s.k3) {
    out.push_back(bf16_tensor("vision_tower.encoder.blocks.0.mlp.fc0.weight", {704, 96}, numbers));
    out.push_back(bf16_tensor("vision_tower.patch_embed.proj.weight", {160, 3, 14, 14}, numbers));
    out.push_back(bf16_tensor("mm_projector.proj.0.bias", {7}, numbers));
  }
  if (s.mtp) {
    const std::string stem = s.prefix() + "model.layers." + std::to_string(s.layers) + ".";
    out.push_back(bf16_tensor(stem + "eh_proj.weight", {160, 320}, numbers));
    out.push_back(bf16_tensor(stem + "shared_head.head.weight", {520, 160}, numbers));
    add_mxfp4(out, stem + "block_sparse_moe.experts.0.w1", 704, 96, numbers);
  }
  return out;
}

/// Writes the checkpoint as three shards (or one file), with tokenizer files.
inline void write_source(const std::filesystem::path& dir, const SmallSource& s,
                         std::vector<RawTensor> tensors) {
  std::filesystem::create_directories(dir);
  write_file(dir / "config.json", s.config());
  write_file(dir / "tiktoken.model", "YQ== 0\nYg== 1\n");
  write_file(dir / "tokenizer_config.json",
             "{\"added_tokens_decoder\":{\"12\":{\"content\":\"<|b|>\"},\"3\":{\"content\":"
             "\"<|\\u00e4|>\"}},\"chat_template\":\"{{ messages }}\"}");
  write_file(dir / "generation_config.json", "{\"eos_token_id\": [2, 5]}");
  if (s.single) {
    write_file(dir / "model.safetensors", safetensors_bytes(tensors));
    return;
  }
  std::vector<std::pair<std::string, std::vector<RawTensor>>> shards(3);
  for (int i = 0; i < 3; ++i) shards[i].first = "model-" + std::to_string(i + 1) + ".safetensors";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    shards[i * 3 / tensors.size()].second.push_back(std::move(tensors[i]));
  }
  write_sharded(dir, shards);
}

inline std::filesystem::path make_source(const std::filesystem::path& dir,
                                         const SmallSource& s = {}) {
  write_source(dir, s, source_tensors(s));
  return dir;
}

}  // namespace waste::test
