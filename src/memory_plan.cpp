#include "waste/engine/memory_plan.hpp"

#include <algorithm>

#include "waste/core/checked.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/codebook.hpp"
#include "waste/format/family.hpp"
#include "waste/io/substitutes.hpp"
#include "waste/io/trunk_file.hpp"

namespace waste::engine {
namespace {

constexpr std::uint64_t program_bytes = 7u << 20;
constexpr std::uint64_t thread_bytes = 128u << 10;
constexpr std::uint64_t longest_context = std::uint64_t{1} << 28;

std::uint64_t table_bytes(const format::ExpertQuant& q, std::uint64_t cols) noexcept {
  return cols / format::vec_dim * q.stages * (std::uint64_t{1} << q.index_bits) * sizeof(float);
}

std::size_t most_prompt_tokens(bool fast_prompt) noexcept { return fast_prompt ? 512 : 32; }

/// Activations of one token, in floats.
std::uint64_t activations(const format::ModelConfig& m) noexcept {
  const std::uint64_t heads = m.num_attention_heads;
  const std::uint64_t kda = 8 * std::uint64_t{m.kda_channels()};
  const std::uint64_t mla = heads * (2 * m.qk_head_dim() + 2 * m.v_head_dim + 2 * m.kv_lora_rank);
  const std::uint64_t shared = std::uint64_t{m.num_shared_experts} * m.moe_intermediate_size;
  const std::uint64_t ffn = 3 * std::max<std::uint64_t>(m.intermediate_size, shared);
  const std::uint64_t blocks =
      m.attn_res_block_size ? ceil_div(m.num_hidden_layers, *m.attn_res_block_size) : 0;
  return (8 + blocks) * std::uint64_t{m.hidden_size} + std::max(kda, mla) + ffn +
         2 * std::uint64_t{m.num_experts};
}

std::uint64_t scratch_bytes(const format::Manifest& manifest, const PlanOptions& options,
                            std::uint64_t held_records) {
  const format::ModelConfig& m = manifest.model;
  const std::uint64_t per_thread =
      3 * std::uint64_t{m.moe_intermediate_size} + m.expert_width() + options.context_tokens;
  const std::uint64_t floats = m.vocab_size + activations(m) + options.threads * per_thread;
  return floats * sizeof(float) + 2 * table_bytes(manifest.expert_quant, m.expert_width()) +
         held_records * table_bytes(manifest.expert_quant, m.moe_intermediate_size);
}

}  // namespace

std::uint64_t prompt_token_bytes(const format::ModelConfig& model, const format::ExpertQuant& quant,
                                 bool fast_prompt) {
  // The outputs of a token's experts; where they are decoded, also what goes through one of them.
  std::uint64_t floats = activations(model) +
                         std::uint64_t{model.num_experts_per_token} * model.expert_width() +
                         2 * std::uint64_t{model.expert_width()};
  if (fast_prompt) {
    floats += 2 * (std::uint64_t{model.expert_width()} + model.moe_intermediate_size);
    return floats * sizeof(float);
  }
  return floats * sizeof(float) + 2 * table_bytes(quant, model.expert_width());
}

std::size_t prompt_tokens(const format::ModelConfig& model, const format::ExpertQuant& quant,
                          bool fast_prompt, std::uint64_t bytes) {
  const std::uint64_t more = bytes / prompt_token_bytes(model, quant, fast_prompt);
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(more + 1, most_prompt_tokens(fast_prompt)));
}

