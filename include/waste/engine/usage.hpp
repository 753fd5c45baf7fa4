// usage.waste at work: counts of past runs, appended while a run goes on, for a warm start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/model_config.hpp"
#include "waste/format/usage_log.hpp"

namespace waste::engine {

struct UsageOptions {
  /// Tokens after which a use counts half.
  double half_life = 16384;
  /// Tokens between two appends; 0: only when append() is called.
  std::uint32_t append_every = 64;
};

/// The log of one container. Thread-safe.
///
/// File: the layout of format/usage_log.hpp, which the C engine shares. The header's clock is the
/// token of the last compaction, and entries up to it hold counts decayed to that token; what is
/// appended after holds the uses since the append before, with last_seen its token. An entry of
/// hits h is therefore worth h * 2^(-(now - max(last_seen, header clock)) / half_life) at token
/// `now`, which is the latest token of header and entries.
///
/// Safe against a crash at any byte: an append is one write at the end, so that a cut one loses
/// itself and nothing before it, and the next append starts at the last whole entry. Compaction
/// (one entry an expert, counts decayed, those below one half dropped) replaces the file by rename;
/// it happens in finish(), and in an append that would pass half of usage_limit_bytes. Processes
/// that learn at once take turns by flock. Appends are not fsynced: a power cut may lose some.
class UsageFile {
 public:
  /// Reads `file` where it exists; it need not. Throws Error: io; bad_magic, bad_version,
  /// out_of_range of parse_usage. A file without a whole header counts as empty.
  UsageFile(std::filesystem::path file, const format::ModelConfig& model,
            const UsageOptions& options = {});

  /// The experts with the largest counts now, at most `n`, the largest first; equal counts by layer
  /// and expert. What ExpertCache::warm wants.
  std::vector<std::pair<LayerId, ExpertId>> hottest(std::size_t n) const;
  /// The count of an expert now, decayed.
  double count(LayerId layer, ExpertId expert) const;
  /// Tokens counted so far, past runs included.
  std::uint64_t clock() const;

  /// A token begins; appends where it is time. Never throws: a failed append is remembered in
  /// fault() and tried again with the next, its counts included.
  void begin_token() noexcept;
  /// The experts that a layer of the running token asks for. Unknown ones are ignored.
  void use(LayerId layer, const ExpertId* experts, std::size_t n) noexcept;

  /// Writes what was counted since the last append. Errc::io, no_space, bad_magic where the file is
  /// not a usage log any more.
  Fault append() noexcept;
  /// append(), then compaction.
  Fault finish() noexcept;
  /// The first fault of an append made by begin_token().
  Fault fault() const;

 private:
  std::size_t key(std::uint32_t layer, std::uint32_t expert) const noexcept;  ///< or keys()
  std::size_t keys() const noexcept { return counts_.size(); }
  void write(bool compact);
  Fault flush(bool compact) noexcept;
  struct Counts {
    std::uint64_t clock = 0;
    std::vector<double> counts;       ///< decayed to `clock`, of each key
    std::vector<std::uint64_t> seen;  ///< token of the last use; 0: never
    std::uint64_t whole_bytes = 0;    ///< header and whole entries; 0: no header
    std::uint64_t entries = 0;
  };
  Counts read(std::span<const std::uint8_t> bytes) const;

  std::filesystem::path file_;
  format::ModelConfig model_;
  UsageOptions options_;
  mutable std::mutex mutex_;
  std::uint64_t clock_ = 0, since_append_ = 0;
  std::vector<double> counts_;  ///< of past runs and this, decayed to counted_at_
  std::uint64_t counted_at_ = 0;
  std::vector<std::uint32_t> pending_;  ///< uses since the last append
  std::vector<std::uint64_t> pending_seen_;
  Fault fault_;
};

}  // namespace waste::engine
