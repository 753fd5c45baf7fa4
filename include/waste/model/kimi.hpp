// The text model of Kimi-Linear and K3: tokens in, logits out.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/model/config.hpp"
#include "waste/model/session.hpp"
#include "waste/model/session_file.hpp"
#include "waste/model/weights.hpp"
#include "waste/nn/attn_res.hpp"
#include "waste/nn/ffn.hpp"
#include "waste/nn/kda.hpp"
#include "waste/nn/mla.hpp"
#include "waste/nn/moe.hpp"

namespace waste::model {

/// Where a forward pass is; `mixture` is router, routed and shared experts, waits for reads among
/// them.
enum class Phase : std::uint8_t { embedding, kda, mla, dense, mixture, look_ahead, head, done };
constexpr const char* to_string(Phase phase) noexcept {
  constexpr const char* names[] = {"embedding", "kda",        "mla",  "dense",
                                   "mixture",   "look_ahead", "head", "done"};
  return names[static_cast<std::size_t>(phase)];
}

/// Called during a forward pass, for each chunk of tokens, layer by layer; what they are shown
/// lasts until they return.
struct Observer {
  /// The residual stream after a layer (with attention residuals the running sum, before any
  /// mixing), [tokens][hidden_size].
  std::function<void(std::uint32_t layer, MatrixView<const float>)> layer;
  std::function<void(std::uint32_t layer, const nn::Routing&)> routing;
  /// Every input vector of a routed expert's gate and up (as gate) and down: what calibration
  /// needs. Experts run one after another while it is set.
  std::function<void(std::uint32_t layer, ExpertId, format::Kind, std::span<const float>)>
      expert_input;
  /// The inputs [tokens][cols] of every trunk matrix but the embedding, as weights() names it: the
  /// views have the payload pointers of Weights::matrix. kv_b_proj's are the rows of the latent
  /// cache.
  TrunkLook trunk_input;
  /// A phase begins (norms and residual sums count to the phase before them).
  std::function<void(Phase)> phase;
};

/// A model over a source of weights. Holds views and small vectors; const and safe to share between
/// threads, each with its own Session. The same tokens give the same logits bit for bit however
/// they are split into calls, on any number of threads, from any cache, and on every tier with
/// fused multiply-add; ModelOptions::exec.precision and the epsilons are what changes them.
class TextModel {
 public:
  /// Throws Error: bad_argument for no `weights`; missing or shape where they lack what their
  /// configuration needs.
  explicit TextModel(std::shared_ptr<Weights> weights, const ModelOptions& options = {});

  const format::ModelConfig& config() const noexcept { return weights_->config(); }
  const ModelOptions& options() const noexcept { return options_; }
  Weights& weights() const noexcept { return *weights_; }

  /// A session for at most `context` positions.
  Session start(std::size_t context) const { return Session(config(), context); }

  /// A number that tells this model from others: of its vectors, the first row of its projections
  /// and head, and the codebooks. A saved session is refused by a model with another one.
  std::uint32_t fingerprint() const;
  /// Writes a session, with tokens that belong to it and have not been fed; see save_session().
  void save(const Session& session, const std::filesystem::path& path,
            std::span<const std::uint32_t> pending = {}) const {
    save_session(session, config(), fingerprint(), pending, path);
  }
  /// Reads one of this model for at most `context` positions; see load_session(). It goes on as the
  /// saved one would have, bit for bit.
  SavedSession load(const std::filesystem::path& path, std::size_t context) const {
    return load_session(config(), fingerprint(), context, path);
  }

  /// Feeds `tokens` at the session's position. `logits` is [n][vocab_size] for the last n of them,
  /// 0 <= n <= tokens. Throws Error: out_of_range for a token that is not in the vocabulary or for
  /// more tokens than session.room(), shape for logits of another shape or a session of another
  /// number of layers, bad_argument for a broken session, all before anything changes; read errors
  /// of embeddings and experts, after which the session is broken.
  void forward(Session& session, std::span<const std::uint32_t> tokens, MatrixView<float> logits,
               const Observer& observer = {}) const;

  /// The same for the last token only, into a vector of its own.
  std::vector<float> logits_after(Session& session, std::span<const std::uint32_t> tokens) const;

 private:
  struct Layer {
    std::span<const float> input_norm, post_attention_norm;
    std::optional<nn::KdaWeights> kda;
    std::optional<nn::MlaWeights> mla;
    std::optional<nn::FfnWeights> dense;
    std::optional<nn::MoeWeights> moe;
    nn::AttnResWeights attention_residual, ffn_residual;
  };
  class Loader;

  void chunk(Session& session, std::span<const std::uint32_t> tokens, MatrixView<float> logits,
             const Observer& observer, bool decode) const;
  void attention(const Layer& layer, std::size_t index, Session& session, MatrixView<const float> x,
                 MatrixView<float> out, const Exec& exec) const;
  void ffn(const Layer& layer, std::uint32_t index, Session& session, MatrixView<const float> x,
           MatrixView<float> out, const Exec& exec, const Observer& observer) const;
  void guess_experts(std::uint32_t index, Session& session, MatrixView<const float> stream,
                     std::span<const MatrixView<float>> blocks) const;
  std::size_t default_chunk() const;

  std::shared_ptr<Weights> weights_;
  ModelOptions options_;
  std::size_t chunk_ = 1;
  nn::PairActivation activation_;
  std::deque<AlignedBuffer<float>> vectors_;  ///< what the spans below point into
  std::vector<Layer> layers_;
  std::span<const float> final_norm_;
  nn::AttnResWeights output_residual_;
  TrunkMatrix lm_head_;
};

}  // namespace waste::model

namespace waste {
using model::Session;
using model::TextModel;
}  // namespace waste
