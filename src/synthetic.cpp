#include "waste/convert/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "waste/core/half.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/io/container_writer.hpp"
#include "waste/quant/random.hpp"

namespace waste::convert {
namespace {

using quant::mix_seed;
using quant::Random;

constexpr std::uint64_t spare_bytes = 64u << 20;  // of the disk, left alone
constexpr std::uint64_t f32_elements = 65536;     // smaller matrices stay F32
constexpr std::uint64_t rows_at_once_bytes = 4u << 20;
constexpr double q4_deviation = 4.32, q8_deviation = 73.3;  // of uniform codes, -7..7 and -127..127

void fill_random(std::span<std::uint8_t> out, Random& random) {
  std::size_t i = 0;
  for (; i + 8 <= out.size(); i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(out.data() + i, &word, 8);
  }
  for (; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(random.next());
}

void store_f16(std::uint8_t* to, double value) {
  store_le<std::uint16_t>(to, f32_to_f16(static_cast<float>(value)));
}

/// Row scales of mean 1 / sqrt(cols), a fifth to either side.
void fill_scales(std::span<std::uint8_t> out, std::size_t cols, Random& random) {
  const double mean = 1.0 / std::sqrt(static_cast<double>(cols));
  for (std::size_t i = 0; i < out.size(); i += 2) {
    store_f16(out.data() + i, mean * (0.8 + 0.4 * random.unit()));
  }
}

void fill_indices(std::span<std::uint8_t> out, const format::IndexLayout& layout, std::size_t rows,
                  Random& random) {
  fill_random(out, random);
  for (std::size_t r = rows; r < layout.padded_rows(); ++r) {
    for (std::size_t v = 0; v < layout.positions; ++v) {
      std::memset(out.data() + layout.offset(r, v), 0, layout.run);
    }
  }
}

bool ends_with(const std::string& name, std::string_view end) { return name.ends_with(end); }

/// One element of an F32 tensor, by what its name says it is.
float f32_value(const std::string& name, std::uint64_t cols, Random& random) {
  const double z = random.normal();
  if (ends_with(name, "norm.weight") || ends_with(name, "layernorm.weight")) {
    return static_cast<float>(1.0 + 0.1 * z);
  }
  if (ends_with(name, "e_score_correction_bias")) return static_cast<float>(0.01 * z);
  if (ends_with(name, "A_log")) return static_cast<float>(random.unit());
  if (ends_with(name, "dt_bias")) return static_cast<float>(z - 2.0);
  if (ends_with(name, "conv1d.weight")) return static_cast<float>(0.5 * z);
  return static_cast<float>(z / std::sqrt(static_cast<double>(std::max<std::uint64_t>(cols, 1))));
}

/// Codes of whole rows: uniform without the value that has no opposite; padding columns 0.
void fill_codes(std::span<std::uint8_t> out, format::Fmt fmt, std::uint64_t cols,
                std::uint64_t row_bytes, Random& random) {
  fill_random(out, random);
  const bool nibbles = fmt == format::Fmt::q4g;
  for (std::uint8_t& b : out) {
    if (nibbles) {
      if ((b & 0x0f) == 0) b |= 0x08;
      if ((b & 0xf0) == 0) b |= 0x80;
    } else if (b == 0x80) {
      b = 0;
    }
  }
  const std::uint64_t used = nibbles ? cols / 2 : cols;  // cols are even here
  for (std::uint64_t at = 0; at < out.size() && used < row_bytes; at += row_bytes) {
    std::memset(out.data() + at + used, nibbles ? 0x88 : 0, row_bytes - used);
  }
}

class Progress {
 public:
  Progress(const SyntheticOptions& options, std::uint64_t total)
      : options_(options), total_(total) {}
  void add(std::uint64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    options_.progress(done_, total_);
  }

 private:
  const SyntheticOptions& options_;
  std::uint64_t done_ = 0, total_;
  std::mutex mutex_;
};

void write_trunk(const io::ContainerWriter& writer, const SyntheticOptions& options,
                 Progress& progress) {
  if (writer.has_trunk()) return;
  io::TrunkWriter trunk = writer.open_trunk();
  const auto& entries = writer.manifest().trunk;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const format::TrunkEntry& t = entries[i];
    const std::uint64_t row_bytes = format::trunk_row_bytes(t.fmt, t.cols());
    const std::uint64_t scale_bytes = format::trunk_row_scale_bytes(t.fmt, t.cols());
    const std::uint64_t step = std::max<std::uint64_t>(1, rows_at_once_bytes / row_bytes);
    const bool embedding = ends_with(t.name, "embed_tokens.weight");
    const double size = embedding ? 1.0 : 1.0 / std::sqrt(static_cast<double>(t.cols()));
    const double scale = size / (t.fmt == format::Fmt::q8g ? q8_deviation : q4_deviation);
    parallel_for((t.rows() + step - 1) / step, options.jobs, [&](std::size_t piece) {
      const std::uint64_t first = piece * step, n = std::min(step, t.rows() - first);
      Random random(mix_seed(options.seed, {1, i, first}));
      std::vector<std::uint8_t> payload(n * row_bytes), scales(n * scale_bytes);
      if (t.fmt == format::Fmt::f32) {
        for (std::size_t e = 0; e < payload.size(); e += 4) {
          store_le<float>(payload.data() + e, f32_value(t.name, t.cols(), random));
        }
      } else {
        fill_codes(payload, t.fmt, t.cols(), row_bytes, random);
        for (std::size_t e = 0; e < scales.size(); e += 2) store_f16(scales.data() + e, scale);
      }
      trunk.write_rows(i, first, payload, scales);
      progress.add(payload.size() + scales.size());
    });
  }
  trunk.commit(entries.size());
  trunk.publish();
}

void write_layer(const io::ContainerWriter& writer, LayerId layer, io::BankSet set,
                 const SyntheticOptions& options, Progress& progress) {
  const format::RecordLayout& layout = writer.layout(set);
  const format::ExpertQuant& q = layout.quant;
  const bool is_expert = set == io::BankSet::experts;
  Random random(mix_seed(options.seed, {is_expert ? 2u : 4u, to_index(layer)}));
  std::vector<float> books(format::kinds * q.stages * (std::size_t{1} << q.index_bits) *
                           format::vec_dim);
  const double deviation = 1.0 / std::sqrt(static_cast<double>(q.stages));
  for (float& v : books) {
    v = f16_to_f32(f32_to_f16(static_cast<float>(deviation * random.normal())));
  }
  if (!writer.has_codebooks(layer, set)) writer.write_codebooks(layer, books, set);
  if (writer.has_bank(layer, set)) return;
  io::BankWriter bank = writer.open_bank(layer, set);
  const std::uint32_t experts = writer.manifest().model.num_experts;
  const std::uint8_t flags =
      is_expert && options.substitutes ? format::record_flags::has_substitute : 0;
  parallel_for(experts, options.jobs, [&](std::size_t e) {
    const ExpertId expert{static_cast<std::uint32_t>(e)};
    Random numbers(mix_seed(options.seed, {is_expert ? 3u : 5u, to_index(layer), e}));
    io::RecordBuffer record(layout);
    for (std::size_t k = 0; k < format::kinds; ++k) {
      const auto kind = static_cast<format::Kind>(k);
      fill_indices(record.indices(kind), layout.indices(kind), layout.shape.rows(kind), numbers);
      fill_scales(record.scales(kind), layout.shape.cols(kind), numbers);
    }
    bank.write(expert, record.seal(layer, expert, writer.codebook_base(layer, set), flags));
    progress.add(layout.record_bytes);
  });
  bank.publish();
}

JsonValue::Array every_fourth(std::uint32_t layers, bool mla) {
  JsonValue::Array out;
  for (std::uint32_t l = 1; l <= layers; ++l) {
    if ((l % 4 == 0 || l == layers) == mla) out.emplace_back(l);
  }
  return out;
}

}  // namespace

JsonValue synthetic_config(const SyntheticOptions& o) {
  const bool k3 = o.shape == SyntheticShape::k3;
  const std::uint32_t layers = o.layers != 0 ? o.layers : k3 ? 93 : 27;
  const std::uint32_t experts = o.experts != 0 ? o.experts : k3 ? 896 : 256;
  if (layers < 2) throw Error(fault(Errc::out_of_range, "layers", layers, 2));
  JsonValue c, linear;
  const auto all = [](JsonValue& to,
                      std::initializer_list<std::pair<const char*, JsonValue>> list) {
    for (const auto& [key, value] : list) to.set(key, value);
  };
  all(c, {{"model_type", k3 ? "kimi_k3" : "kimi_linear"},
          {"vocab_size", o.vocab != 0 ? o.vocab : 163840u},
          {"hidden_size", k3 ? 7168 : 2304},
          {"intermediate_size", k3 ? 33792 : 9216},
          {"num_hidden_layers", layers},
          {"first_k_dense_replace", 1},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", k3 ? "situ" : "silu"},
          {"num_attention_heads", k3 ? 96 : 32},
          {"kv_lora_rank", 512},
          {"qk_nope_head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"v_head_dim", 128},
          {"mla_use_nope", true},
          {"num_experts", experts},
          {"num_experts_per_token", std::min(experts, k3 ? 16u : 8u)},
          {"num_shared_experts", k3 ? 2 : 1},
          {"moe_intermediate_size", k3 ? 3072 : 1024},
          {"routed_scaling_factor", k3 ? 1.0 : 2.446},
          {"moe_renormalize", true},
          {"moe_router_activation_func", "sigmoid"},
          {"tie_word_embeddings", false}});
  all(linear, {{"kda_layers", every_fourth(layers, false)},
               {"full_attn_layers", every_fourth(layers, true)},
               {"num_heads", k3 ? 96 : 32},
               {"head_dim", 128},
               {"short_conv_kernel_size", 4}});
  if (k3) {
    all(linear, {{"use_full_rank_gate", true}, {"gate_lower_bound", -5.0}});
    all(c, {{"q_lora_rank", 1536},
            {"mla_use_output_gate", true},
            {"routed_expert_hidden_size", 3584},
            {"latent_moe_use_norm", true},
            {"activation_situ_beta", 4.0},
            {"activation_situ_linear_beta", 25.0},
            {"attn_res_block_size", 12}});
  }
  c.set("linear_attn_config", std::move(linear));
  return c;
}

void write_synthetic(const std::filesystem::path& directory, const SyntheticOptions& options) {
  io::ContainerPlan plan;
  const bool k3 = options.shape == SyntheticShape::k3;
  plan.arch = k3 ? "kimi-k3" : "kimi-linear";
  plan.tensor_prefix = k3 ? "language_model." : "";
  plan.config = synthetic_config(options);
  plan.expert_quant = options.quant;
  plan.substitutes = options.substitutes;
  const format::ModelConfig model = format::parse_model_config(plan.config, "config");
  for (const format::RequiredTensor& t : format::required_tensors(model)) {
    format::TrunkEntry entry;
    entry.name = plan.tensor_prefix + t.name;
    entry.shape = t.shape;
    const bool head =
        ends_with(t.name, "embed_tokens.weight") || ends_with(t.name, "lm_head.weight");
    const bool plain = t.role != format::RequiredTensor::Role::matrix ||
                       format::elements(t.shape).value_or(0) < f32_elements;
    entry.fmt = plain ? format::Fmt::f32 : head ? format::Fmt::q8g : format::Fmt::q4g;
    plan.trunk.push_back(std::move(entry));
  }
  io::ContainerWriter writer(directory, plan);
  const std::uint64_t want = writer.total_bytes() + spare_bytes;
  if (const std::uint64_t free = io::free_bytes(directory); free < want) {
    throw Error(fault(Errc::no_space, "free bytes", free, want), directory.string());
  }
  Progress progress(options, writer.total_bytes());
  for (const format::BankEntry& b : writer.manifest().layers) {
    write_layer(writer, LayerId{b.layer}, io::BankSet::experts, options, progress);
    if (options.substitutes) {
      write_layer(writer, LayerId{b.layer}, io::BankSet::substitutes, options, progress);
    }
  }
  write_trunk(writer, options, progress);
  writer.finish();
}

}  // namespace waste::convert
