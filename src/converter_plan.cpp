#include <algorithm>

#include "converter_internal.hpp"
#include "waste/core/checked.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/family.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/io/crc32.hpp"
#include "waste/version.hpp"

namespace waste::convert {
namespace {

constexpr std::uint64_t smallest_quantized = 65536;
constexpr std::size_t default_sample_vectors = 300000;
constexpr std::uint32_t default_sample_experts = 12;

const char* name_of(quant::Effort e) {
  switch (e) {
    case quant::Effort::fast:
      return "fast";
    case quant::Effort::standard:
      return "default";
    case quant::Effort::best:
      return "best";
  }
  return "unknown";
}

const char* name_of(RouterFormat r) {
  switch (r) {
    case RouterFormat::follow:
      return "follow";
    case RouterFormat::f32:
      return "f32";
    case RouterFormat::q8g:
      return "q8";
    case RouterFormat::q4g:
      return "q4";
  }
  return "unknown";
}

std::uint32_t crc_of(const std::string& text) {
  return io::crc32({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

bool is_router(std::string_view name) noexcept {
  return std::any_of(
      std::begin(format::families), std::end(format::families),
      [&](const format::FamilyNames& family) { return name.ends_with(family.moe.router); });
}

bool smaller_than_f32(format::Fmt fmt, std::uint64_t cols) {
  return format::trunk_row_bytes(fmt, cols) + format::trunk_row_scale_bytes(fmt, cols) < 4 * cols;
}

}  // namespace

format::Fmt trunk_format(const TrunkSource& tensor, const ConvertOptions& options) noexcept {
  using format::Fmt;
  if (tensor.shape.size() <= 1 || tensor.elements() < smallest_quantized) return Fmt::f32;
  Fmt fmt = options.trunk_bits == 8 ? Fmt::q8g : (options.trunk_bits == 3 ? Fmt::q3g : Fmt::q4g);
  const std::string_view name = tensor.name;
  if (name.ends_with("embed_tokens.weight") || name.ends_with("lm_head.weight") ||
      tensor.role != Role::text) {
    fmt = Fmt::q8g;
  } else if (is_router(name)) {
    if (options.router == RouterFormat::f32) return Fmt::f32;
    if (options.router == RouterFormat::q8g) fmt = Fmt::q8g;
    if (options.router == RouterFormat::q4g) fmt = Fmt::q4g;
  }
  return smaller_than_f32(fmt, tensor.cols()) ? fmt : Fmt::f32;
}

io::ContainerPlan container_plan(const Checkpoint& source, const ConvertOptions& options) {
  io::ContainerPlan plan;
  plan.arch = source.arch();
  plan.tensor_prefix = source.prefix();
  plan.config = source.container_config();
  plan.expert_quant = options.quant;
  plan.substitutes = options.substitutes;
  for (const TrunkSource& t : source.trunk()) {
    format::TrunkEntry entry;
    entry.name = t.name;
    entry.fmt = trunk_format(t, options);
    entry.shape = t.shape;
    plan.trunk.push_back(std::move(entry));
  }
  return plan;
}

namespace detail {

unsigned jobs_of(const ConvertOptions& options) {
  return options.jobs == 0 ? available_threads() : options.jobs;
}

SampleShape sample_shape(const format::ModelConfig& model, const ConvertOptions& options) {
  const format::ExpertShape shape = model.expert_shape();
  const std::size_t per_matrix = shape.inter * shape.width / format::vec_dim;
  SampleShape out;
  out.experts = options.codebook_sample;
  if (out.experts == 0) {
    const std::size_t enough = ceil_div(default_sample_vectors, per_matrix);
    out.experts = static_cast<std::uint32_t>(
        std::max<std::size_t>(default_sample_experts, std::min<std::size_t>(enough, 65535)));
  }
  out.experts = std::min(out.experts, model.num_experts);
  out.vectors = std::min(per_matrix, ceil_div<std::size_t>(default_sample_vectors, out.experts));
  return out;
}

JsonValue plan_of(const Checkpoint& source, const ConvertOptions& options,
                  const CalibrationFile* calibration) {
  JsonValue plan;
  plan.set("waste", version_string);
  JsonValue& fmt = plan;
  fmt.set("format", format::to_string(options.quant.fmt));
  fmt.set("stages", options.quant.stages);
  fmt.set("entries", options.quant.entries);
  fmt.set("index_block", options.quant.index_block);
  fmt.set("effort", name_of(options.effort));
  fmt.set("trunk_bits", static_cast<std::uint32_t>(options.trunk_bits));
  fmt.set("trunk_scale", options.trunk_scale == quant::GroupScale::search ? "search" : "absmax");
  fmt.set("router", name_of(options.router));
  fmt.set("cb_sample", options.codebook_sample);
  fmt.set("seed", options.seed);
  fmt.set("calibration", calibration ? JsonValue(calibration->identity()) : JsonValue());
  fmt.set("substitutes", options.substitutes);
  fmt.set("damping", calibration ? JsonValue(options.damping) : JsonValue());
  plan.set("source config", crc_of(dump_json(source.raw_config())));
  JsonValue shards;
  for (const io::Safetensors::Shard& s : source.files().shards()) {
    JsonValue shard;
    shard.set("bytes", s.identity.size);
    shard.set("mtime_ns", s.identity.mtime_ns);
    shard.set("header_crc32", s.header_crc32);
    shards.set(s.name, std::move(shard));
  }
  plan.set("source", std::move(shards));
  return plan;
}

void require_same_plan(const JsonValue& there, const JsonValue& wanted, std::string_view file) {
  const auto differ = [&](const std::string& what, const JsonValue* a, const JsonValue* b) {
    throw Error(fault(Errc::mismatch, "plan"), file,
                what + ": the unfinished conversion has " + (a ? dump_json(*a) : "none") +
                    ", this one " + (b ? dump_json(*b) : "none"));
  };
  if (!there.is_object()) throw Error(fault(Errc::bad_field, "plan"), file, "wanted an object");
  for (const auto& [key, value] : *wanted.as_object()) {
    const JsonValue* other = there.find(key);
    if (other && *other == value) continue;
    if (key == "source" && other && other->is_object()) {
      for (const auto& [name, shard] : *value.as_object()) {
        const JsonValue* was = other->find(name);
        if (!was || *was != shard) differ("shard " + name, was, &shard);
      }
    }
    differ(key, other, &value);
  }
  if (there.as_object()->size() != wanted.as_object()->size()) {
    throw Error(fault(Errc::mismatch, "plan"), file, "written by another version");
  }
}

}  // namespace detail
}  // namespace waste::convert
