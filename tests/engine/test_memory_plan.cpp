// Memory plans: against hand-computed sums and the published figures of the two real models.
#include <string>

#include "support/catch.hpp"
#include "support/tiny_container.hpp"
#include "waste/engine/memory_plan.hpp"
#include "waste/format/trunk_view.hpp"

namespace {

using namespace waste;
using engine::automatic_budget;
using engine::MemoryPlan;
using engine::plan_memory;
using engine::PlanOptions;
using Json = nlohmann::ordered_json;

format::Manifest tiny(const test::TinySpec& spec) {
  return format::parse_manifest(test::make_tiny(spec).manifest.dump(), "m");
}

/// A manifest of a real model: its config, every required tensor in the default trunk formats.
format::Manifest real_model(const Json& config) {
  format::Manifest m;
  m.model = format::parse_model_config(parse_json(config.dump(), "c"), "c");
  m.expert_quant = format::vq3r;
  REQUIRE(format::derive_layout(m.expert_quant, m.model.expert_shape(), m.layout).ok());
  for (const format::RequiredTensor& t : format::required_tensors(m.model)) {
    format::TrunkEntry entry;
    entry.name = t.name;
    entry.shape = t.shape;
    const bool small = t.shape.size() == 1 || *format::elements(t.shape) < 65536;
    const bool end = t.name == "lm_head.weight" || t.name == "model.embed_tokens.weight";
    entry.fmt = small ? format::Fmt::f32 : end ? format::Fmt::q8g : format::Fmt::q4g;
    entry.bytes = format::trunk_sizes(entry.fmt, entry.rows(), entry.cols()).total();
    m.trunk.push_back(entry);
  }
  return m;
}

Json layers(int n, int step, bool full) {
  Json out = Json::array();
  for (int l = 1; l <= n; ++l) {
    if ((l % step == 0 || l == n) == full) out.push_back(l);
  }
  return out;
}

Json kimi_linear() {
  return {{"vocab_size", 163840},
          {"hidden_size", 2304},
          {"intermediate_size", 9216},
          {"num_hidden_layers", 27},
          {"first_k_dense_replace", 1},
          {"rms_norm_eps", 1e-5},
          {"num_attention_heads", 32},
          {"q_lora_rank", nullptr},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"mla_use_nope", true},
          {"num_experts", 256},
          {"num_experts_per_token", 8},
          {"num_shared_experts", 1},
          {"moe_intermediate_size", 1024},
          {"hidden_act", "silu"},
          {"routed_scaling_factor", 2.446},
          {"linear_attn_config",
           {{"num_heads", 32},
            {"head_dim", 128},
            {"short_conv_kernel_size", 4},
            {"kda_layers", layers(27, 4, false)},
            {"full_attn_layers", layers(27, 4, true)}}}};
}

Json k3() {
  Json c = kimi_linear();
  c["hidden_size"] = 7168;
  c["intermediate_size"] = 33792;
  c["num_hidden_layers"] = 93;
  c["num_attention_heads"] = 96;
  c["q_lora_rank"] = 1536;
  c["mla_use_output_gate"] = true;
  c["num_experts"] = 896;
  c["num_experts_per_token"] = 16;
  c["num_shared_experts"] = 2;
  c["moe_intermediate_size"] = 3072;
  c["routed_expert_hidden_size"] = 3584;
  c["latent_moe_use_norm"] = true;
  c["hidden_act"] = "situ";
  c["attn_res_block_size"] = 12;
  c["linear_attn_config"] = {{"num_heads", 96},
                             {"head_dim", 128},
                             {"short_conv_kernel_size", 4},
                             {"kda_layers", layers(93, 4, false)},
                             {"full_attn_layers", layers(93, 4, true)},
                             {"use_full_rank_gate", true},
                             {"gate_lower_bound", -5.0}};
  return c;
}

TEST_CASE("the published figures of Kimi-Linear and K3 come out", "[plan]") {
  const MemoryPlan k = plan_memory(real_model(k3()));
  CHECK(k.record_bytes == 12406784);
  // The published gigabytes are 2^30 bytes.
  const auto gib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1u << 30); };
  CHECK(gib(k.trunk_bytes) == Approx(27.28).epsilon(0.0003));
  CHECK(gib(k.working_set_bytes()) == Approx(17.0).epsilon(0.003));
  CHECK(k.working_set_bytes() == 16ull * 92 * 12406784);
  // The C engine's own scratch is in its floors of 29.06 and 1.28, so those bound from above.
  CHECK(gib(k.floor_bytes()) < 29.06);
  CHECK(gib(k.floor_bytes()) > 28.0);
  CHECK(static_cast<double>(k.kda_state_bytes) / (1 << 20) == Approx(414 + 69 * 0.421875));
  const MemoryPlan l = plan_memory(real_model(kimi_linear()));
  CHECK(l.record_bytes == 2666496);
  CHECK(gib(l.floor_bytes()) < 1.28);
  CHECK(gib(l.floor_bytes()) > 1.0);
  CHECK(l.working_set_records == 208);
}

