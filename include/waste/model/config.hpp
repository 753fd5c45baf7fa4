// How to run a model: epsilons, threads, precision, context.
#pragma once

#include <cstddef>
#include <optional>

#include "waste/format/model_config.hpp"
#include "waste/nn/matvec.hpp"

namespace waste::model {

struct ModelOptions {
  Exec exec;
  /// Experts that a session may hold at once, if more than its threads: with a token's top_k or
  /// more, threads share the rows of all of them where an expert each would leave some idle. An
  /// expert cache needs room for as many (CacheOptions::concurrent, for all sessions together).
  std::size_t experts_at_once = 1;
  /// Epsilon of q_a_layernorm and kv_a_layernorm. Published code: 1e-6, its norm class's default.
  float eps_a = 1e-6f;
  /// Epsilon of the L2 normalisation of q and k in KDA. Published kernels: 1e-6.
  float l2_eps = 1e-6f;
  /// Tokens that go through a layer together. The result is the same for every value; memory of
  /// activations and lookup tables is not. 0: as many as prompt_bytes allow.
  std::size_t chunk_tokens = 0;
  std::uint64_t prompt_bytes = std::uint64_t{64} << 20;  ///< MemoryPlan::prompt_bytes, for one
  /// Calls of two tokens or more decode each expert once for all tokens of a chunk and multiply in
  /// f32, where otherwise every token has lookup tables of its own: faster from a few tokens an
  /// expert on, and chunks may be long, so that each expert is read less often. The result is that
  /// of exact tables to rounding, whatever the precision, the same for any split into such calls.
  bool fast_prompt = false;
  /// Positions of a KDA layer that share one pass over the state (1 to 16): faster prefill for
  /// results that depend, by rounding, on how a sequence is split into calls. See nn::KdaWeights.
  std::size_t kda_chunk = 1;

  /// The two epsilons as another engine (sqliteai/waste 0.6.6) has them, for comparisons with it.
  void use_compat_epsilons(const format::ModelConfig& config) noexcept {
    eps_a = config.rms_norm_eps;
    l2_eps = 1e-12f;
  }
};

}  // namespace waste::model
