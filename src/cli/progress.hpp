// A progress line on standard error: redrawn on a terminal, occasional lines elsewhere.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace waste::cli {

/// Shows "LABEL  42 %  DETAIL  elapsed 12 s, 17 s left". Not thread-safe: call from one thread.
class Progress {
 public:
  explicit Progress(std::string label, bool quiet = false)
      : label_(std::move(label)), quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double done, double total, const std::string& detail = {}) {
    if (quiet_) return;
    const auto now = Clock::now();
    const double gap = std::chrono::duration<double>(now - last_).count();
    const bool end = done >= total;
    if (!end && shown_ && gap < (terminal_ ? 0.1 : 5.0)) return;
    if (end && finished_) return;
    last_ = now;
    shown_ = true;
    const double fraction = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 1.0;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    char times[64];
    if (end || fraction <= 0.0) {
      std::snprintf(times, sizeof times, "%.1f s", elapsed);
    } else {
      std::snprintf(times, sizeof times, "%.0f s, %.0f s left", elapsed,
                    elapsed * (1.0 - fraction) / fraction);
    }
    std::fprintf(stderr, "%s%s %3.0f %%  %s  %s%s", terminal_ ? "\r\033[K" : "", label_.c_str(),
                 100.0 * fraction, detail.c_str(), times, terminal_ && !end ? "" : "\n");
    std::fflush(stderr);
    finished_ = end;
  }
  void finish() {
    if (terminal_ && shown_ && !finished_ && !quiet_) std::fputc('\n', stderr);
    finished_ = true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool quiet_;
  bool terminal_;
  bool shown_ = false;
  bool finished_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = Clock::now();
};

}  // namespace waste::cli
