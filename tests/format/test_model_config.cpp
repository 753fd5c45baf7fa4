// Model configurations: what is read, what is refused by name, and the tensors a model needs.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/tiny_container.hpp"
#include "waste/format/manifest.hpp"

namespace {

using namespace waste;
using namespace waste::format;
using Json = nlohmann::ordered_json;
using test::TinySpec;

ModelConfig parse(const Json& config) {
  return parse_model_config(parse_json(config.dump(), "config.json"), "config.json");
}

struct Refusal {
  Errc code = Errc::ok;
  std::string field, message;
};

Refusal refusal(const Json& config) {
  try {
    parse(config);
  } catch (const Error& e) {
    CHECK(e.file() == "config.json");
    return {e.code(), e.fault().field, e.what()};
  }
  return {};
}

const Json kimi = test::tiny_config(TinySpec{});
const Json k3 = test::tiny_config(TinySpec::kimi_k3());

/// `base` with one member (a JSON pointer) replaced.
Json with(Json base, const std::string& pointer, const Json& value) {
  base[Json::json_pointer(pointer)] = value;
  return base;
}
Json without(Json base, const std::string& key) {
  base.erase(key);
  return base;
}

TEST_CASE("Kimi-Linear's configuration is read", "[config]") {
  const ModelConfig m = parse(kimi);
  CHECK(m.vocab_size == 272);
  CHECK(m.hidden_size == 160);
  CHECK(m.intermediate_size == 200);
  CHECK(m.num_hidden_layers == 4);
  CHECK(m.first_k_dense_replace == 1);
  CHECK(m.rms_norm_eps == 1e-5f);
  using enum AttentionKind;
  CHECK(m.attention == std::vector<AttentionKind>{kda, kda, mla, kda});
  CHECK(m.kda_heads == 3);
  CHECK(m.kda_head_dim == 16);
  CHECK(m.kda_channels() == 48);
  CHECK(m.short_conv_kernel_size == 4);
  CHECK_FALSE(m.use_full_rank_gate);
  CHECK_FALSE(m.gate_lower_bound);
  CHECK(m.num_attention_heads == 2);
  CHECK_FALSE(m.q_lora_rank);
  CHECK(m.kv_lora_rank == 32);
  CHECK(m.qk_head_dim() == 24);
  CHECK(m.v_head_dim == 16);
  CHECK_FALSE(m.mla_use_output_gate);
  CHECK(m.num_experts == 5);
  CHECK(m.num_experts_per_token == 2);
  CHECK(m.expert_shape() == ExpertShape{72, 160});
  CHECK_FALSE(m.routed_expert_hidden_size);
  CHECK(m.routed_scaling_factor == 2.446f);
  CHECK(m.moe_renormalize);
  CHECK(m.hidden_act == Activation::silu);
  CHECK_FALSE(m.attn_res_block_size);
  CHECK(m.eos_token_ids == std::vector<std::uint32_t>{258});
  CHECK(m.bos_token_id == 256u);
  CHECK(m.moe_layers() == 3);
  CHECK_FALSE(m.is_moe(0));
  CHECK(m.is_moe(1));
}

TEST_CASE("K3's configuration is read", "[config]") {
  const ModelConfig m = parse(k3);
  CHECK(m.use_full_rank_gate);
  CHECK(m.gate_lower_bound == -5.0f);
  CHECK(m.q_lora_rank == 48u);
  CHECK(m.mla_use_output_gate);
  CHECK(m.routed_expert_hidden_size == 96u);
  CHECK(m.latent_moe_use_norm);
  CHECK(m.expert_shape() == ExpertShape{72, 96});
  CHECK(m.hidden_act == Activation::situ);
  CHECK(m.situ_beta == 4.0f);
  CHECK(m.situ_linear_beta == 25.0f);
  CHECK(m.attn_res_block_size == 2u);
  CHECK(m.num_shared_experts == 2);
}

TEST_CASE("defaults stand for what is absent or null", "[config]") {
  CHECK(parse(without(kimi, "rms_norm_eps")).rms_norm_eps == 1e-6f);
  CHECK(parse(without(kimi, "moe_renormalize")).moe_renormalize);
  CHECK_FALSE(parse(with(kimi, "/moe_renormalize", false)).moe_renormalize);
  CHECK(parse(without(kimi, "routed_scaling_factor")).routed_scaling_factor == 1.0f);
  CHECK(parse(without(kimi, "eos_token_id")).eos_token_ids.empty());
  CHECK(parse(with(kimi, "/eos_token_id", nullptr)).eos_token_ids.empty());
  CHECK(parse(with(kimi, "/eos_token_id", {5, 7})).eos_token_ids ==
        std::vector<std::uint32_t>{5, 7});
  CHECK_FALSE(parse(without(kimi, "bos_token_id")).bos_token_id);
  CHECK_FALSE(parse(without(kimi, "q_lora_rank")).q_lora_rank);
  CHECK_NOTHROW(parse(without(kimi, "tie_word_embeddings")));
  CHECK_NOTHROW(parse(with(kimi, "/num_expert_group", 1)));
  CHECK_NOTHROW(parse(with(kimi, "/topk_group", nullptr)));
  CHECK_NOTHROW(parse(with(kimi, "/rope_scaling", nullptr)));
  CHECK_NOTHROW(parse(with(kimi, "/rope_theta", 10000.0)));  // unused without rotary
  Json no_full = kimi;
  no_full["linear_attn_config"].erase("full_attn_layers");
  CHECK(parse(no_full).attention[2] == AttentionKind::mla);
  CHECK_FALSE(parse(with(k3, "/activation_situ_linear_beta", 0)).situ_linear_beta);
  CHECK_FALSE(parse(with(k3, "/activation_situ_linear_beta", nullptr)).situ_linear_beta);
  // Booleans count by value, not by presence.
  CHECK_FALSE(parse(with(k3, "/mla_use_output_gate", false)).mla_use_output_gate);
  CHECK_FALSE(parse(with(k3, "/latent_moe_use_norm", false)).latent_moe_use_norm);
  CHECK_FALSE(parse(with(k3, "/linear_attn_config/use_full_rank_gate", false)).use_full_rank_gate);
  // Without dense layers nobody needs their width.
  CHECK(parse(without(with(kimi, "/first_k_dense_replace", 0), "intermediate_size"))
            .intermediate_size == 0);
}

struct Bad {
  const char* pointer;
  Json value;
  Errc code;
  const char* field;
};

TEST_CASE("what nothing here computes is refused by name", "[config]") {
  const std::vector<Bad> cases = {
      {"/moe_router_activation_func", "softmax", Errc::unsupported, "moe_router_activation_func"},
      {"/moe_router_activation_func", "Sigmoid", Errc::unsupported, "moe_router_activation_func"},
      {"/num_expert_group", 8, Errc::unsupported, "num_expert_group"},
      {"/num_expert_group", 0, Errc::unsupported, "num_expert_group"},
      {"/topk_group", 4, Errc::unsupported, "topk_group"},
      {"/moe_layer_freq", 2, Errc::unsupported, "moe_layer_freq"},
      {"/tie_word_embeddings", true, Errc::unsupported, "tie_word_embeddings"},
      {"/mla_use_nope", false, Errc::unsupported, "mla_use_nope"},
      {"/mla_use_nope", nullptr, Errc::unsupported, "mla_use_nope"},
      {"/rope_scaling", {{"type", "yarn"}}, Errc::unsupported, "rope_scaling"},
      {"/hidden_act", "gelu", Errc::unsupported, "hidden_act"},
      {"/hidden_act", "", Errc::unsupported, "hidden_act"},
  };
  for (const Bad& c : cases) {
    const Refusal r = refusal(with(kimi, c.pointer, c.value));
    INFO(c.pointer << " " << c.value);
    CHECK(r.code == c.code);
    CHECK(r.field == c.field);
  }
  CHECK(refusal(with(kimi, "/moe_router_activation_func", "softmax")).message ==
        "config.json: moe_router_activation_func: unsupported; \"softmax\", wanted sigmoid");
  CHECK(refusal(with(kimi, "/num_expert_group", 8)).message ==
        "config.json: num_expert_group: unsupported, got 8, wanted 1");
  CHECK(refusal(without(kimi, "mla_use_nope")).field == "mla_use_nope");
}

TEST_CASE("values of another type, out of bounds or contradictory are refused", "[config]") {
  const auto m = Errc::mismatch, b = Errc::bad_field, r = Errc::out_of_range, d = Errc::duplicate;
  const std::vector<Bad> cases = {
      // A number, a string or 0/1 is no boolean.
      {"/tie_word_embeddings", 0, b, "tie_word_embeddings"},
      {"/tie_word_embeddings", "false", b, "tie_word_embeddings"},
      {"/mla_use_nope", 1, b, "mla_use_nope"},
      {"/moe_renormalize", 1, b, "moe_renormalize"},
      {"/mla_use_output_gate", "true", b, "mla_use_output_gate"},
      {"/latent_moe_use_norm", 1.0, b, "latent_moe_use_norm"},
      {"/linear_attn_config/use_full_rank_gate", 0, b, "linear_attn_config.use_full_rank_gate"},
      // A float, a string or a negative number is no dimension.
      {"/hidden_size", 160.0, b, "hidden_size"},
      {"/hidden_size", "160", b, "hidden_size"},
      {"/hidden_size", -160, b, "hidden_size"},
      {"/hidden_size", nullptr, b, "hidden_size"},
      {"/hidden_size", true, b, "hidden_size"},
      {"/hidden_size", Json::array({160}), b, "hidden_size"},
      {"/hidden_size", 0, r, "hidden_size"},
      {"/hidden_size", (1u << 20) + 1, r, "hidden_size"},
      {"/hidden_size", 4294967456ull, r, "hidden_size"},  // 160 modulo 2^32
      {"/hidden_size", 18446744073709551615ull, r, "hidden_size"},
      {"/vocab_size", 0, r, "vocab_size"},
      {"/vocab_size", (1u << 24) + 1, r, "vocab_size"},
      {"/num_hidden_layers", 0, r, "num_hidden_layers"},
      {"/num_hidden_layers", 4097, r, "num_hidden_layers"},
      {"/first_k_dense_replace", 4, r, "first_k_dense_replace"},
      {"/intermediate_size", 0, r, "intermediate_size"},
      {"/num_experts", 0, r, "num_experts"},
      {"/num_experts", 65536, r, "num_experts"},
      {"/num_experts_per_token", 0, r, "num_experts_per_token"},
      {"/num_experts_per_token", 6, r, "num_experts_per_token"},
      {"/num_shared_experts", 0, r, "num_shared_experts"},
      {"/num_shared_experts", 1025, r, "num_shared_experts"},
      {"/moe_intermediate_size", 0, r, "moe_intermediate_size"},
      {"/routed_expert_hidden_size", 0, r, "routed_expert_hidden_size"},
      {"/latent_moe_use_norm", true, m, "latent_moe_use_norm"},  // without a latent
      {"/num_attention_heads", 0, r, "num_attention_heads"},
      {"/num_attention_heads", 65536, r, "num_attention_heads"},  // x 24 is beyond 2^20
      {"/q_lora_rank", 0, r, "q_lora_rank"},
      {"/q_lora_rank", "48", b, "q_lora_rank"},
      {"/kv_lora_rank", 0, r, "kv_lora_rank"},
      {"/qk_nope_head_dim", 0, r, "qk_nope_head_dim"},
      {"/v_head_dim", 0, r, "v_head_dim"},
      {"/rms_norm_eps", 0.0, r, "rms_norm_eps"},
      {"/rms_norm_eps", -1e-5, r, "rms_norm_eps"},
      {"/rms_norm_eps", 2, r, "rms_norm_eps"},
      {"/rms_norm_eps", "1e-5", b, "rms_norm_eps"},
      {"/routed_scaling_factor", 0, r, "routed_scaling_factor"},
      {"/routed_scaling_factor", -1.0, r, "routed_scaling_factor"},
      {"/attn_res_block_size", 0, r, "attn_res_block_size"},
      {"/hidden_act", nullptr, b, "hidden_act"},
      {"/hidden_act", 3, b, "hidden_act"},
      {"/eos_token_id", 272, r, "eos_token_id"},
      {"/eos_token_id", {258, 272}, r, "eos_token_id"},
      {"/eos_token_id", {258, -1}, b, "eos_token_id"},
      {"/eos_token_id", "258", b, "eos_token_id"},
      {"/bos_token_id", 272, r, "bos_token_id"},
      {"/linear_attn_config", nullptr, b, "linear_attn_config"},
      {"/linear_attn_config", Json::array(), b, "linear_attn_config"},
      {"/linear_attn_config/num_heads", 0, r, "linear_attn_config.num_heads"},
      {"/linear_attn_config/num_heads", 65537, r, "linear_attn_config.num_heads"},
      {"/linear_attn_config/head_dim", 0, r, "linear_attn_config.head_dim"},
      {"/linear_attn_config/head_dim", 4097, r, "linear_attn_config.head_dim"},
      {"/linear_attn_config/short_conv_kernel_size", 1, r,
       "linear_attn_config.short_conv_kernel_size"},
      {"/linear_attn_config/gate_lower_bound", 5.0, r, "linear_attn_config.gate_lower_bound"},
      {"/linear_attn_config/gate_lower_bound", -1e9, r, "linear_attn_config.gate_lower_bound"},
      {"/linear_attn_config/kda_layers", {0, 1, 2}, r, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/kda_layers", {1, 2, 5}, r, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/kda_layers", {1, 2, 2}, d, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/kda_layers", {1, "2", 4}, b, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/kda_layers", 1, b, "linear_attn_config.kda_layers"},
      {"/linear_attn_config/full_attn_layers", {2, 3}, d, "linear_attn_config.full_attn_layers"},
      {"/linear_attn_config/full_attn_layers", Json::array(), m,
       "linear_attn_config.full_attn_layers"},
  };
  for (const Bad& c : cases) {
    const Refusal got = refusal(with(kimi, c.pointer, c.value));
    INFO(c.pointer << " " << c.value << ": " << got.message);
    CHECK(got.code == c.code);
    CHECK(got.field == c.field);
  }
  for (const char* key :
       {"hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size", "num_experts",
        "num_experts_per_token", "num_shared_experts", "moe_intermediate_size", "kv_lora_rank",
        "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "hidden_act",
        "linear_attn_config"}) {
    const Refusal got = refusal(without(kimi, key));
    CHECK(got.code == Errc::missing);
    CHECK(got.field == key);
  }
  Json fewer = kimi;
  fewer["linear_attn_config"].erase("kda_layers");
  CHECK(refusal(fewer).field == "linear_attn_config.kda_layers");
  CHECK(refusal(with(kimi, "/hidden_size", 160.0)).message ==
        "config.json: hidden_size: invalid value; wanted a non-negative integer, got a number with "
        "fraction or exponent");
  // An integer that 64 bits do not hold is read as a float, and is none the less no fraction.
  const auto spelled = [&](const std::string& number) {
    std::string text = kimi.dump();
    const std::string was = "\"hidden_size\":160";
    const std::size_t at = text.find(was);
    REQUIRE(at != std::string::npos);
    text.replace(at, was.size(), "\"hidden_size\":" + number);
    const Error e = test::failure_of([&] { parse_model_config(parse_json(text, "c"), "c"); });
    return std::string(e.what());
  };
  const std::string wanted = "c: hidden_size: invalid value; wanted a non-negative integer, got ";
  CHECK(spelled("18446744073709551616") == wanted + "a number beyond 64 bits");
  CHECK(spelled("-9223372036854775809") == wanted + "a number beyond 64 bits");
  CHECK(spelled("1e300") == wanted + "a number beyond 64 bits");
  CHECK(spelled("-9223372036854775808") == wanted + "a negative integer");
  CHECK(spelled("18446744073709549568.0") == wanted + "a number with fraction or exponent");
  CHECK(
      spelled("18446744073709551615") ==
      "c: hidden_size: out of range, got 18446744073709551615, wanted at most 1048576; wanted 1 to "
      "1048576");
  CHECK(refusal(with(kimi, "/num_experts_per_token", 6)).message ==
        "config.json: num_experts_per_token: out of range, got 6, wanted at most 5; wanted 1 to 5");
  CHECK(refusal(Json::array()).field == "config");
  CHECK(refusal(with(kimi, "/linear_attn_config/num_heads", 65536)).code == Errc::ok);
}

TEST_CASE("the tensors a model needs are those of the specification", "[config]") {
  for (const TinySpec& spec : {TinySpec{}, TinySpec::kimi_k3()}) {
    const std::string prefix = spec.k3 ? "language_model." : "";
    std::map<std::string, std::vector<std::uint64_t>> want;
    for (const auto& t : test::tiny_tensors(spec)) {
      if (t.name.starts_with("vision") || t.name.starts_with("mm_")) continue;
      want[t.name] = t.shape;
    }
    const auto got = required_tensors(parse(test::tiny_config(spec)));
    CHECK(got.size() == want.size());
    for (const RequiredTensor& t : got) {
      const auto it = want.find(prefix + t.name);
      INFO(t.name);
      REQUIRE(it != want.end());
      CHECK(check_tensor(t, it->second, Fmt::f32).ok());
      if (t.role == RequiredTensor::Role::matrix) CHECK(it->second == t.shape);
      want.erase(it);
    }
    CHECK(want.empty());
  }
}

TEST_CASE("a tensor serves when its shape and format do", "[config]") {
  using Role = RequiredTensor::Role;
  const auto code = [](Role role, std::vector<std::uint64_t> want, std::vector<std::uint64_t> shape,
                       Fmt fmt) {
    return check_tensor({"t", std::move(want), role}, shape, fmt).code;
  };
  CHECK(code(Role::matrix, {4, 8}, {4, 8}, Fmt::q3g) == Errc::ok);
  CHECK(code(Role::matrix, {4, 8}, {8, 4}, Fmt::q4g) == Errc::shape);
  CHECK(code(Role::matrix, {4, 8}, {32}, Fmt::q4g) == Errc::shape);
  CHECK(code(Role::vector, {8}, {8}, Fmt::f32) == Errc::ok);
  CHECK(code(Role::vector, {8}, {1, 8}, Fmt::f32) == Errc::shape);
  CHECK(code(Role::vector, {8}, {8}, Fmt::q8g) == Errc::unsupported);
  CHECK(code(Role::row, {1, 8}, {8}, Fmt::f32) == Errc::ok);
  CHECK(code(Role::row, {1, 8}, {1, 1, 8}, Fmt::f32) == Errc::ok);
  CHECK(code(Role::row, {1, 8}, {8, 1}, Fmt::f32) == Errc::shape);
  CHECK(code(Role::row, {1, 8}, {2, 4}, Fmt::f32) == Errc::shape);
  CHECK(code(Role::row, {1, 1}, {}, Fmt::f32) == Errc::shape);
  CHECK(code(Role::at_least, {3}, {1, 1, 3, 1}, Fmt::f32) == Errc::ok);
  CHECK(code(Role::at_least, {3}, {16}, Fmt::f32) == Errc::ok);
  CHECK(code(Role::at_least, {3}, {2}, Fmt::f32) == Errc::shape);
  CHECK(code(Role::at_least, {3}, {1u << 31, 1u << 31, 1u << 31}, Fmt::f32) == Errc::shape);
}

TEST_CASE("shapes that overflow have no element count", "[config]") {
  CHECK(elements({}) == std::uint64_t{1});
  CHECK(elements({3, 5}) == std::uint64_t{15});
  CHECK_FALSE(elements({std::uint64_t{1} << 32, std::uint64_t{1} << 32}));
}

}  // namespace
