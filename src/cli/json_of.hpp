// JSON of what more than one command prints.
#pragma once

#include <cstdint>

#include "waste/convert/verify.hpp"
#include "waste/engine/memory_plan.hpp"
#include "waste/format/json.hpp"

namespace waste::cli {

/// {context_tokens, trunk_bytes, ..., floor_bytes, ..., everything_bytes}.
JsonValue plan_json(const engine::MemoryPlan& plan, std::uint64_t context_tokens);
/// [{layer, kind, relative_error, worst, worst_expert}, ...].
JsonValue experts_error_json(const convert::VerifyReport& report);
/// [{name, format, relative_error}, ...].
JsonValue trunk_error_json(const convert::VerifyReport& report);

}  // namespace waste::cli
