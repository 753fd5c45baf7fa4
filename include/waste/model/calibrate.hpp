// Runs a model over text and gathers what its matrices are fed and which experts it uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "waste/convert/calibration.hpp"
#include "waste/model/kimi.hpp"

namespace waste::model {

struct CalibrateOptions {
  std::size_t window = 256;  ///< tokens of a window; each starts from an empty sequence
  std::uint64_t memory_bytes = std::uint64_t{4} << 30;  ///< of all moments
  bool trunk = true;                                    ///< not only the experts' inputs
  /// Tokens done, of all; called from one thread.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

/// What a run of these options keeps, known before it starts.
struct CalibrationPlan {
  std::size_t block = 0;  ///< columns of a block of moments, at most; a site of fewer is whole
  std::size_t expert_block = 0;  ///< the same of moments of one expert; 0: none are kept
  std::uint64_t bytes = 0;       ///< of all moments, when every expert is met; the file has as many
};

/// The largest blocks that `memory_bytes` hold: first those of every site, from whole matrices down
/// to diagonals; then, from what is left, those of single experts. Throws Error (over_budget) where
/// the diagonals of all sites are too much.
CalibrationPlan plan_calibration(const format::ModelConfig& model, const CalibrateOptions& options);

/// Inputs that an expert must have seen for moments of its own to be kept.
inline constexpr std::uint64_t least_expert_inputs = 64;

/// Feeds `tokens` in windows (the last may be shorter) to the model, all of them, and gathers
/// moments by plan_calibration and the experts' uses. config_crc32 of the result is left 0. The
/// same model, tokens, window and plan give the same bits on any number of threads
/// (model.options().exec.threads) and every tier with fused multiply-add. Throws Error:
/// bad_argument for no tokens or window 0, over_budget, and as TextModel::forward.
convert::Calibration calibrate(const TextModel& model, std::span<const std::uint32_t> tokens,
                               const CalibrateOptions& options = {});

}  // namespace waste::model