MemoryPlan plan_memory(const format::Manifest& manifest, const PlanOptions& options) {
  if (options.context_tokens < 1 || options.context_tokens > longest_context) {
    throw Error(fault(Errc::out_of_range, "context", options.context_tokens,
                      options.context_tokens < 1 ? 1 : longest_context));
  }
  const format::ModelConfig& m = manifest.model;
  format::require_kimi(m, "the memory plan");
  const format::ExpertQuant& q = manifest.expert_quant;
  MemoryPlan out;
  out.trunk_bytes = io::Trunk::resident_bytes(manifest);
  out.codebook_bytes = std::uint64_t{m.moe_layers()} * format::codebooks_per_layer(q) *
                       (std::uint64_t{1} << q.index_bits) * format::vec_dim * sizeof(float);
  if (options.substitutes) out.substitute_bytes = io::substitute_bytes(manifest);
  const auto kda_layers = static_cast<std::uint64_t>(
      std::count(m.attention.begin(), m.attention.end(), format::AttentionKind::kda));
  const std::uint64_t c = m.kda_channels();
  CheckedSize kda(c);
  kda.mul(m.kda_head_dim).add(3 * c * (m.short_conv_kernel_size - 1)).mul(kda_layers);
  kda.mul(sizeof(float));
  CheckedSize mla(options.context_tokens);
  mla.mul(m.kv_lora_rank + m.qk_rope_head_dim).mul(m.num_hidden_layers - kda_layers);
  mla.mul(sizeof(float));
  if (!kda.ok() || !mla.ok()) throw Error(fault(Errc::overflow, "state"));
  out.kda_state_bytes = kda.value();
  out.mla_state_bytes = mla.value();
  out.held_records = options.threads;
  if (shares_badly(m.num_experts_per_token, options.threads)) {
    out.held_records = std::max<std::uint64_t>(options.threads, m.num_experts_per_token);
  }
  out.scratch_bytes = scratch_bytes(manifest, options, out.held_records);
  const std::uint64_t weights = out.trunk_bytes + out.codebook_bytes;
  out.prompt_bytes = std::min(
      (most_prompt_tokens(options.fast_prompt) - 1) * prompt_token_bytes(m, q, options.fast_prompt),
      options.prompt_bytes != 0 ? options.prompt_bytes : weights / 32);
  out.program_bytes = program_bytes + options.threads * thread_bytes;
  out.record_bytes = manifest.layout.record_bytes;
  out.working_set_records = std::uint64_t{m.num_experts_per_token} * m.moe_layers();
  out.all_records = std::uint64_t{m.num_experts} * m.moe_layers();
  out.floor_records = std::max(2 * std::uint64_t{m.num_experts_per_token},
                               std::min(out.held_records, out.all_records));
  return out;
}

BudgetUse use_of_budget(const MemoryPlan& plan, std::uint64_t budget_bytes) noexcept {
  BudgetUse out;
  if (budget_bytes > plan.fixed_bytes()) out.cache_bytes = budget_bytes - plan.fixed_bytes();
  out.runs = budget_bytes >= plan.floor_bytes();
  if (!out.runs) out.missing_bytes = plan.floor_bytes() - budget_bytes;
  out.cache_records = std::min(out.cache_bytes / plan.record_bytes, plan.all_records);
  out.working_sets =
      static_cast<double>(out.cache_records) / static_cast<double>(plan.working_set_records);
  out.share = static_cast<double>(out.cache_records) / static_cast<double>(plan.all_records);
  return out;
}

StreamingCost cost_of_streaming(const MemoryPlan& plan, double hit_rate, double disk_rate,
                                double compute_seconds) noexcept {
  StreamingCost out;
  out.hit_rate = hit_rate;
  out.read_bytes = (1.0 - hit_rate) * static_cast<double>(plan.working_set_bytes());
  out.read_seconds = out.read_bytes / disk_rate;
  const double seconds = std::max(out.read_seconds, compute_seconds);
  out.tokens_per_second = seconds > 0 ? 1.0 / seconds : 0;
  return out;
}

std::optional<std::uint64_t> automatic_budget(const MemoryPlan& plan,
                                              std::uint64_t usable_bytes) noexcept {
  const std::uint64_t most = usable_bytes / 4 * 3;
  if (plan.everything_bytes() <= most) {
    return std::max(plan.everything_bytes(), plan.floor_bytes());
  }
  for (std::uint64_t sets = 4; sets-- > 0;) {
    if (plan.with_working_sets(sets) <= most) return plan.with_working_sets(sets);
  }
  return std::nullopt;
}

}  // namespace waste::engine
