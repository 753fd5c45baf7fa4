#include <algorithm>
#include <string>

#include "waste/engine/memory_plan.hpp"
#include "waste/format/family.hpp"
#include "waste/io/crc32.hpp"
#include "waste/model/kimi.hpp"

namespace waste::model {

/// Fetches tensors by name, checks their shapes and keeps the small ones.
class TextModel::Loader {
 public:
  Loader(TextModel& model) : model_(model), weights_(*model.weights_) {}

  void prefix(std::string text) { prefix_ = std::move(text); }

  TrunkMatrix matrix(const char* name, std::size_t rows, std::size_t cols) const {
    const std::string full = prefix_ + name + ".weight";
    const TrunkMatrix w = weights_.matrix(full);
    if (w.rows() != rows || w.cols() != cols) {
      const bool row_fault = w.rows() != rows;
      throw Error(fault(Errc::shape, row_fault ? "rows" : "cols", row_fault ? w.rows() : w.cols(),
                        row_fault ? rows : cols),
                  {}, full);
    }
    return w;
  }
  /// The first n elements of a tensor that has at least (exactly, unless `longer`) as many.
  std::span<const float> vector(const char* name, std::size_t n, bool longer = false) {
    return keep(read(name, n, longer));
  }
  /// norm_i * proj_i.
  nn::AttnResWeights residual(const char* stem, std::size_t n) {
    std::vector<float> product = read((std::string(stem) + "_res_norm.weight").c_str(), n, false);
    const std::vector<float> proj =
        read((std::string(stem) + "_res_proj.weight").c_str(), n, false);
    for (std::size_t i = 0; i < n; ++i) product[i] *= proj[i];
    return {keep(product), model_.config().rms_norm_eps};
  }
  /// [channels][1][taps] as [taps][channels].
  std::span<const float> convolution(const char* name, std::size_t channels, std::size_t taps) {
    const std::vector<float> w = read(name, channels * taps, false);
    std::vector<float> turned(w.size());
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t j = 0; j < taps; ++j) turned[j * channels + c] = w[c * taps + j];
    }
    return keep(turned);
  }
  nn::FfnWeights ffn(std::size_t inter, std::size_t hidden) const {
    return {matrix("gate_proj", inter, hidden), matrix("up_proj", inter, hidden),
            matrix("down_proj", hidden, inter)};
  }

  nn::KdaWeights kda();
  nn::MlaWeights mla();
  nn::MoeWeights moe(const std::string& stem);
  Layer layer(std::uint32_t index);

 private:
  std::vector<float> read(const char* name, std::size_t n, bool longer) const {
    const std::string full = prefix_ + name;
    std::vector<float> v = weights_.values(full);
    if (v.size() < n || (v.size() > n && !longer)) {
      throw Error(fault(Errc::shape, "elements", v.size(), n), {}, full);
    }
    v.resize(n);
    return v;
  }
  std::span<const float> keep(const std::vector<float>& v) {
    model_.vectors_.emplace_back(v.size(), 64);
    std::copy(v.begin(), v.end(), model_.vectors_.back().begin());
    return model_.vectors_.back().span();
  }

  TextModel& model_;
  Weights& weights_;
  std::string prefix_;
};

nn::KdaWeights TextModel::Loader::kda() {
  const format::ModelConfig& c = model_.config();
  const std::size_t hidden = c.hidden_size, dim = c.kda_head_dim, channels = c.kda_channels();
  nn::KdaWeights w;
  w.heads = c.kda_heads;
  w.dim = dim;
  w.taps = c.short_conv_kernel_size;
  w.q = matrix("q_proj", channels, hidden);
  w.k = matrix("k_proj", channels, hidden);
  w.v = matrix("v_proj", channels, hidden);
  w.f_a = matrix("f_a_proj", dim, hidden);
  w.f_b = matrix("f_b_proj", channels, dim);
  w.b = matrix("b_proj", w.heads, hidden);
  if (c.use_full_rank_gate) {
    w.g = matrix("g_proj", channels, hidden);
  } else {
    w.g_a = matrix("g_a_proj", dim, hidden);
    w.g = matrix("g_b_proj", channels, dim);
  }
  w.o = matrix("o_proj", hidden, channels);
  w.q_conv = convolution("q_conv1d.weight", channels, w.taps);
  w.k_conv = convolution("k_conv1d.weight", channels, w.taps);
  w.v_conv = convolution("v_conv1d.weight", channels, w.taps);
  w.a_log = vector("A_log", w.heads, true);
  w.dt_bias = vector("dt_bias", channels);
  w.o_norm = vector("o_norm.weight", dim);
  w.lower_bound = c.gate_lower_bound;
  w.eps = c.rms_norm_eps;
  w.l2_eps = model_.options_.l2_eps;
  w.chunk = model_.options_.kda_chunk;
  return w;
}

nn::MlaWeights TextModel::Loader::mla() {
  const format::ModelConfig& c = model_.config();
  const std::size_t hidden = c.hidden_size;
  nn::MlaWeights w;
  w.heads = c.num_attention_heads;
  w.nope = c.qk_nope_head_dim;
  w.rope = c.qk_rope_head_dim;
  w.v_dim = c.v_head_dim;
  w.rank = c.kv_lora_rank;
  if (c.q_lora_rank) {
    w.q_a = matrix("q_a_proj", *c.q_lora_rank, hidden);
    w.q_a_norm = vector("q_a_layernorm.weight", *c.q_lora_rank);
    w.q = matrix("q_b_proj", w.heads * w.qd(), *c.q_lora_rank);
  } else {
    w.q = matrix("q_proj", w.heads * w.qd(), hidden);
  }
  w.kv_a = matrix("kv_a_proj_with_mqa", w.cache_width(), hidden);
  w.kv_a_norm = vector("kv_a_layernorm.weight", w.rank);
  w.kv_b = matrix("kv_b_proj", w.heads * (w.nope + w.v_dim), w.rank);
  if (c.mla_use_output_gate) w.g = matrix("g_proj", w.heads * w.v_dim, hidden);
  w.o = matrix("o_proj", hidden, w.heads * w.v_dim);
  w.eps_a = model_.options_.eps_a;
  return w;
}

