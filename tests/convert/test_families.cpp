// Checkpoints of other families, by their published names: converted, read, verified, refused by
// the forward pass that is not theirs.
#include <algorithm>
#include <set>
#include <utility>

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"
#include "waste/engine/memory_plan.hpp"
#include "waste/format/family.hpp"
#include "waste/io/container.hpp"
#include "waste/model/checkpoint_weights.hpp"
#include "waste/model/kimi.hpp"

using namespace waste;
using namespace waste::test;
using convert::Checkpoint;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

using Shape = std::vector<std::uint64_t>;
using Tensors = std::vector<std::pair<std::string, Shape>>;

// Every family here: hidden 64, vocabulary 200, 3 layers, 4 heads (2 key heads) of 16, 6 experts of
// 40 rows, 2 a token.
constexpr std::uint32_t hidden = 64, vocabulary = 200, layers = 3, experts = 6, rows = 40;

struct Source {
  std::string family, config;
  Tensors trunk;        ///< written down from the published checkpoints' names
  std::string experts;  ///< model.layers.{L}{experts}{e}.{matrix}.weight
  std::vector<std::string> matrices;
  std::uint32_t first = 0;  ///< layer with experts
};

std::string config_of(const std::string& type, const std::string& arch, const std::string& more) {
  return "{\"architectures\":[\"" + arch + "\"],\"model_type\":\"" + type +
         "\",\"vocab_size\":200,\"hidden_size\":64,\"num_hidden_layers\":3,"
         "\"num_attention_heads\":4,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
         "\"hidden_act\":\"silu\",\"bos_token_id\":1,\"eos_token_id\":2" +
         more + "}";
}

void add_ends(Tensors& t) {
  t.push_back({"model.embed_tokens.weight", {vocabulary, hidden}});
  t.push_back({"model.norm.weight", {hidden}});
  t.push_back({"lm_head.weight", {vocabulary, hidden}});
}

void add_layer(Tensors& t, std::uint32_t l, const Tensors& parts) {
  const std::string stem = "model.layers." + std::to_string(l) + ".";
  t.push_back({stem + "input_layernorm.weight", {hidden}});
  t.push_back({stem + "post_attention_layernorm.weight", {hidden}});
  for (const auto& [name, shape] : parts) t.push_back({stem + name, shape});
}

const Tensors gqa = {{"self_attn.q_proj.weight", {64, 64}},
                     {"self_attn.k_proj.weight", {32, 64}},
                     {"self_attn.v_proj.weight", {32, 64}},
                     {"self_attn.o_proj.weight", {64, 64}}};
const Tensors dense = {{"mlp.gate_proj.weight", {112, 64}},
                       {"mlp.up_proj.weight", {112, 64}},
                       {"mlp.down_proj.weight", {64, 112}}};
const std::vector<std::string> projections = {"gate_proj", "up_proj", "down_proj"};

