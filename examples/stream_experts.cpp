// Experts streamed from disk through a bounded cache, without any model.
//
//     stream_experts DIR [RECORDS [TOKENS]]      # a cache of RECORDS experts (16), TOKENS (100)
//
// In place of a router, a few experts of each layer are drawn for every token, low numbers more
// often: real routers have favourites too, and a cache lives on them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <waste/engine/expert_cache.hpp>
#include <waste/waste.hpp>

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: %s DIR [RECORDS [TOKENS]]\n", argv[0]), 64;
  const std::uint64_t records = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 16;
  const std::uint64_t tokens = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 100;

  waste::OpenOptions open;
  open.resident_trunk = false;  // experts only: the dense weights stay on disk
  const auto container = waste::Container::open(argv[1], open);

  waste::engine::CacheOptions options;
  options.budget_bytes = records * container.banks().front().record_bytes();
  waste::ExpertCache cache(container, options);

  std::uint64_t seed = 1;
  const auto draw = [&](std::uint32_t experts) {  // u^3: the first tenth gets almost half
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const double u = static_cast<double>(seed >> 11) * 0x1p-53;
    return waste::ExpertId{static_cast<std::uint32_t>(experts * u * u * u)};
  };

  double sum = 0;
  std::vector<float> x, y;
  std::vector<waste::ExpertId> chosen;
  for (std::uint64_t t = 0; t < tokens; ++t) {
    cache.begin_token();
    for (const waste::io::ExpertBank& bank : container.banks()) {
      chosen.clear();
      while (chosen.size() < container.model().num_experts_per_token) {
        const waste::ExpertId e = draw(bank.experts());
        if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
      }
      cache.prepare(bank.layer(), chosen);  // reads of those that are not in memory begin now
      for (const waste::ExpertId e : chosen) {
        // From memory, a read under way, or one pread. While the lease lives, the record stays.
        const auto lease = cache.get(bank.layer(), e);
        const waste::VqMatrix& gate = lease.view().gate;
        x.assign(gate.cols(), 1.0f);
        y.resize(gate.rows());
        waste::matvec(gate, x, y);
        for (const float v : y) sum += v;
      }
    }
  }
  const waste::engine::CacheCounters counters = cache.counters();
  std::printf("%llu tokens, %llu requests: %llu from memory, %llu read, %.2f MB\n",
              static_cast<unsigned long long>(tokens),
              static_cast<unsigned long long>(counters.hits + counters.misses),
              static_cast<unsigned long long>(counters.hits),
              static_cast<unsigned long long>(counters.misses),
              static_cast<double>(counters.bytes_read) / 1e6);
  std::printf("cache: %zu records of %llu bytes\n", cache.slots(),
              static_cast<unsigned long long>(cache.record_bytes()));
  std::printf("sum of all products: %.6f\n", sum);  // the same whatever the cache held
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