nn::MoeWeights TextModel::Loader::moe(const std::string& stem) {
  const format::ModelConfig& c = model_.config();
  const std::size_t hidden = c.hidden_size;
  prefix(stem);
  nn::MoeWeights w;
  w.router = matrix("gate", c.num_experts, hidden);
  w.bias = vector("gate.e_score_correction_bias", c.num_experts);
  w.spec = {c.num_experts_per_token, c.moe_renormalize, c.routed_scaling_factor};
  w.act = model_.activation_;
  w.inter = c.moe_intermediate_size;
  if (c.routed_expert_hidden_size) {
    const std::size_t latent = *c.routed_expert_hidden_size;
    w.latent_down = matrix("routed_expert_down_proj", latent, hidden);
    w.latent_up = matrix("routed_expert_up_proj", hidden, latent);
    if (c.latent_moe_use_norm) w.latent_norm = vector("routed_expert_norm.weight", latent);
  }
  if (c.num_shared_experts != 0) {
    prefix(stem + "shared_experts.");
    w.shared = ffn(std::size_t{c.num_shared_experts} * c.moe_intermediate_size, hidden);
  }
  w.eps = c.rms_norm_eps;
  return w;
}

TextModel::Layer TextModel::Loader::layer(std::uint32_t index) {
  const format::ModelConfig& c = model_.config();
  const std::string stem = "model.layers." + std::to_string(index) + ".";
  Layer out;
  prefix(stem);
  out.input_norm = vector("input_layernorm.weight", c.hidden_size);
  out.post_attention_norm = vector("post_attention_layernorm.weight", c.hidden_size);
  if (c.attn_res_block_size) {
    out.attention_residual = residual("self_attention", c.hidden_size);
    out.ffn_residual = residual("mlp", c.hidden_size);
  }
  prefix(stem + "self_attn.");
  if (c.attention[index] == format::AttentionKind::kda) {
    out.kda = kda();
  } else {
    out.mla = mla();
  }
  if (c.is_moe(index)) {
    out.moe = moe(stem + "block_sparse_moe.");
  } else {
    prefix(stem + "mlp.");
    out.dense = ffn(c.intermediate_size, c.hidden_size);
  }
  return out;
}

std::size_t TextModel::default_chunk() const {
  const format::ModelConfig& c = config();
  const auto books =
      c.moe_layers() == 0 ? std::nullopt : weights_->codebooks(LayerId{c.first_k_dense_replace});
  // Plain experts have no tables.
  const bool fast = options_.fast_prompt || !books;
  const std::size_t n = engine::prompt_tokens(c, books ? books->quant : format::ExpertQuant{}, fast,
                                              options_.prompt_bytes);
  return options_.fast_prompt ? n : std::min<std::size_t>(n, 32);
}

std::uint32_t TextModel::fingerprint() const {
  std::uint32_t crc = 0;
  const auto add = [&](const void* from, std::size_t bytes) {
    crc = io::crc32({static_cast<const std::uint8_t*>(from), bytes}, crc);
  };
  const auto add_row = [&](const TrunkMatrix& w) {
    const auto fmt = static_cast<std::uint8_t>(w.fmt);
    add(&fmt, 1);
    add(w.payload, format::trunk_row_bytes(w.fmt, w.n_cols));
  };
  for (const auto& v : vectors_) add(v.data(), v.size() * sizeof(float));
  for (std::uint32_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (layer.kda) {
      for (const TrunkMatrix* w : {&layer.kda->q, &layer.kda->k, &layer.kda->v, &layer.kda->o}) {
        add_row(*w);
      }
    } else {
      for (const TrunkMatrix* w :
           {&layer.mla->q, &layer.mla->kv_a, &layer.mla->kv_b, &layer.mla->o}) {
        add_row(*w);
      }
    }
    if (!layer.moe) continue;
    add_row(layer.moe->router);
    if (const auto books = weights_->codebooks(LayerId{i})) {
      const std::size_t floats =
          std::size_t{books->quant.stages} * (1u << books->quant.index_bits) * format::vec_dim;
      add(books->gate, floats * sizeof(float));
      add(books->up, floats * sizeof(float));
    }
  }
  add_row(lm_head_);
  return crc;
}

namespace {

std::shared_ptr<Weights> given(std::shared_ptr<Weights> weights) {
  if (!weights) throw Error(fault(Errc::bad_argument, "weights"), {}, "there are none");
  return weights;
}

}  // namespace

TextModel::TextModel(std::shared_ptr<Weights> weights, const ModelOptions& options)
    : weights_(given(std::move(weights))),
      options_(options),
      activation_(nn::PairActivation::of(weights_->config())) {
  const format::ModelConfig& c = config();
  format::require_kimi(c, "the text model");
  chunk_ = options.chunk_tokens != 0 ? options.chunk_tokens : default_chunk();
  Loader load(*this);
  for (std::uint32_t i = 0; i < c.num_hidden_layers; ++i) layers_.push_back(load.layer(i));
  load.prefix("model.");
  final_norm_ = load.vector("norm.weight", c.hidden_size);
  if (c.attn_res_block_size) output_residual_ = load.residual("output_attn", c.hidden_size);
  load.prefix("");
  lm_head_ = load.matrix("lm_head", c.vocab_size, c.hidden_size);
}

}  // namespace waste::model