Tensors joined(Tensors a, const Tensors& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Source olmoe() {
  Source s{"olmoe",
           config_of("olmoe", "OlmoeForCausalLM",
                     ",\"num_key_value_heads\":2,\"num_experts\":6,\"num_experts_per_tok\":2,"
                     "\"intermediate_size\":40,\"norm_topk_prob\":false,\"clip_qkv\":null"),
           {},
           ".mlp.experts.",
           projections};
  add_ends(s.trunk);
  for (std::uint32_t l = 0; l < layers; ++l) {
    add_layer(s.trunk, l,
              joined(gqa, {{"self_attn.q_norm.weight", {64}},
                           {"self_attn.k_norm.weight", {32}},
                           {"mlp.gate.weight", {6, 64}}}));
  }
  return s;
}

Source qwen3() {
  Source s{"qwen3_moe",
           config_of("qwen3_moe", "Qwen3MoeForCausalLM",
                     ",\"num_key_value_heads\":2,\"head_dim\":16,\"num_experts\":6,"
                     "\"num_experts_per_tok\":2,\"moe_intermediate_size\":40,"
                     "\"intermediate_size\":112,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,"
                     "\"mlp_only_layers\":[0]"),
           {},
           ".mlp.experts.",
           projections,
           1};
  add_ends(s.trunk);
  const Tensors attention =
      joined(gqa, {{"self_attn.q_norm.weight", {16}}, {"self_attn.k_norm.weight", {16}}});
  add_layer(s.trunk, 0, joined(attention, dense));
  for (std::uint32_t l = 1; l < layers; ++l) {
    add_layer(s.trunk, l, joined(attention, {{"mlp.gate.weight", {6, 64}}}));
  }
  return s;
}

Source qwen2() {
  Source s{"qwen2_moe",
           config_of("qwen2_moe", "Qwen2MoeForCausalLM",
                     ",\"num_key_value_heads\":2,\"num_experts\":6,\"num_experts_per_tok\":2,"
                     "\"moe_intermediate_size\":40,\"shared_expert_intermediate_size\":112,"
                     "\"intermediate_size\":112,\"norm_topk_prob\":false"),
           {},
           ".mlp.experts.",
           projections};
  add_ends(s.trunk);
  for (std::uint32_t l = 0; l < layers; ++l) {
    add_layer(s.trunk, l,
              joined(gqa, {{"self_attn.q_proj.bias", {64}},
                           {"self_attn.k_proj.bias", {32}},
                           {"self_attn.v_proj.bias", {32}},
                           {"mlp.gate.weight", {6, 64}},
                           {"mlp.shared_expert.gate_proj.weight", {112, 64}},
                           {"mlp.shared_expert.up_proj.weight", {112, 64}},
                           {"mlp.shared_expert.down_proj.weight", {64, 112}},
                           {"mlp.shared_expert_gate.weight", {1, 64}}}));
  }
  return s;
}

Source mixtral() {
  Source s{"mixtral",
           config_of("mixtral", "MixtralForCausalLM",
                     ",\"num_key_value_heads\":2,\"head_dim\":null,\"num_local_experts\":6,"
                     "\"num_experts_per_tok\":2,\"intermediate_size\":40,\"sliding_window\":null"),
           {},
           ".block_sparse_moe.experts.",
           {"w1", "w3", "w2"}};
  add_ends(s.trunk);
  for (std::uint32_t l = 0; l < layers; ++l) {
    add_layer(s.trunk, l, joined(gqa, {{"block_sparse_moe.gate.weight", {6, 64}}}));
  }
  return s;
}

Source deepseek(bool v3) {
  Source s{"deepseek",
           config_of(v3 ? "deepseek_v3" : "deepseek_v2",
                     v3 ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM",
                     std::string(",\"n_routed_experts\":6,\"num_experts_per_tok\":2,"
                                 "\"n_shared_experts\":2,\"moe_intermediate_size\":40,"
                                 "\"intermediate_size\":112,\"first_k_dense_replace\":1,"
                                 "\"moe_layer_freq\":1,\"kv_lora_rank\":24,\"qk_nope_head_dim\":16,"
                                 "\"qk_rope_head_dim\":8,\"v_head_dim\":12,"
                                 "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40},") +
                         (v3 ? "\"q_lora_rank\":32,\"topk_method\":\"noaux_tc\",\"n_group\":2,"
                               "\"topk_group\":1,\"num_nextn_predict_layers\":1"
                             : "\"q_lora_rank\":null,\"topk_method\":\"greedy\"")),
           {},
           ".mlp.experts.",
           projections,
           1};
  add_ends(s.trunk);
  Tensors attention = {{"self_attn.kv_a_proj_with_mqa.weight", {32, 64}},
                       {"self_attn.kv_a_layernorm.weight", {24}},
                       {"self_attn.kv_b_proj.weight", {112, 24}},
                       {"self_attn.o_proj.weight", {64, 48}}};
  attention = joined(attention, v3 ? Tensors{{"self_attn.q_a_proj.weight", {32, 64}},
                                             {"self_attn.q_a_layernorm.weight", {32}},
                                             {"self_attn.q_b_proj.weight", {96, 32}}}
                                   : Tensors{{"self_attn.q_proj.weight", {96, 64}}});
  add_layer(s.trunk, 0, joined(attention, dense));
  for (std::uint32_t l = 1; l < layers; ++l) {
    Tensors moe = {{"mlp.gate.weight", {6, 64}},
                   {"mlp.shared_experts.gate_proj.weight", {80, 64}},
                   {"mlp.shared_experts.up_proj.weight", {80, 64}},
                   {"mlp.shared_experts.down_proj.weight", {64, 80}}};
    if (v3) moe.push_back({"mlp.gate.e_score_correction_bias", {6}});
    add_layer(s.trunk, l, joined(attention, moe));
  }
  if (v3) {  // the head that predicts one token more, with experts of its own
    s.trunk.push_back({"model.layers.3.eh_proj.weight", {64, 128}});
    s.trunk.push_back({"model.layers.3.mlp.gate.weight", {6, 64}});
    s.trunk.push_back({"model.layers.3.mlp.experts.0.gate_proj.weight", {40, 64}});
  }
  return s;
}

std::vector<Source> all() {
  return {olmoe(), qwen3(), qwen2(), mixtral(), deepseek(false), deepseek(true)};
}

std::string expert_name(const Source& s, std::uint32_t l, std::uint32_t e, std::size_t kind) {
  return "model.layers." + std::to_string(l) + s.experts + std::to_string(e) + "." +
         s.matrices[kind] + ".weight";
}

std::vector<RawTensor> tensors_of(const Source& s) {
  Numbers numbers(7);
  std::vector<RawTensor> out;
  for (const auto& [name, shape] : s.trunk) out.push_back(bf16_tensor(name, shape, numbers));
  for (std::uint32_t l = s.first; l < layers; ++l) {
    for (std::uint32_t e = 0; e < experts; ++e) {
      for (std::size_t k = 0; k < 3; ++k) {
        const Shape shape = k < 2 ? Shape{rows, hidden} : Shape{hidden, rows};
        out.push_back(bf16_tensor(expert_name(s, l, e, k), shape, numbers));
      }
    }
  }
  return out;
}

fs::path write(const Source& s, const std::vector<RawTensor>& tensors) {
  const fs::path dir = scratch_dir("family-" + s.family);
  fs::create_directories(dir);
  write_file(dir / "config.json", s.config);
  write_file(dir / "model.safetensors", safetensors_bytes(tensors));
  return dir;
}

bool says(const Error& e, const std::string& text) {
  return std::string(e.what()).find(text) != std::string::npos;
}

convert::ConvertOptions fast() {
  convert::ConvertOptions options;
  options.effort = quant::Effort::fast;
  return options;
}

Error refused_config(Source s, const std::string& from, const std::string& to) {
  const auto at = s.config.find(from);
  REQUIRE(at != std::string::npos);
  s.config.replace(at, from.size(), to);
  const JsonValue config = parse_json(s.config, "config.json");
  return failure_of([&] { format::parse_model_config(config, "config.json"); });
}

}  // namespace

