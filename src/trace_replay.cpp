#include "waste/engine/trace_replay.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "waste/engine/expert_cache.hpp"
#include "waste/io/container_writer.hpp"

namespace waste::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t width = 8;  ///< of every dimension of the small container

/// Small Kimi-Linear: all layers MLA and with experts.
JsonValue small_config(const RoutingTrace& trace) {
  std::size_t most = 1;
  for (const auto& chosen : trace.choices) most = std::max(most, chosen.size());
  std::string text = "{";
  const auto set = [&](const char* field, const std::string& value) {
    text += '"' + std::string(field) + "\": " + value + ", ";
  };
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "kv_lora_rank", "qk_nope_head_dim",
        "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size"}) {
    set(field, std::to_string(width));
  }
  for (const char* field : {"num_attention_heads", "num_shared_experts", "routed_scaling_factor"}) {
    set(field, "1");
  }
  set("num_hidden_layers", std::to_string(trace.layers));
  set("num_experts", std::to_string(trace.experts));
  set("num_experts_per_token", std::to_string(most));
  set("rms_norm_eps", "1e-5");
  set("q_lora_rank", "null");
  set("mla_use_nope", "true");
  set("hidden_act", "\"silu\"");
  text += "\"linear_attn_config\": {\"num_heads\": 1, \"head_dim\": " + std::to_string(width) +
          ", \"short_conv_kernel_size\": 2, \"kda_layers\": [], \"full_attn_layers\": [1";
  for (std::size_t l = 2; l <= trace.layers; ++l) text += ", " + std::to_string(l);
  return parse_json(text + "]}}", "replay");
}

void write_small(const fs::path& directory, const RoutingTrace& trace) {
  io::ContainerPlan plan;
  plan.arch = "replay";
  plan.config = small_config(trace);
  plan.expert_quant = format::vq2r;
  const format::ModelConfig model = format::parse_model_config(plan.config, "replay");
  for (const format::RequiredTensor& t : format::required_tensors(model)) {
    format::TrunkEntry entry;
    entry.name = t.name;
    entry.shape = t.shape;
    plan.trunk.push_back(std::move(entry));
  }
  io::ContainerWriter writer(directory, plan);
  const format::ExpertQuant& q = plan.expert_quant;
  const std::vector<float> books(format::kinds * q.stages * (std::size_t{1} << q.index_bits) *
                                 format::vec_dim);
  io::RecordBuffer record(writer.layout());
  for (const format::BankEntry& bank : writer.manifest().layers) {
    const LayerId layer{bank.layer};
    writer.write_codebooks(layer, books);
    io::BankWriter out = writer.open_bank(layer);
    for (std::uint32_t e = 0; e < bank.experts; ++e) {
      out.write(ExpertId{e}, record.seal(layer, ExpertId{e}, writer.codebook_base(layer)));
    }
    out.publish();
  }
  io::TrunkWriter trunk = writer.open_trunk();
  const auto& tensors = writer.manifest().trunk;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    trunk.write_rows(i, 0, std::vector<std::uint8_t>(tensors[i].bytes), {});
  }
  trunk.commit(tensors.size());
  trunk.publish();
  writer.finish();
}

fs::path new_directory() {
  std::string name = (fs::temp_directory_path() / "waste-replay-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw Error(fault(Errc::io, "temporary folder"), name, "cannot be made");
  }
  return name;
}

}  // namespace

ReplayContainer::ReplayContainer(const RoutingTrace& trace) : directory_(new_directory()) {
  try {
    write_small(directory_ / "c.waste", trace);
    OpenOptions options;
    options.resident_trunk = false;
    container_ = Container::open(directory_ / "c.waste", options);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
    throw;
  }
}

ReplayContainer::~ReplayContainer() {
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

std::vector<std::uint32_t> replay_hits(const RoutingTrace& trace, const ReplayContainer& container,
                                       const ReplayOptions& replay) {
  const auto& banks = container.container().banks();
  if (trace.layers != banks.size()) {
    throw Error(fault(Errc::mismatch, "layers of the trace", trace.layers, banks.size()),
                container.container().directory().string());
  }
  CacheOptions options;
  options.budget_bytes = replay.records * banks.front().record_bytes();
  options.concurrent = replay.concurrent;
  options.most_kept = places_of(replay.records, banks.size() * banks.front().experts(),
                                replay.concurrent, replay.ahead, replay.drives)
                          .kept;
  options.make_policy = replay.policy;
  options.ahead.readers = 0;
  ExpertCache cache(container.container(), options);
  std::vector<std::uint32_t> hits(trace.tokens());
  std::vector<ExpertId> wanted;
  std::uint64_t before = 0;
  for (std::size_t t = 0; t < trace.tokens(); ++t) {
    cache.begin_token();
    for (std::size_t l = 0; l < trace.layers; ++l) {
      const LayerId layer = banks[l].layer();
      wanted.clear();
      for (const std::uint16_t e : trace.at(t, l)) wanted.push_back(ExpertId{e});
      cache.prepare(layer, wanted);
      for (const ExpertId e : wanted) cache.get(layer, e).release();
    }
    const std::uint64_t now = cache.counters().hits;
    hits[t] = static_cast<std::uint32_t>(now - before);
    before = now;
  }
  return hits;
}

}  // namespace waste::engine
