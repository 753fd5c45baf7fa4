#include "json_of.hpp"

namespace waste::cli {

JsonValue plan_json(const engine::MemoryPlan& plan, std::uint64_t context_tokens) {
  JsonValue out;
  out.set("context_tokens", context_tokens);
  out.set("trunk_bytes", plan.trunk_bytes);
  out.set("codebook_bytes", plan.codebook_bytes);
  out.set("substitute_bytes", plan.substitute_bytes);
  out.set("kda_state_bytes", plan.kda_state_bytes);
  out.set("mla_state_bytes", plan.mla_state_bytes);
  out.set("scratch_bytes", plan.scratch_bytes);
  out.set("prompt_bytes", plan.prompt_bytes);
  out.set("program_bytes", plan.program_bytes);
  out.set("record_bytes", plan.record_bytes);
  out.set("held_records", plan.held_records);
  out.set("floor_records", plan.floor_records);
  out.set("floor_bytes", plan.floor_bytes());
  out.set("working_set_records", plan.working_set_records);
  out.set("working_set_bytes", plan.working_set_bytes());
  out.set("recommended_bytes", plan.recommended_bytes());
  out.set("everything_bytes", plan.everything_bytes());
  return out;
}

JsonValue experts_error_json(const convert::VerifyReport& report) {
  JsonValue out(JsonValue::Array{});
  for (const convert::LayerError& e : report.experts_error) {
    JsonValue one;
    one.set("layer", e.layer);
    one.set("kind", to_string(e.kind));
    one.set("relative_error", e.stats.relative_error());
    one.set("worst", e.worst);
    one.set("worst_expert", e.worst_expert);
    out.push_back(std::move(one));
  }
  return out;
}

JsonValue trunk_error_json(const convert::VerifyReport& report) {
  JsonValue out(JsonValue::Array{});
  for (const convert::TensorError& t : report.trunk_error) {
    JsonValue one;
    one.set("name", t.name);
    one.set("format", to_string(t.fmt));
    one.set("relative_error", t.stats.relative_error());
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace waste::cli