TEST_CASE("checkpoints of every family convert, read and verify") {
  for (const Source& s : all()) {
    INFO(s.config);
    const auto tensors = tensors_of(s);
    const fs::path source = write(s, tensors), dir = scratch_dir("family-container") / "out";
    REQUIRE(convert::convert(source, dir, fast()).complete);

    // The container says what it is by repeating the source's config, and nothing else.
    const Container c = Container::open(dir);
    CHECK(c.manifest().config == parse_json(s.config, "config.json"));
    CHECK(s.config.find("\"" + c.manifest().arch + "\"") != std::string::npos);
    CHECK(c.manifest().tensor_prefix.empty());
    CHECK(format::to_string(c.model().family) == s.family);
    CHECK(c.model().num_experts == experts);
    CHECK(c.model().num_experts_per_token == 2);
    CHECK(c.banks().size() == layers - s.first);

    // The trunk is every tensor that is no routed expert of the text model, under its own name.
    std::set<std::string> want, got;
    for (const auto& [name, shape] : s.trunk) want.insert(name);
    for (const auto& t : c.manifest().trunk) got.insert(t.name);
    CHECK(got == want);
    CHECK(c.trunk().is_resident("lm_head.weight"));
    CHECK_FALSE(c.trunk().is_resident("model.embed_tokens.weight"));

    // An expert decodes to what its name in the source holds.
    const auto read = c.bank(LayerId{layers - 1}).read(ExpertId{4});
    const VqMatrix* matrices[] = {&read.gate(), &read.up(), &read.down()};
    for (std::size_t k = 0; k < 3; ++k) {
      const std::string name = expert_name(s, layers - 1, 4, k);
      const auto raw = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const RawTensor& t) { return t.name == name; });
      const VqMatrix& w = *matrices[k];
      REQUIRE((w.rows() == raw->shape[0] && w.cols() == raw->shape[1]));
      double error = 0, norm = 0;
      std::vector<float> one(w.cols()), column(w.rows());
      for (std::size_t col = 0; col < w.cols(); ++col) {
        std::fill(one.begin(), one.end(), 0.0f);
        one[col] = 1.0f;
        matvec(w, one, column);
        for (std::size_t row = 0; row < w.rows(); ++row) {
          const float x =
              bf16_to_f32(load_le<std::uint16_t>(raw->bytes.data() + 2 * (row * w.cols() + col)));
          error += (x - column[row]) * (x - column[row]);
          norm += x * x;
        }
      }
      CHECK(error < 0.05 * norm);
    }

    convert::VerifyOptions options;
    options.source = source;
    const auto report = convert::verify(dir, options);
    CHECK(report.findings_total == 0);
    CHECK(report.compared);
    CHECK(report.records == experts * (layers - s.first));

    // The forward pass here is another family's, and says so.
    Error e = failure_of([&] { Session(c.model(), 8); });
    CHECK(e.code() == Errc::unsupported);
    CHECK(says(e, s.family));
    CHECK_THROWS_AS(engine::plan_memory(c.manifest(), {}), Error);
    const auto weights = std::make_shared<model::CheckpointWeights>(Checkpoint::open(source), 1, 0);
    e = failure_of([&] { TextModel model(weights); });
    CHECK(e.code() == Errc::unsupported);
    CHECK(says(e, s.family));
  }
}

