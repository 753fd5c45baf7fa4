// What the files of the converter share.
#pragma once

#include <atomic>
#include <mutex>

#include "waste/convert/converter.hpp"

namespace waste::convert::detail {

inline constexpr const char* plan_name = "convert-plan.json";

/// What a trained vector costs, in coded weights: training makes several passes over the sample.
inline constexpr double training_cost_per_vector = 8 * 12.0;

/// Work that is counted in ConvertProgress for a trunk weight against an expert weight.
inline constexpr double trunk_cost_per_weight = 0.1;

/// Collects progress from several threads and hands it out one call at a time.
class ProgressSink {
 public:
  ProgressSink(const ConvertOptions& options, double total) : options_(options) {
    state_.total = total;
  }
  void stage(std::string_view name, std::uint32_t layer) {
    const std::lock_guard lock(mutex_);
    state_.stage = name;
    state_.layer = layer;
    report();
  }
  void add(double work) {
    const std::lock_guard lock(mutex_);
    state_.done += work;
    report();
  }
  void add(double work, std::uint64_t weights, const quant::EncodeStats& stats) {
    const std::lock_guard lock(mutex_);
    state_.done += work;
    state_.weights += weights;
    stats_ += stats;
    state_.relative_error = stats_.relative_error();
    report();
  }

 private:
  void report() {
    if (options_.progress) options_.progress(state_);
  }
  const ConvertOptions& options_;
  std::mutex mutex_;
  ConvertProgress state_;
  quant::EncodeStats stats_;
};

unsigned jobs_of(const ConvertOptions& options);

/// Experts whose weights train the codebooks of a layer, evenly spaced, and vectors from each.
struct SampleShape {
  std::uint32_t experts = 0;
  std::size_t vectors = 0;  ///< from each expert and kind
};
SampleShape sample_shape(const format::ModelConfig& model, const ConvertOptions& options);

/// Everything that decides the bytes of the result, and what identifies the source.
JsonValue plan_of(const Checkpoint& source, const ConvertOptions& options);
/// Throws Error(mismatch) naming the first member in which two plans differ.
void require_same_plan(const JsonValue& there, const JsonValue& wanted, std::string_view file);

void convert_layer(const Checkpoint& source, const io::ContainerWriter& writer, LayerId layer,
                   const ConvertOptions& options, ProgressSink& progress, ConvertReport& report);
void convert_trunk(const Checkpoint& source, const io::ContainerWriter& writer,
                   const ConvertOptions& options, ProgressSink& progress);

}  // namespace waste::convert::detail
