#include "waste/model/session.hpp"

#include <algorithm>

#include "waste/format/family.hpp"

namespace waste::model {

Session::Session(const format::ModelConfig& config, std::size_t context)
    : context_(context), width_(config.kv_lora_rank + config.qk_rope_head_dim) {
  format::require_kimi(config, "a session");
  constexpr std::size_t most = std::size_t{1} << 28;
  if (context == 0 || context > most) {
    throw Error(fault(Errc::out_of_range, "context", context, most));
  }
  const std::size_t dim = config.kda_head_dim, channels = config.kda_channels();
  layers_.resize(config.num_hidden_layers);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (config.attention[i] == format::AttentionKind::kda) {
      layers_[i].kda_state = AlignedBuffer<float>(config.kda_heads * dim * dim, 64);
      layers_[i].kda_ring =
          AlignedBuffer<float>(3 * (config.short_conv_kernel_size - 1) * channels, 64);
    }
  }
}

void Session::reset() noexcept {
  for (Layer& layer : layers_) {
    std::fill(layer.kda_state.begin(), layer.kda_state.end(), 0.0f);
    std::fill(layer.kda_ring.begin(), layer.kda_ring.end(), 0.0f);
    layer.used = 0;
  }
  position_ = 0;
  broken_ = false;
}

std::uint64_t Session::state_bytes() const noexcept {
  std::uint64_t n = 0;
  for (const Layer& l : layers_) {
    n += l.kda_state.size() + l.kda_ring.size() + l.latent.size();
  }
  return n * sizeof(float);
}

nn::KdaState Session::kda(std::size_t layer) noexcept {
  return {layers_[layer].kda_state.data(), layers_[layer].kda_ring.data()};
}

nn::MlaCache Session::mla(std::size_t layer, std::size_t tokens) {
  Layer& l = layers_[layer];
  const std::size_t wanted = l.used + tokens;
  if (wanted * width_ > l.latent.size()) {
    const std::size_t rows = std::min(context_, std::max({wanted, 2 * l.used, std::size_t{64}}));
    AlignedBuffer<float> grown(rows * width_, 64);
    std::copy_n(l.latent.data(), l.used * width_, grown.data());
    l.latent = std::move(grown);
  }
  return {l.latent.data(), l.latent.size() / width_, l.used};
}

}  // namespace waste::model