TEST_CASE("a family's checkpoint has all of its tensors and no others") {
  for (const Source& s : all()) {
    INFO(s.config);
    const auto whole = tensors_of(s);
    for (const std::string& name :
         {s.trunk[1].first, s.trunk.front().first,
          std::string("model.layers.2.input_layernorm.weight"), expert_name(s, 2, 3, 1)}) {
      auto tensors = whole;
      std::erase_if(tensors, [&](const RawTensor& t) { return t.name == name; });
      const Error e = failure_of([&] { Checkpoint::open(write(s, tensors)); });
      CHECK(e.code() == Errc::missing);
      CHECK(says(e, name));
    }
    Numbers numbers(1);
    for (const std::string& name :
         {std::string("model.layers.1.self_attn.surprise.weight"), expert_name(s, 2, 6, 0),
          "model.layers.1" + s.experts + "3.w9.weight"}) {
      auto tensors = whole;
      tensors.push_back(bf16_tensor(name, {rows, hidden}, numbers));
      const Error e = failure_of([&] { Checkpoint::open(write(s, tensors)); });
      CHECK(e.code() == Errc::unsupported);
      CHECK(says(e, name));
    }
    for (const auto& [name, shape] : s.trunk) {
      if (shape.size() < 2 || name.starts_with("model.layers.3.")) continue;
      auto tensors = whole;
      for (RawTensor& t : tensors) {
        if (t.name == name) t = bf16_tensor(name, {shape[0] + 1, shape[1]}, numbers);
      }
      INFO(name);
      CHECK(failure_of([&] { Checkpoint::open(write(s, tensors)); }).code() == Errc::shape);
    }
  }
}

TEST_CASE("a tied head is the resident embedding table, stored again or not") {
  for (const bool stored : {false, true}) {
    Source s = olmoe();
    s.config.insert(s.config.size() - 1, ",\"tie_word_embeddings\":true");
    if (!stored) s.trunk.erase(s.trunk.begin() + 2);
    const fs::path dir = scratch_dir("family-tied") / "out";
    convert::convert(write(s, tensors_of(s)), dir, fast());
    const Container c = Container::open(dir);
    CHECK(c.trunk().is_resident("model.embed_tokens.weight"));
    CHECK(c.trunk().contains("lm_head.weight") == stored);
  }
}

