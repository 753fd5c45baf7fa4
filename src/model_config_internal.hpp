// What reading the configs of different families shares.
#pragma once

#include <string_view>
#include <vector>

#include "waste/format/json_fields.hpp"
#include "waste/format/manifest.hpp"

namespace waste::format::detail {

/// Refuses a product of dimensions (a row or column count of some tensor) beyond the limit.
void bound_product(const char* field, std::uint64_t a, std::uint64_t b, std::string_view file);
/// Heads, ranks and head dimensions of multi-head latent attention.
void read_mla(const JsonFields& in, ModelConfig& m);
void read_token_ids(const JsonFields& in, ModelConfig& m);

/// parse_model_config and required_tensors of every family but kimi.
ModelConfig parse_other_family(Family family, const JsonFields& in);
std::vector<RequiredTensor> other_required_tensors(const ModelConfig& m);

}  // namespace waste::format::detail
