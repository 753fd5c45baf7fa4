// Where a text model's weights come from: the seam between forward pass and files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/model_config.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/nn/moe.hpp"

namespace waste::model {

/// Weights of one model, by the names of format::required_tensors, without tensor_prefix. Safe to
/// share between threads and models. Implement it to run the forward pass on weights of your own.
class Weights {
 public:
  virtual ~Weights() = default;

  virtual const format::ModelConfig& config() const noexcept = 0;
  /// A matrix in any trunk format; the view lasts as long as this object. Throws Error(missing).
  virtual TrunkMatrix matrix(std::string_view name) const = 0;
  /// All elements of a tensor as f32, row-major. Throws Error(missing).
  virtual std::vector<float> values(std::string_view name) const = 0;
  /// Row `token` of the embedding table, [hidden_size]. Throws Error (out_of_range, read errors).
  virtual void embedding(std::uint32_t token, std::span<float> out) const = 0;

  /// One routed expert. Throws Error where it cannot be read; never other weights.
  virtual nn::ExpertLease expert(LayerId layer, ExpertId expert) = 0;
  /// What the layer's VQ experts share; nothing where experts are plain matrices.
  virtual std::optional<nn::SharedCodebooks> codebooks(LayerId layer) const = 0;
  /// The experts that a layer is about to ask for, in the order of first use.
  virtual void prepare(LayerId, std::span<const ExpertId>) {}
  /// Experts that a layer will perhaps ask for, likeliest first: what its router says of the layer
  /// before. Reading them is a bet.
  virtual void expect(LayerId, std::span<const ExpertId>) {}
  /// How many experts expect() should name; 0: it need not be called.
  virtual std::size_t look_ahead() const { return 0; }
  /// A token enters the model.
  virtual void begin_token() {}
};

}  // namespace waste::model
