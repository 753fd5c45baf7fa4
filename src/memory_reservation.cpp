#include "waste/io/memory_reservation.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace waste::io {
namespace {

namespace fs = std::filesystem;
using Place = ReservationPlace;

constexpr std::size_t limit_bytes = 65536;  // of the file: a thousand processes

struct Line {
  std::uint64_t pid = 0, started = 0, bytes = 0;
  bool operator==(const Line&) const = default;
};

fs::path file_of(const Place& place) {
  if (!place.directory.empty()) return place.directory / "waste-memory";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') return fs::path(runtime) / "waste-memory";
  return "/dev/shm/waste-memory-" + std::to_string(::getuid());
}

/// When a process began, in the kernel's ticks: tells it from a later one of the same number.
/// Nothing where there is no such process.
std::optional<std::uint64_t> start_of(const Place& place, std::uint64_t pid) {
  std::ifstream in(place.root / "proc" / std::to_string(pid) / "stat");
  std::string text;
  if (!std::getline(in, text)) return std::nullopt;
  const auto name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < 19; ++i) fields >> field;  // from the third, the state, to the 21st
  std::uint64_t start = 0;
  return fields >> start ? std::optional(start) : std::nullopt;
}

std::uint64_t resident_bytes(const Place& place, std::uint64_t pid) {
  std::ifstream in(place.root / "proc" / std::to_string(pid) / "statm");
  std::uint64_t size = 0, resident = 0;
  if (!(in >> size >> resident)) return 0;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// The file, open and locked; not so where that cannot be had.
class Shared {
 public:
  explicit Shared(const fs::path& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat info {};
    // In a folder that everyone may write to, a file of somebody else's is a trap.
    const bool ours = fd_ >= 0 && ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode) &&
                      info.st_uid == ::geteuid() && info.st_nlink == 1;
    for (int tries = 0; ours && tries < 100; ++tries) {
      locked_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
      if (locked_) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~Shared() {
    if (fd_ >= 0) ::close(fd_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  bool locked() const noexcept { return locked_; }

  /// Lines of processes that live.
  std::vector<Line> read(const Place& place) const {
    std::string text(limit_bytes, '\0');
    const ssize_t n = ::pread(fd_, text.data(), text.size(), 0);
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    std::vector<Line> out;
    std::istringstream lines(text);
    for (std::string one; std::getline(lines, one);) {
      Line line;
      std::istringstream fields(one);
      if (!(fields >> line.pid >> line.started >> line.bytes)) continue;
      if (start_of(place, line.pid) == line.started) out.push_back(line);
    }
    return out;
  }

  bool write(const std::vector<Line>& lines) const {
    std::string text;
    for (const Line& l : lines) {
      text += std::to_string(l.pid) + ' ' + std::to_string(l.started) + ' ' +
              std::to_string(l.bytes) + '\n';
    }
    return text.size() <= limit_bytes && ::ftruncate(fd_, 0) == 0 &&
           ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  }

 private:
  int fd_ = -1;
  bool locked_ = false;
};

std::uint64_t unclaimed(const std::vector<Line>& lines, const Place& place) {
  std::map<std::uint64_t, std::uint64_t> reserved;
  for (const Line& l : lines) {
    std::uint64_t& sum = reserved[l.pid];
    sum += std::min(l.bytes, ~std::uint64_t{0} - sum);
  }
  std::uint64_t out = 0;
  for (const auto& [pid, bytes] : reserved) {
    const std::uint64_t more = bytes - std::min(bytes, resident_bytes(place, pid));
    out += std::min(more, ~std::uint64_t{0} - out);
  }
  return out;
}

}  // namespace

MemoryReservation::MemoryReservation(
    const std::function<std::uint64_t(std::uint64_t others)>& decide, const Place& place)
    : place_(place) {
  const fs::path file = file_of(place);
  const Shared shared(file);
  std::vector<Line> lines;
  if (shared.locked()) lines = shared.read(place);
  const std::uint64_t bytes = decide(unclaimed(lines, place));
  if (!shared.locked() || bytes == 0) return;
  const auto pid = static_cast<std::uint64_t>(::getpid());
  const auto started = start_of(place, pid);
  if (!started) return;
  lines.push_back({pid, *started, bytes});
  if (!shared.write(lines)) return;
  file_ = file;
  bytes_ = bytes;
}

MemoryReservation::~MemoryReservation() {
  if (bytes_ == 0) return;
  try {
    const Shared shared(file_);
    if (!shared.locked()) return;  // swept by others once this process is gone
    std::vector<Line> lines = shared.read(place_);
    const auto pid = static_cast<std::uint64_t>(::getpid());
    const Line mine{pid, start_of(place_, pid).value_or(0), bytes_};
    const auto it = std::find(lines.begin(), lines.end(), mine);
    if (it != lines.end()) lines.erase(it);
    shared.write(lines);
  } catch (...) {
  }
}

std::uint64_t MemoryReservation::others(const Place& place) noexcept {
  try {
    const Shared shared(file_of(place));
    return shared.locked() ? unclaimed(shared.read(place), place) : 0;
  } catch (...) {
    return 0;
  }
}

}  // namespace waste::io
