// A model family of your own on this library's public headers: OLMoE and Qwen3-MoE, whole.
//
//     waste convert OLMoE-1B-7B olmoe.waste
//     custom_forward olmoe.waste 1,2,3             # the likeliest next token after each
//     custom_forward olmoe.waste 1,2,3 logits.f32  # and all logits, raw f32 [tokens][vocabulary]
//
// Each layer, with h = rms_norm(x) before each of its lines:
//     x += Wo attention(rope(norm(Wq h)), rope(norm(Wk h)), Wv h)
//     x += sum over the top-k experts e of softmax(router h)_e down_e(silu(gate_e h) up_e h)
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>
#include <waste/model/container_weights.hpp>
#include <waste/nn/gqa.hpp>
#include <waste/nn/moe.hpp>
#include <waste/nn/rope.hpp>

namespace nn = waste::nn;
using waste::MatrixView, waste::TrunkMatrix, waste::matmul;
using Floats = std::vector<float>;
using Weights = waste::model::ContainerWeights;  // tensors by name, experts through a cache

/// Where nn::moe gets the experts of one layer from.
struct LayerExperts final : nn::ExpertProvider {
  Weights& weights;
  waste::LayerId layer;
  LayerExperts(Weights& w, std::uint32_t l) : weights(w), layer{l} {}
  std::optional<nn::SharedCodebooks> codebooks() const override { return weights.codebooks(layer); }
  nn::ExpertLease get(waste::ExpertId e) override { return weights.expert(layer, e); }
};

struct Layer {
  Floats input_norm, q_norm, k_norm, post_norm;
  TrunkMatrix q, k, v, o;  // views of the trunk, in whatever format it is stored
  nn::MoeWeights moe;
  nn::KvCache cache;
};

struct Model {  // and one sequence of at most `context` tokens
  waste::format::ModelConfig config;
  Weights weights;
  std::vector<Layer> layers;
  Floats norm;
  TrunkMatrix head;
  nn::Rope rope;
  nn::Scratch scratch;
  nn::MoeWorkspace space;
  waste::Exec exec{.kernels = nullptr, .threads = 0};  // all threads, the best tier of this CPU

  Model(const waste::Container& c, const waste::engine::CacheOptions& cache, std::size_t context)
      : config(c.model()), weights(c, cache) {
    // What the typed sizes do not say stands in the source's config, which is kept verbatim.
    const waste::JsonValue& source = c.manifest().config;
    const auto *theta = source.find("rope_theta"), *clip = source.find("clip_qkv");
    if (config.attention_bias || !theta || (clip && !clip->is_null())) {
      throw waste::Error(waste::fault(waste::Errc::unsupported, "config"), {},
                         "wanted rope_theta, no attention_bias, no clip_qkv");
    }
    rope = nn::Rope(config.head_dim, theta->number(), context);
    norm = weights.values("model.norm.weight");
    head = weights.matrix("lm_head.weight");
    for (std::uint32_t i = 0; i < config.num_hidden_layers; ++i) {
      const std::string stem = "model.layers." + std::to_string(i) + ".";
      const auto vector = [&](const char* n) { return weights.values(stem + n + ".weight"); };
      const auto matrix = [&](const char* n) { return weights.matrix(stem + n + ".weight"); };
      Layer& layer = layers.emplace_back();
      layer.input_norm = vector("input_layernorm");
      layer.q_norm = vector("self_attn.q_norm");
      layer.k_norm = vector("self_attn.k_norm");
      layer.post_norm = vector("post_attention_layernorm");
      layer.q = matrix("self_attn.q_proj");
      layer.k = matrix("self_attn.k_proj");
      layer.v = matrix("self_attn.v_proj");
      layer.o = matrix("self_attn.o_proj");
      layer.moe.router = matrix("mlp.gate");
      layer.moe.spec.score = nn::RouterScore::softmax;
      layer.moe.spec.top_k = config.num_experts_per_token;
      layer.moe.spec.renormalize = config.moe_renormalize;
      layer.moe.inter = config.moe_intermediate_size;
      layer.cache = nn::KvCache(config.num_key_value_heads, config.head_dim, context);
    }
  }

  /// Feeds `tokens` behind those of earlier calls; logits [tokens][vocabulary].
  Floats forward(const std::vector<std::uint32_t>& tokens) {
    const nn::Scratch::Frame frame(scratch);  // gives every array below back
    const auto array = [&](std::size_t cols) { return scratch.matrix(tokens.size(), cols); };
    const auto x = array(config.hidden_size), h = array(x.cols), y = array(x.cols);
    const auto q = array(layers[0].q.rows()), o = array(q.cols);
    const auto k = array(layers[0].k.rows()), v = array(k.cols);
    for (std::size_t t = 0; t < tokens.size(); ++t) weights.embedding(tokens[t], x.row(t));
    for (std::uint32_t i = 0; i < layers.size(); ++i) {
      Layer& layer = layers[i];
      nn::rms_norm(x, layer.input_norm, config.rms_norm_eps, h, exec);
      matmul(layer.q, h, q, exec);
      matmul(layer.k, h, k, exec);
      matmul(layer.v, h, v, exec);
      norm_and_turn(q, layer.q_norm, layer.cache.used());
      norm_and_turn(k, layer.k_norm, layer.cache.used());
      nn::gqa(q, k, v, layer.cache, o, exec);
      matmul(layer.o, o, y, exec);
      add(x, y);
      nn::rms_norm(x, layer.post_norm, config.rms_norm_eps, h, exec);
      LayerExperts experts(weights, i);
      nn::moe(layer.moe, experts, h, y, scratch, space, exec);
      add(x, y);
    }
    nn::rms_norm(x, norm, config.rms_norm_eps, h, exec);
    Floats logits(tokens.size() * config.vocab_size);
    matmul(head, h, {logits.data(), tokens.size(), config.vocab_size}, exec);
    return logits;
  }

  /// OLMoE norms all heads together, Qwen3-MoE each by itself: the weight's length says which.
  void norm_and_turn(MatrixView<float> x, const Floats& w, std::size_t position) const {
    const MatrixView<float> rows(x.data, x.rows * x.cols / w.size(), w.size());
    nn::rms_norm(rows, w, config.rms_norm_eps, rows, exec);
    rope(x, position);
  }
  void add(MatrixView<float> x, MatrixView<float> y) const {
    exec.table().step->add(x.data, y.data, x.rows * x.cols, x.data);
  }
};

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: %s DIR ID,ID,... [OUT]\n", argv[0]), 64;
  std::vector<std::uint32_t> tokens;
  std::istringstream list(argv[2]);
  for (std::string id; std::getline(list, id, ',');) tokens.push_back(std::stoul(id));

  const auto container = waste::Container::open(argv[1]);
  const std::size_t threads = waste::available_threads();
  const auto budget = (threads + 64) * container.banks().front().record_bytes();
  Model model(container, {.budget_bytes = budget, .concurrent = threads}, 4096);
  const Floats logits = model.forward(tokens);
  for (auto row = logits.begin(); row != logits.end(); row += model.config.vocab_size) {
    const auto best = std::max_element(row, row + model.config.vocab_size);
    std::printf("%u (%.4f)\n", static_cast<unsigned>(best - row), static_cast<double>(*best));
  }
  if (argc < 4) return 0;
  std::ofstream out(argv[3], std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits.data()), 4 * logits.size());
  return out.flush() ? 0 : 1;
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
