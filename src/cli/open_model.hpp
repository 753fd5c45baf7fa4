// Opens a container or a source checkpoint as a model: what run, eval and logits share.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "waste/engine/routing_trace.hpp"
#include "waste/format/json.hpp"
#include "waste/io/memory_reservation.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"

namespace waste::cli {

struct ModelArguments {
  std::string path;
  unsigned threads = 0;
  std::uint64_t cache_bytes = 0;   ///< 0: what the budget leaves
  std::uint64_t budget_bytes = 0;  ///< of everything; 0: as much as the machine allows
  std::optional<std::uint64_t> substitute_after_ms;  ///< none: substitutes are not even loaded
  double disk_delay_ms = 0;                          ///< added to every read of an expert
  std::uint64_t context = 4096;
  std::string precision = "exact";
  bool fast_prompt = false;
  std::uint64_t prompt_bytes = 0;
  std::string policy = "fitted";
  bool eps_compat = false;
  std::string verify = "once";
  bool learn = false;  ///< count what is used in usage.waste
  engine::ReadAheadOptions ahead;
  std::string direct = "auto";
  std::string io = "pread";  ///< or uring
  std::string record_trace;  ///< file for the experts that tokens choose; empty: none
};

/// Adds the positional DIR and the options that describe how to run a model.
void add_model_options(CLI::App& app, ModelArguments& arguments);
/// Adds --disk-delay, for commands that measure.
void add_delay_option(CLI::App& app, ModelArguments& arguments);
/// Adds --record-trace, for commands that decode.
void add_record_option(CLI::App& app, ModelArguments& arguments);

/// What --record-trace asks for: give `observer` to the forward passes, then write().
class RoutingRecord {
 public:
  RoutingRecord(const ModelArguments& arguments, const format::ModelConfig& config,
                model::Observer& observer);
  void write() const;

 private:
  std::string file_;
  std::shared_ptr<engine::TraceRecorder> recorder_;  ///< null where nothing is asked for
};

struct OpenedModel {
  std::unique_ptr<TextModel> model;
  std::shared_ptr<model::ContainerWeights> container;  ///< null for a source checkpoint
  io::MemoryReservation reservation;                   ///< what others should leave to this process
  std::shared_ptr<engine::UsageFile> usage;            ///< null where there is none
  std::string usage_refused;  ///< why a usage.waste that is there was not used
  std::filesystem::path directory;
  unsigned threads = 1;
  std::size_t experts_held = 1;  ///< at once
  std::uint64_t prompt_bytes = 0;
  bool direct_refused = false;  ///< asked for, and a real read failed

  /// {slots, record_bytes, hits, misses, hit_rate, not_kept, bytes_read, ahead_in_time, ...}; null
  /// for a checkpoint.
  JsonValue cache_json() const;
  /// "812 hits, 120 misses (87.1 %), 2.95 MB read"; empty for a checkpoint.
  std::string cache_text() const;
  /// What was asked for and not had, a line each.
  std::vector<std::string> fallbacks() const;
  /// What the cache runs with, one line; empty for a checkpoint.
  std::string streaming_text() const;
};

/// Throws Error: not_found where DIR holds neither manifest.json nor config.json, over_budget where
/// the memory cannot hold it, and whatever opening finds.
OpenedModel open_model(const ModelArguments& arguments);

/// What readers read with.
const char* io_name(const engine::CacheStatus& status);

}  // namespace waste::cli