TEST_CASE("a plan is the sum of its parts", "[plan]") {
  PlanOptions options;
  options.context_tokens = 100;
  const MemoryPlan p = plan_memory(tiny(test::TinySpec{}), options);
  // Three KDA layers of 3 heads of 16: state 3*16*16, rings 3*48*3 floats.
  CHECK(p.kda_state_bytes == 3 * 4 * (3 * 16 * 16 + 3 * 48 * 3));
  CHECK(p.mla_state_bytes == 4 * 100 * (32 + 8));
  CHECK(p.codebook_bytes == 3 * 9 * 256 * 8 * 4);
  CHECK(p.floor_records == 4);
  CHECK(p.working_set_records == 6);
  CHECK(p.all_records == 15);
  CHECK(p.record_bytes == 24576);
  CHECK(p.floor_bytes() == p.trunk_bytes + p.codebook_bytes + p.kda_state_bytes +
                               p.mla_state_bytes + p.scratch_bytes + p.prompt_bytes +
                               p.program_bytes + 4 * 24576);
  CHECK(p.program_bytes == (7 << 20) + (128 << 10));
  CHECK(p.recommended_bytes() == p.floor_bytes() + 3 * 6 * 24576);
  CHECK(p.everything_bytes() == p.fixed_bytes() + 15 * 24576);
  // Tables of the two inputs and of one thread's down product, and no more than a few vectors.
  const std::uint64_t tables = (2 * 20 + 9) * 3 * 256 * 4;
  CHECK(p.scratch_bytes > tables);
  CHECK(p.scratch_bytes < tables + 64 * 1024);
}

TEST_CASE("a prompt's chunk stays within its memory, and that within the weights'", "[plan]") {
  const auto m = tiny(test::TinySpec{});
  const std::uint64_t each = engine::prompt_token_bytes(m.model, m.expert_quant, false);
  const std::uint64_t fast = engine::prompt_token_bytes(m.model, m.expert_quant, true);
  // Tables of gate and up, and the outputs of two experts, of width 160.
  CHECK(each > 2 * 20 * 3 * 256 * 4 + 2 * 160 * 4);
  CHECK(fast > 2 * 160 * 4);
  CHECK(fast < 64 * 1024);
  CHECK(engine::prompt_tokens(m.model, m.expert_quant, false, 0) == 1);
  CHECK(engine::prompt_tokens(m.model, m.expert_quant, false, 5 * each - 1) == 5);
  CHECK(engine::prompt_tokens(m.model, m.expert_quant, false, 5 * each) == 6);
  CHECK(engine::prompt_tokens(m.model, m.expert_quant, false, 1000 * each) == 32);
  CHECK(engine::prompt_tokens(m.model, m.expert_quant, true, 1000 * each) == 512);

  PlanOptions options;
  const MemoryPlan p = plan_memory(m, options);
  CHECK(p.prompt_bytes == (p.trunk_bytes + p.codebook_bytes) / 32);
  options.prompt_bytes = 3 * each;
  const MemoryPlan more = plan_memory(m, options);
  CHECK(more.prompt_bytes == 3 * each);
  CHECK(more.floor_bytes() == p.floor_bytes() + 3 * each - p.prompt_bytes);
  options.prompt_bytes = std::uint64_t{1} << 50;
  CHECK(plan_memory(m, options).prompt_bytes == 31 * each);
  options.fast_prompt = true;
  CHECK(plan_memory(m, options).prompt_bytes == 511 * fast);
}

TEST_CASE("threads that share experts' rows hold a token's experts, and the floor has them",
          "[plan]") {
  const auto m = tiny(test::TinySpec{});  // two experts a token
  const std::uint64_t held[] = {1, 2, 3, 4, 5};
  for (unsigned threads = 1; threads <= 5; ++threads) {
    PlanOptions options;
    options.threads = threads;
    const MemoryPlan p = plan_memory(m, options);
    CHECK(p.held_records == held[threads - 1]);
    CHECK(p.floor_records == std::max<std::uint64_t>(4, threads));
  }
  const auto three = [](unsigned threads) {
    test::TinySpec spec;
    spec.top_k = 3;
    PlanOptions options;
    options.threads = threads;
    return plan_memory(tiny(spec), options).held_records;
  };
  CHECK(three(1) == 1);
  CHECK(three(2) == 3);
  CHECK(three(3) == 3);
  CHECK(three(4) == 4);
  PlanOptions many;
  many.threads = 200;
  CHECK(plan_memory(m, many).floor_records == 15);  // there are no more
}