TEST_CASE("what a container cannot hold of a family is refused by name") {
  const auto refused = [](const Source& s, const char* from, const char* to, Errc code,
                          const char* field) {
    INFO(to);
    const Error e = refused_config(s, from, to);
    CHECK(e.code() == code);
    CHECK(says(e, field));
  };
  refused(qwen3(), "[0]", "[1]", Errc::unsupported, "mlp_only_layers");
  refused(qwen3(), "[0]", "[0,0]", Errc::unsupported, "mlp_only_layers");
  refused(qwen3(), "[0]", "[2,1,0]", Errc::out_of_range, "mlp_only_layers");
  refused(qwen3(), "[0]", "[-1]", Errc::bad_field, "mlp_only_layers");
  refused(qwen3(), "step\":1", "step\":2", Errc::unsupported, "decoder_sparse_step");
  refused(qwen3(), "heads\":2", "heads\":3", Errc::mismatch, "num_key_value_heads");
  refused(qwen3(), "heads\":2", "heads\":0", Errc::out_of_range, "num_key_value_heads");
  Source wide = qwen3();
  wide.config.replace(wide.config.find("heads\":4"), 8, "heads\":32");
  refused(wide, "\"head_dim\":16", "\"head_dim\":65536", Errc::out_of_range, "num_attention_heads");
  refused(olmoe(), "silu", "gelu", Errc::unsupported, "hidden_act");
  refused(olmoe(), "hidden_size\":64", "hidden_size\":3", Errc::out_of_range, "head_dim");
  refused(olmoe(), "\"num_experts\":6", "\"num_experts\":65536", Errc::out_of_range, "num_experts");
  refused(olmoe(), "\"num_experts\":6,", "", Errc::missing, "num_experts");
  refused(mixtral(), "num_local_experts", "num_experts", Errc::missing, "num_local_experts");
  refused(deepseek(true), "freq\":1", "freq\":2", Errc::unsupported, "moe_layer_freq");
  refused(deepseek(true), "n_shared_experts\":2", "n_shared_experts\":1025", Errc::out_of_range,
          "n_shared_experts");
  refused(deepseek(true), "moe_intermediate_size\":40", "moe_intermediate_size\":1048576",
          Errc::out_of_range, "n_shared_experts");
  refused(deepseek(true), "\"moe_layer_freq\":1", "\"attention_bias\":true", Errc::unsupported,
          "attention_bias");
  refused(deepseek(true), "replace\":1", "replace\":3", Errc::out_of_range,
          "first_k_dense_replace");
  refused(qwen2(), "\"shared_expert_intermediate_size\":112,", "", Errc::missing,
          "shared_expert_intermediate_size");
}

TEST_CASE("DeepSeek's router has a bias where its choice is made with one") {
  const auto biased = [](Source s, const std::string& method, const std::string& instead) {
    const auto at = s.config.find(method);
    REQUIRE(at != std::string::npos);
    s.config.replace(at, method.size(), instead);
    return format::parse_model_config(parse_json(s.config, "config"), "config").router_bias;
  };
  const std::string greedy = "\"topk_method\":\"greedy\"", bias = "\"topk_method\":\"noaux_tc\"";
  CHECK_FALSE(biased(deepseek(false), greedy, greedy));
  CHECK_FALSE(biased(deepseek(false), greedy, "\"x\":0"));
  CHECK(biased(deepseek(false), greedy, bias));
  CHECK(biased(deepseek(true), bias, bias));
  CHECK(biased(deepseek(true), bias, "\"x\":0"));
  CHECK_FALSE(biased(deepseek(true), bias, greedy));
}

TEST_CASE("a SentencePiece model is not taken for a list of ranks") {
  const Source s = mixtral();
  const fs::path source = write(s, tensors_of(s));
  write_file(source / "tokenizer.model", "\n\x0e\n\x05<unk>");
  CHECK(convert::side_files(Checkpoint::open(source)).empty());
  write_file(source / "tiktoken.model", "YQ== 0\n");
  CHECK(convert::side_files(Checkpoint::open(source)).front().bytes == "YQ== 0\n");
}

TEST_CASE("the routers of every family follow --router") {
  convert::ConvertOptions options;
  options.router = convert::RouterFormat::q8g;
  for (const char* name :
       {"model.layers.1.mlp.gate.weight", "model.layers.1.block_sparse_moe.gate.weight"}) {
    const convert::TrunkSource router{name, {128, 2048}};
    CHECK(convert::trunk_format(router, options) == format::Fmt::q8g);
    CHECK(convert::trunk_format(router, {}) == format::Fmt::q4g);
  }
  const convert::TrunkSource gate{"model.layers.1.mlp.gate_proj.weight", {128, 2048}};
  CHECK(convert::trunk_format(gate, options) == format::Fmt::q4g);
}
