// A small container, its experts read without a cache, and a cache over it: for streaming tests.
#pragma once

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/engine/expert_cache.hpp"
#include "waste/io/read_queue.hpp"

namespace waste::test {

inline bool same_matrix(const VqMatrix& a, const VqMatrix& b) {
  const std::size_t floats = a.quant.stages * (std::size_t{1} << a.quant.index_bits) * 8;
  return a.n_rows == b.n_rows && a.n_cols == b.n_cols && a.quant == b.quant &&
         (a.codebooks == b.codebooks ||
          std::memcmp(a.codebooks, b.codebooks, floats * sizeof(float)) == 0) &&
         std::memcmp(a.indices, b.indices, a.layout().bytes()) == 0 &&
         std::memcmp(a.scales, b.scales, 2 * a.n_rows) == 0;
}

/// Three MoE layers (1 to 3) of `experts` experts.
struct StreamFixture {
  TinyContainer tiny;
  std::filesystem::path directory;
  Container container;
  std::vector<std::vector<Expert>> truth;  ///< [layer - 1][expert]
  engine::ReadWith with = engine::ReadWith::pread;

  explicit StreamFixture(const std::string& name, std::uint32_t experts = 5,
                         const OpenOptions& options = {}) {
    TinySpec spec = TinySpec::vq3r();
    spec.experts = experts;
    tiny = make_tiny(spec);
    directory = scratch_dir(name);
    tiny.write(directory);
    container = Container::open(directory, options);
    for (const auto& bank : container.banks()) {
      truth.emplace_back();
      for (std::uint32_t e = 0; e < experts; ++e) truth.back().push_back(bank.read(ExpertId{e}));
    }
  }

  std::uint64_t record_bytes() const { return container.banks().front().record_bytes(); }
  engine::CacheOptions options(std::uint64_t slots) const {
    engine::CacheOptions out;
    out.budget_bytes = slots * record_bytes();
    out.ahead.with = with;
    return out;
  }
  bool right(std::uint32_t layer, std::uint32_t e, const ExpertView& view) const {
    const ExpertView& want = truth[layer - 1][e].view();
    return same_matrix(view.gate, want.gate) && same_matrix(view.up, want.up) &&
           same_matrix(view.down, want.down);
  }
};

/// Ways to read that this build and system have.
inline std::vector<engine::ReadWith> ways() {
  std::vector<engine::ReadWith> out{engine::ReadWith::pread};
  try {
    io::ReadQueue probe(1);
    out.push_back(engine::ReadWith::uring);
  } catch (const Error& e) {
    skipped(e.what());
  }
  return out;
}

inline std::vector<ExpertId> ids(std::initializer_list<std::uint32_t> list) {
  std::vector<ExpertId> out;
  for (const std::uint32_t e : list) out.push_back(ExpertId{e});
  return out;
}

/// Whether `done` becomes true within twenty seconds.
template <class Done>
bool eventually(Done&& done) {
  for (int i = 0; i < 20000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace waste::test
