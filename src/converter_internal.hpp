// What the files of the converter share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "waste/convert/calibration.hpp"
#include "waste/convert/converter.hpp"
#include "waste/quant/vq_calibrated.hpp"

namespace waste::convert::detail {

inline constexpr const char* plan_name = "convert-plan.json";
/// The manifest of the future container, beside a trunk that was made as a slice of its own.
inline constexpr const char* manifest_part_name = "manifest.json.part";
inline constexpr std::uint64_t max_plan_bytes = 64u << 20;

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

/// The calibration that the options name, checked against the source; nothing without one.
std::optional<CalibrationFile> open_calibration(const Checkpoint& source,
                                                const ConvertOptions& options);

/// Factors of a layer's moments and the encoders on them, for the experts of one layer.
class LayerCalibration {
 public:
  /// `books` are all three kinds' codebooks, kept by pointer.
  LayerCalibration(const CalibrationFile& file, LayerId layer, const std::vector<float>& books,
                   const quant::EncodeOptions& encode, const ConvertOptions& options);
  /// An encoder of one kind of one expert; null where the calibration says nothing about it.
  std::shared_ptr<const quant::CalibratedEncoder> encoder(ExpertId expert, format::Kind kind) const;
  std::uint8_t flags(ExpertId expert) const;

 private:
  MomentKey key(format::Kind kind) const;
  std::shared_ptr<const quant::CalibratedEncoder> make(const quant::InputMoments& moments,
                                                       format::Kind kind, unsigned threads) const;

  const CalibrationFile& file_;
  LayerId layer_;
  const std::vector<float>& books_;
  quant::EncodeOptions encode_;
  double damping_;
  std::vector<std::uint8_t> hot_;
  std::array<std::optional<quant::InputMoments>, format::kinds> moments_;
  std::array<std::shared_ptr<const quant::CalibratedEncoder>, format::kinds> shared_;
};
/// What that takes, at most, with `jobs` encoders of single experts at once.
std::uint64_t calibration_memory_bytes(const CalibrationFile& file,
                                       const format::ModelConfig& model,
                                       const ConvertOptions& options, unsigned jobs);

/// The bytes of usage.waste: every expert met, the most used first.
std::string usage_bytes(const CalibrationFile& file, const format::ModelConfig& model);

/// Everything that decides the bytes of the result, and what identifies the source.
JsonValue plan_of(const Checkpoint& source, const ConvertOptions& options,
                  const CalibrationFile* calibration);
/// Throws Error(mismatch) naming the first member in which two plans differ.
void require_same_plan(const JsonValue& there, const JsonValue& wanted, std::string_view file);

void convert_layer(const Checkpoint& source, const io::ContainerWriter& writer, LayerId layer,
                   io::BankSet set, const ConvertOptions& options,
                   const CalibrationFile* calibration, ProgressSink& progress,
                   ConvertReport& report);
void convert_trunk(const Checkpoint& source, const io::ContainerWriter& writer,
                   const ConvertOptions& options, const CalibrationFile* calibration,
                   ProgressSink& progress);

/// Makes sure that the directory may be written: empty, or its plan is this one. Returns false when
/// a finished container with this very plan is there and only leftovers must go.
bool settle_destination(const std::filesystem::path& directory, const JsonValue& plan,
                        bool replace);
/// Holds convert-plan.json locked: shared by slices of layers, alone for a run that finishes.
io::File lock_plan(const std::filesystem::path& path, bool shared);
JsonValue read_plan(const std::filesystem::path& path);
void fill_sizes(const io::ContainerWriter& writer, ConvertReport& report);

}  // namespace waste::convert::detail
