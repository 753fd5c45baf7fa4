// How much memory a container needs, and what more of it buys.
#pragma once

#include <cstdint>
#include <optional>

#include "waste/format/manifest.hpp"

namespace waste::engine {

struct PlanOptions {
  std::uint64_t context_tokens = 4096;  ///< longest sequence; bounds the attention caches
  unsigned threads = 1;                 ///< of the forward pass, not 0
  bool substitutes = false;             ///< those of every expert stay in memory
  bool fast_prompt = false;             ///< ModelOptions::fast_prompt
  std::uint64_t prompt_bytes = 0;       ///< at most, for more than one token at once; 0: automatic
};

/// What each token of a prompt beyond one takes while a chunk of them passes a layer: activations,
/// and unless experts are decoded the tables of gate and up in f32. An estimate from above.
std::uint64_t prompt_token_bytes(const format::ModelConfig& model, const format::ExpertQuant& quant,
                                 bool fast_prompt);
/// Tokens of a chunk for so many bytes, at least 1 and at most 32 (fast_prompt: 512).
std::size_t prompt_tokens(const format::ModelConfig& model, const format::ExpertQuant& quant,
                          bool fast_prompt, std::uint64_t bytes);

/// Memory of running a container's text model, all in bytes.
///
///   kda state      per KDA layer: heads * D * D + 3 * C * (kernel - 1) floats, C = heads * D
///   mla state      per MLA layer: context * (kv_lora_rank + qk_rope_head_dim) floats
///   scratch        activations of one token and lookup tables in f32: two shared by a layer's
///                  experts (gate, up), one for each expert held (down). An estimate, a few MB
///   prompt         what more than one token at once takes: of a chunk of prompt_tokens(), and no
///                  more than asked for, or 1/32 of trunk and codebooks
///   substitutes    their records and codebooks, where asked for
///   program        code and libraries of the command, manifest, allocator: 7 MiB as measured, and
///                  128 KiB for each thread that computes
///   floor          all of these and 2 * top_k records, or those held at once if they are more:
///                  below it nothing runs
///   working set    top_k records of every MoE layer: what one token reads
///   recommended    floor + 3 working sets
struct MemoryPlan {
  std::uint64_t trunk_bytes = 0;  ///< resident tensors; the embedding table stays on disk
  std::uint64_t codebook_bytes = 0;
  std::uint64_t substitute_bytes = 0;
  std::uint64_t kda_state_bytes = 0;
  std::uint64_t mla_state_bytes = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t prompt_bytes = 0;
  std::uint64_t program_bytes = 0;
  std::uint64_t record_bytes = 0;
  /// Experts in use at once: one a thread, or a token's top_k where threads share their rows
  /// (shares_badly): CacheOptions::concurrent and ModelOptions::experts_at_once.
  std::uint64_t held_records = 0;
  std::uint64_t floor_records = 0;        ///< max(2 * top_k, held_records)
  std::uint64_t working_set_records = 0;  ///< top_k * MoE layers
  std::uint64_t all_records = 0;          ///< experts * MoE layers

  std::uint64_t state_bytes() const noexcept { return kda_state_bytes + mla_state_bytes; }
  std::uint64_t fixed_bytes() const noexcept {
    return trunk_bytes + codebook_bytes + substitute_bytes + state_bytes() + scratch_bytes +
           prompt_bytes + program_bytes;
  }
  std::uint64_t floor_bytes() const noexcept {
    return fixed_bytes() + floor_records * record_bytes;
  }
  std::uint64_t working_set_bytes() const noexcept { return working_set_records * record_bytes; }
  std::uint64_t with_working_sets(std::uint64_t n) const noexcept {
    return floor_bytes() + n * working_set_bytes();
  }
  std::uint64_t recommended_bytes() const noexcept { return with_working_sets(3); }
  /// Everything in memory: more than this buys nothing.
  std::uint64_t everything_bytes() const noexcept {
    return fixed_bytes() + all_records * record_bytes;
  }
};

/// Throws Error: out_of_range for a context that is 0 or beyond 2^28 tokens; overflow.
MemoryPlan plan_memory(const format::Manifest& manifest, const PlanOptions& options = {});

/// What a budget holds beside the fixed part.
struct BudgetUse {
  bool runs = false;                ///< at least the floor
  std::uint64_t missing_bytes = 0;  ///< to the floor, when it does not run
  std::uint64_t cache_bytes = 0;    ///< for the expert cache: budget - fixed part
  std::uint64_t cache_records = 0;  ///< whole records in it, at most all of them
  double working_sets = 0;          ///< cache_records / working_set_records
  double share = 0;                 ///< cache_records / all_records
};
BudgetUse use_of_budget(const MemoryPlan& plan, std::uint64_t budget_bytes) noexcept;

/// What streaming costs a token, with the reads of a token under way while it computes.
struct StreamingCost {
  double hit_rate = 0;
  double read_bytes = 0;         ///< a token: (1 - hit_rate) * working set
  double read_seconds = 0;       ///< read_bytes / disk rate
  double tokens_per_second = 0;  ///< 1 / the longer of read_seconds and the computing time
};
/// `disk_rate` in bytes a second, above 0; `compute_seconds` of a token whose experts are all in
/// memory, 0 where unknown: the result is then what the disk alone allows.
StreamingCost cost_of_streaming(const MemoryPlan& plan, double hit_rate, double disk_rate,
                                double compute_seconds = 0) noexcept;

/// A budget for a machine where `usable_bytes` (physical memory or the cgroup's limit, whichever is
/// smaller: io::memory_limit) may be had: everything where it fits, else the largest of floor + 3,
/// 2, 1 and 0 working sets that fits in 3/4 of it, so that page cache and neighbours keep the rest
/// (a cache that pages is slower than a small one). Nothing where not even the floor fits.
std::optional<std::uint64_t> automatic_budget(const MemoryPlan& plan,
                                              std::uint64_t usable_bytes) noexcept;

}  // namespace waste::engine
