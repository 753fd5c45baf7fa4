#include "waste/engine/usage.hpp"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <string>

#include "waste/core/half.hpp"
#include "waste/io/file.hpp"

namespace waste::engine {
namespace {

namespace fs = std::filesystem;

/// Holds the lock of an open file while it lives.
class Lock {
 public:
  explicit Lock(const io::File& file) : fd_(file.native_handle()) {
    while (::flock(fd_, LOCK_EX) != 0) {
      if (errno != EINTR) throw Error(waste::fault(Errc::io, "flock"), file.path().string());
    }
  }
  ~Lock() { ::flock(fd_, LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int fd_;
};

std::vector<std::uint8_t> all_bytes(const io::File& file, std::uint64_t limit) {
  const std::uint64_t size = file.size();
  if (size > limit) {
    throw Error(waste::fault(Errc::out_of_range, "usage size", size, limit), file.path().string());
  }
  std::vector<std::uint8_t> bytes(size);
  file.pread(bytes, 0);
  return bytes;
}

}  // namespace

UsageFile::UsageFile(fs::path file, const format::ModelConfig& model, const UsageOptions& options)
    : file_(std::move(file)), model_(model), options_(options) {
  const std::size_t n = std::size_t{model.moe_layers()} * model.num_experts;
  counts_.assign(n, 0.0);
  pending_.assign(n, 0);
  pending_seen_.assign(n, 0);
  std::error_code ignored;
  if (!fs::exists(file_, ignored)) return;
  const io::File in = io::File::open(file_);
  Counts past = read(all_bytes(in, format::usage_limit_bytes(model)));
  counts_ = std::move(past.counts);
  clock_ = counted_at_ = past.clock;
}

std::size_t UsageFile::key(std::uint32_t layer, std::uint32_t expert) const noexcept {
  if (layer >= model_.num_hidden_layers || !model_.is_moe(layer) || expert >= model_.num_experts) {
    return keys();
  }
  return std::size_t{layer - model_.first_k_dense_replace} * model_.num_experts + expert;
}

UsageFile::Counts UsageFile::read(std::span<const std::uint8_t> bytes) const {
  Counts out;
  out.counts.assign(keys(), 0.0);
  out.seen.assign(keys(), 0);
  if (bytes.size() < format::usage_header_bytes) return out;
  format::UsageLog joined;
  if (const Fault f = format::parse_usage(bytes, model_, joined)) throw Error(f, file_.string());
  const std::uint64_t base = joined.clock;
  out.clock = base;
  const auto token_of = [&](const format::UsageEntry& e) {
    // last_seen has the low 32 bits: the token within 2^31 of the header's.
    const auto ahead = static_cast<std::int32_t>(e.last_seen - static_cast<std::uint32_t>(base));
    return ahead > 0 ? base + static_cast<std::uint64_t>(ahead)
                     : base - std::min<std::uint64_t>(
                                  base, static_cast<std::uint64_t>(-std::int64_t{ahead}));
  };
  const std::size_t entries =
      (bytes.size() - format::usage_header_bytes) / format::usage_entry_bytes;
  const auto entry = [&](std::size_t i) {
    return load_le<format::UsageEntry>(bytes.data() + format::usage_header_bytes +
                                       i * format::usage_entry_bytes);
  };
  for (std::size_t i = 0; i < entries; ++i) {
    const format::UsageEntry e = entry(i);
    if (key(e.layer, e.expert) < keys()) out.clock = std::max(out.clock, token_of(e));
  }
  for (std::size_t i = 0; i < entries; ++i) {
    const format::UsageEntry e = entry(i);
    const std::size_t k = key(e.layer, e.expert);
    if (k >= keys()) continue;
    const std::uint64_t seen = token_of(e);
    const auto age = static_cast<double>(out.clock - std::max(seen, base));
    out.counts[k] += e.hits * std::exp2(-age / options_.half_life);
    out.seen[k] = std::max(out.seen[k], seen);
  }
  out.entries = entries;
  out.whole_bytes = format::usage_header_bytes + entries * format::usage_entry_bytes;
  return out;
}

double UsageFile::count(LayerId layer, ExpertId expert) const {
  const std::lock_guard lock(mutex_);
  const std::size_t k = key(to_index(layer), to_index(expert));
  if (k >= keys()) return 0.0;
  return counts_[k] * std::exp2(-static_cast<double>(clock_ - counted_at_) / options_.half_life);
}

std::vector<std::pair<LayerId, ExpertId>> UsageFile::hottest(std::size_t n) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> order;
  for (std::size_t k = 0; k < keys(); ++k) {
    if (counts_[k] > 0) order.push_back(k);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return counts_[a] > counts_[b]; });
  if (order.size() > n) order.resize(n);
  std::vector<std::pair<LayerId, ExpertId>> out;
  for (const std::size_t k : order) {
    const auto layer = static_cast<std::uint32_t>(k / model_.num_experts);
    out.emplace_back(LayerId{layer + model_.first_k_dense_replace},
                     ExpertId{static_cast<std::uint32_t>(k % model_.num_experts)});
  }
  return out;
}

std::uint64_t UsageFile::clock() const {
  const std::lock_guard lock(mutex_);
  return clock_;
}

Fault UsageFile::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void UsageFile::begin_token() noexcept {
  bool due = false;
  {
    const std::lock_guard lock(mutex_);
    ++clock_;
    due = options_.append_every != 0 && ++since_append_ > options_.append_every;
  }
  if (!due) return;
  const Fault f = append();
  const std::lock_guard lock(mutex_);
  since_append_ = 1;
  if (f && !fault_) fault_ = f;
}

void UsageFile::use(LayerId layer, const ExpertId* experts, std::size_t n) noexcept {
  const std::lock_guard lock(mutex_);
  if (clock_ != counted_at_) {
    const double kept = std::exp2(-static_cast<double>(clock_ - counted_at_) / options_.half_life);
    for (double& c : counts_) c *= kept;
    counted_at_ = clock_;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t k = key(to_index(layer), to_index(experts[i]));
    if (k >= keys()) continue;
    counts_[k] += 1.0;
    if (pending_[k] != ~std::uint32_t{0}) ++pending_[k];
    pending_seen_[k] = clock_;
  }
}

/// Called with the mutex held.
void UsageFile::write(bool compact) {
  std::vector<format::UsageEntry> fresh;
  const auto entry_of = [&](std::size_t k, std::uint64_t hits, std::uint64_t seen) {
    format::UsageEntry e;
    e.layer = static_cast<std::uint16_t>(k / model_.num_experts + model_.first_k_dense_replace);
    e.expert = static_cast<std::uint16_t>(k % model_.num_experts);
    e.hits = static_cast<std::uint32_t>(std::min<std::uint64_t>(hits, ~std::uint32_t{0}));
    e.last_seen = static_cast<std::uint32_t>(seen);
    return e;
  };
  for (std::size_t k = 0; k < keys(); ++k) {
    if (pending_[k] != 0) fresh.push_back(entry_of(k, pending_[k], pending_seen_[k]));
  }
  if (fresh.empty() && !compact) return;

  for (;;) {
    std::error_code ignored;
    if (!fs::exists(file_, ignored)) {
      const auto header = format::dump_usage({});
      io::write_atomically(file_, {reinterpret_cast<const char*>(header.data()), header.size()});
    }
    const io::File file = io::File::open_or_create(file_);
    const Lock lock(file);
    // Another process may have put a compacted file in this one's place meanwhile.
    if (io::File::open(file_).identity().inode != file.identity().inode) continue;
    const std::uint64_t limit = format::usage_limit_bytes(model_);
    const std::vector<std::uint8_t> bytes = all_bytes(file, limit);
    Counts now = read(bytes);
    const std::uint64_t added = fresh.size() * format::usage_entry_bytes;
    if (!compact && now.whole_bytes != 0 && now.whole_bytes + added <= limit / 2) {
      std::vector<std::uint8_t> tail(added);
      for (std::size_t i = 0; i < fresh.size(); ++i) {
        store_le(tail.data() + i * format::usage_entry_bytes, fresh[i]);
      }
      if (bytes.size() != now.whole_bytes) file.truncate(now.whole_bytes);
      file.pwrite(tail, now.whole_bytes);
      return;
    }
    const std::uint64_t clock = std::max(clock_, now.clock);
    const double kept = std::exp2(-static_cast<double>(clock - now.clock) / options_.half_life);
    format::UsageLog out;
    out.clock = clock;
    for (std::size_t k = 0; k < keys(); ++k) {
      const double hits = now.counts[k] * kept + pending_[k];
      if (hits >= 0.5) {
        out.entries.push_back(entry_of(k, static_cast<std::uint64_t>(std::llround(hits)),
                                       std::max(now.seen[k], pending_seen_[k])));
      }
    }
    const auto compacted = format::dump_usage(out);
    io::write_atomically(file_,
                         {reinterpret_cast<const char*>(compacted.data()), compacted.size()});
    return;
  }
}

Fault UsageFile::flush(bool compact) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    write(compact);
  } catch (const Error& e) {
    return e.fault();
  } catch (...) {
    return waste::fault(Errc::over_budget, "usage log");
  }
  std::fill(pending_.begin(), pending_.end(), 0u);
  return {};
}

Fault UsageFile::append() noexcept { return flush(false); }

Fault UsageFile::finish() noexcept { return flush(true); }

}  // namespace waste::engine
