// The state of one sequence: recurrent states, convolution rings, latent caches, position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/format/model_config.hpp"
#include "waste/nn/kda.hpp"
#include "waste/nn/mla.hpp"
#include "waste/nn/moe.hpp"
#include "waste/nn/scratch.hpp"

namespace waste::model {

/// One sequence of at most `context` positions, with the work memory of its forward passes.
/// Sessions are independent: several may run in one model at once, each on a thread of its own.
class Session {
 public:
  /// Throws Error(out_of_range) for a context of 0 or above 2^28.
  Session(const format::ModelConfig& config, std::size_t context);

  std::size_t position() const noexcept { return position_; }  ///< tokens seen
  std::size_t context() const noexcept { return context_; }
  std::size_t room() const noexcept { return context_ - position_; }
  /// A forward pass ended in an Error and left layers at different positions: only reset() helps.
  bool broken() const noexcept { return broken_; }
  /// Back to an empty sequence; memory is kept.
  void reset() noexcept;
  std::uint64_t state_bytes() const noexcept;

 private:
  friend class TextModel;
  friend struct SessionParts;  // session_file.cpp
  struct Layer {
    AlignedBuffer<float> kda_state;  ///< [heads][dim][dim]
    AlignedBuffer<float> kda_ring;   ///< [3][taps - 1][channels]
    AlignedBuffer<float> latent;     ///< [capacity][rank + rope], grown up to the context
    std::size_t used = 0;
  };
  nn::KdaState kda(std::size_t layer) noexcept;
  /// Room for `tokens` more rows.
  nn::MlaCache mla(std::size_t layer, std::size_t tokens);

  std::size_t context_;
  std::size_t width_;  ///< of a latent row
  std::size_t position_ = 0;
  bool broken_ = false;
  std::vector<Layer> layers_;
  nn::Scratch scratch_;
  nn::WorkerPool<nn::Scratch> mla_workers_;
  nn::MoeWorkspace moe_;
};

}  // namespace waste::model