TEST_CASE("the context only moves the attention caches", "[plan]") {
  const auto m = tiny(test::TinySpec::kimi_k3());
  PlanOptions small, large;
  small.context_tokens = 1;
  large.context_tokens = 1 << 20;
  const MemoryPlan a = plan_memory(m, small), b = plan_memory(m, large);
  CHECK(b.mla_state_bytes == a.mla_state_bytes << 20);
  CHECK(b.kda_state_bytes == a.kda_state_bytes);
  CHECK(b.trunk_bytes == a.trunk_bytes);
  for (const std::uint64_t bad : {std::uint64_t{0}, (std::uint64_t{1} << 28) + 1}) {
    PlanOptions o;
    o.context_tokens = bad;
    try {
      plan_memory(m, o);
      FAIL("planned");
    } catch (const Error& e) {
      CHECK(e.code() == Errc::out_of_range);
      CHECK(std::string(e.fault().field) == "context");
    }
  }
}

TEST_CASE("a budget buys whole records", "[plan]") {
  const MemoryPlan p = plan_memory(tiny(test::TinySpec{}));
  const auto below = engine::use_of_budget(p, p.floor_bytes() - 1);
  CHECK_FALSE(below.runs);
  CHECK(below.missing_bytes == 1);
  CHECK(engine::use_of_budget(p, 0).missing_bytes == p.floor_bytes());
  CHECK(engine::use_of_budget(p, 0).cache_records == 0);
  const auto floor = engine::use_of_budget(p, p.floor_bytes());
  CHECK(floor.runs);
  CHECK(floor.missing_bytes == 0);
  CHECK(floor.cache_records == 4);
  CHECK(engine::use_of_budget(p, p.floor_bytes() + 24575).cache_records == 4);
  const auto six = engine::use_of_budget(p, p.fixed_bytes() + 6 * 24576);
  CHECK(six.cache_records == 6);
  CHECK(six.working_sets == 1.0);
  CHECK(six.share == 0.4);
  CHECK(engine::use_of_budget(p, std::uint64_t{1} << 60).cache_records == 15);
}

TEST_CASE("the automatic budget takes what three quarters of the memory hold", "[plan]") {
  MemoryPlan p;
  p.trunk_bytes = 1000000;
  p.record_bytes = 1000;
  p.floor_records = 4;
  p.working_set_records = 10;
  p.all_records = 100;
  const auto usable = [](std::uint64_t budget) { return (budget + 2) / 3 * 4 + 4; };
  CHECK(automatic_budget(p, usable(p.everything_bytes())) == p.everything_bytes());
  CHECK(automatic_budget(p, usable(p.everything_bytes() - 5000)) == p.with_working_sets(3));
  CHECK(automatic_budget(p, usable(p.recommended_bytes())) == p.recommended_bytes());
  CHECK(automatic_budget(p, usable(p.recommended_bytes() - 10)) == p.with_working_sets(2));
  CHECK(automatic_budget(p, usable(p.with_working_sets(1))) == p.with_working_sets(1));
  CHECK(automatic_budget(p, usable(p.floor_bytes())) == p.floor_bytes());
  CHECK_FALSE(automatic_budget(p, usable(p.floor_bytes() - 10)));
  CHECK_FALSE(automatic_budget(p, 0));
  // A model whose experts are fewer than the floor wants still gets the floor.
  p.all_records = 2;
  CHECK(automatic_budget(p, usable(p.floor_bytes())) == p.floor_bytes());
}

TEST_CASE("streaming costs a token its misses, or its computing", "[plan]") {
  // K3: 16 of 92 layers' experts a token, 12,406,784 bytes each; a disk of 12.8 GB/s.
  const MemoryPlan k = plan_memory(real_model(k3()));
  const auto half = engine::cost_of_streaming(k, 0.5, 12.8e9);
  CHECK(half.read_bytes == 736.0 * 12406784);
  CHECK(half.read_seconds == Approx(0.71339008));
  CHECK(half.tokens_per_second == Approx(1.40176));
  CHECK(engine::cost_of_streaming(k, 0.5, 12.8e9, 2.0).tokens_per_second == 0.5);
  CHECK(engine::cost_of_streaming(k, 1.0, 12.8e9, 0.25).tokens_per_second == 4.0);
  CHECK(engine::cost_of_streaming(k, 1.0, 12.8e9).tokens_per_second == 0.0);  // nothing to go by
}

}  // namespace
