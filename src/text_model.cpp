#include <algorithm>

#include "waste/model/kimi.hpp"

namespace waste::model {
namespace {

/// A layer's experts, as the forward pass asks for them.
class LayerExperts final : public nn::ExpertProvider {
 public:
  LayerExperts(Weights& weights, std::uint32_t layer, std::size_t at_once)
      : weights_(weights), layer_{layer}, at_once_(at_once) {}
  void prepare(std::span<const ExpertId> order) override { weights_.prepare(layer_, order); }
  std::optional<nn::SharedCodebooks> codebooks() const override {
    return weights_.codebooks(layer_);
  }
  nn::ExpertLease get(ExpertId expert) override { return weights_.expert(layer_, expert); }
  std::size_t at_once() const override { return at_once_; }

 private:
  Weights& weights_;
  LayerId layer_;
  std::size_t at_once_;
};

void add_to(MatrixView<float> x, MatrixView<const float> y, const Exec& exec) {
  exec.table().step->add(x.data, y.data, x.rows * x.cols, x.data);
}

}  // namespace

void TextModel::attention(const Layer& layer, std::size_t index, Session& session,
                          MatrixView<const float> x, MatrixView<float> out,
                          const Exec& exec) const {
  if (layer.kda) {
    nn::kda(*layer.kda, session.kda(index), x, out, session.scratch_, exec);
  } else {
    nn::MlaCache cache = session.mla(index, x.rows);
    nn::mla(*layer.mla, cache, x, out, session.scratch_, session.mla_workers_, exec);
    session.layers_[index].used = cache.used;
  }
}

void TextModel::ffn(const Layer& layer, std::uint32_t index, Session& session,
                    MatrixView<const float> x, MatrixView<float> out, const Exec& exec,
                    const Observer& observer) const {
  if (layer.dense) {
    nn::ffn(*layer.dense, activation_, x, out, session.scratch_, exec);
    return;
  }
  LayerExperts experts(*weights_, index, options_.experts_at_once);
  nn::MoeObserver observe;
  if (observer.routing) {
    observe.routing = [&](const nn::Routing& routing) { observer.routing(index, routing); };
  }
  if (observer.expert_input) {
    observe.input = [&](ExpertId expert, format::Kind kind, std::span<const float> x) {
      observer.expert_input(index, expert, kind, x);
    };
  }
  nn::moe(*layer.moe, experts, x, out, session.scratch_, session.moe_, exec, observe);
}

/// Names the experts that layer `index` would choose if its attention added nothing, so that their
/// reads overlap with it. Never changes a result.
void TextModel::guess_experts(std::uint32_t index, Session& session, MatrixView<const float> stream,
                              std::span<const MatrixView<float>> blocks) const {
  const Layer& layer = layers_[index];
  if (!layer.moe) return;
  const std::size_t width = std::min(weights_->look_ahead(), layer.moe->spec.top_k);
  if (width == 0) return;
  nn::Scratch& scratch = session.scratch_;
  const nn::Scratch::Frame frame(scratch);
  const MatrixView<float> input = scratch.matrix(stream.rows, stream.cols);
  const MatrixView<float> scores = scratch.matrix(stream.rows, config().num_experts);
  if (!blocks.empty()) {
    nn::attention_residual(layer.ffn_residual, stream, blocks, input, scratch, options_.exec);
    stream = input;
  }
  nn::rms_norm(stream, layer.post_attention_norm, config().rms_norm_eps, input, options_.exec);
  matmul(layer.moe->router, input, scores, options_.exec);
  nn::RouterSpec spec = layer.moe->spec;
  spec.top_k = width;
  std::vector<std::uint32_t> ids(width);
  std::vector<float> weights(width);
  nn::route(scores.row(0), layer.moe->bias, spec, ids, weights, options_.exec);
  std::vector<ExpertId> experts(width);
  std::transform(ids.begin(), ids.end(), experts.begin(),
                 [](std::uint32_t e) { return ExpertId{e}; });
  weights_->expect(LayerId{index}, experts);
}

void TextModel::chunk(Session& session, std::span<const std::uint32_t> tokens,
                      MatrixView<float> logits, const Observer& observer, bool decode) const {
  const std::size_t count = tokens.size(), hidden = config().hidden_size;
  const float eps = config().rms_norm_eps;
  const std::uint32_t block = config().attn_res_block_size.value_or(0);
  Exec exec = options_.exec;
  exec.decode = decode;
  if (observer.trunk_input) exec.look = &observer.trunk_input;
  nn::Scratch& scratch = session.scratch_;
  const nn::Scratch::Frame frame(scratch);
  MatrixView<float> stream = scratch.matrix(count, hidden);  // the residual stream
  MatrixView<float> part = scratch.matrix(count, hidden);    // what a sublayer adds
  const MatrixView<float> input = scratch.matrix(count, hidden);
  std::vector<MatrixView<float>> blocks;

  const auto enter = [&](Phase phase) {
    if (observer.phase) observer.phase(phase);
  };
  enter(Phase::embedding);
  for (std::size_t t = 0; t < count; ++t) weights_->embedding(tokens[t], stream.row(t));
  for (std::size_t t = 0; t < count; ++t) weights_->begin_token();

  for (std::uint32_t index = 0; index < layers_.size(); ++index) {
    const Layer& layer = layers_[index];
    MatrixView<const float> x = stream;
    if (!blocks.empty()) {
      nn::attention_residual(layer.attention_residual, stream, blocks, input, scratch, exec);
      x = input;
    }
    nn::rms_norm(x, layer.input_norm, eps, input, exec);
    enter(layer.kda ? Phase::kda : Phase::mla);
    attention(layer, index, session, input, part, exec);
    if (block != 0 && index % block == 0) {
      blocks.push_back(stream);  // the sum so far is set aside and starts again
      stream = part;
      part = scratch.matrix(count, hidden);
    } else {
      add_to(stream, part, exec);
    }
    x = stream;
    if (block != 0) {
      nn::attention_residual(layer.ffn_residual, stream, blocks, input, scratch, exec);
      x = input;
    }
    nn::rms_norm(x, layer.post_attention_norm, eps, input, exec);
    enter(layer.dense ? Phase::dense : Phase::mixture);
    ffn(layer, index, session, input, part, exec, observer);
    add_to(stream, part, exec);
    if (observer.layer) observer.layer(index, stream);
    // In prefill a layer wants most experts anyway.
    if (count == 1 && index + 1 < layers_.size()) {
      enter(Phase::look_ahead);
      guess_experts(index + 1, session, stream, blocks);
    }
  }
  session.position_ += count;

  enter(logits.rows == 0 ? Phase::done : Phase::head);
  if (logits.rows == 0) return;
  const auto tail = [&](MatrixView<float> m) {
    return MatrixView<float>(m.row(count - logits.rows).data(), logits.rows, hidden, m.stride);
  };
  if (block != 0) {
    std::vector<MatrixView<float>> tails;
    for (const auto& b : blocks) tails.push_back(tail(b));
    nn::attention_residual(output_residual_, tail(stream), tails, tail(input), scratch, exec);
    nn::rms_norm(tail(input), final_norm_, eps, tail(input), exec);
  } else {
    nn::rms_norm(tail(stream), final_norm_, eps, tail(input), exec);
  }
  matmul(lm_head_, tail(input), logits, exec);
  enter(Phase::done);
}

void TextModel::forward(Session& session, std::span<const std::uint32_t> tokens,
                        MatrixView<float> logits, const Observer& observer) const {
  if (session.broken()) {
    throw Error(fault(Errc::bad_argument, "session"), {},
                "an earlier pass failed midway; reset it first");
  }
  nn::require_size("layers of the session", session.layers_.size(), layers_.size());
  for (const std::uint32_t token : tokens) {
    if (token >= config().vocab_size) {
      throw Error(fault(Errc::out_of_range, "token", token, config().vocab_size - 1));
    }
  }
  if (tokens.size() > session.room()) {
    throw Error(
        fault(Errc::out_of_range, "context", session.position() + tokens.size(), session.context()),
        {}, "the sequence is longer than the context it was started with");
  }
  if (logits.rows > tokens.size()) {
    throw Error(fault(Errc::shape, "logits", logits.rows, tokens.size()));
  }
  if (logits.rows != 0) nn::require_size("logits", logits.cols, config().vocab_size);

  const std::size_t silent = tokens.size() - logits.rows;  // tokens without logits
  session.broken_ = true;  // until every chunk has passed every layer
  for (std::size_t first = 0; first < tokens.size(); first += chunk_) {
    const std::size_t n = std::min(chunk_, tokens.size() - first);
    const std::size_t skip = std::clamp(silent, first, first + n) - first;
    MatrixView<float> rows;
    if (skip < n) {
      rows = {logits.row(first + skip - silent).data(), n - skip, logits.cols, logits.stride};
    }
    chunk(session, tokens.subspan(first, n), rows, observer,
          options_.fast_prompt && tokens.size() > 1);
  }
  session.broken_ = false;
}

std::vector<float> TextModel::logits_after(Session& session,
                                           std::span<const std::uint32_t> tokens) const {
  std::vector<float> out(config().vocab_size);
  forward(session, tokens, {out.data(), 1, out.size()});
  return out;
}

}  // namespace waste::model
