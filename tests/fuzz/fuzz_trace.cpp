// A routing trace: a typed error, or choices that are complete, distinct and in range, and
// Belady's hits that no cache of that size could exceed.
#include <algorithm>
#include <numeric>

#include "fuzz_target.hpp"
#include "waste/engine/routing_trace.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  try {
    const auto trace = engine::parse_trace(fuzz::text_of(data, size), "fuzz");
    WASTE_FUZZ_CHECK(trace.layers > 0 && trace.tokens() > 0);
    WASTE_FUZZ_CHECK(trace.choices.size() == trace.tokens() * trace.layers);
    for (auto chosen : trace.choices) {
      std::sort(chosen.begin(), chosen.end());
      WASTE_FUZZ_CHECK(!chosen.empty() && chosen.back() < trace.experts);
      WASTE_FUZZ_CHECK(std::adjacent_find(chosen.begin(), chosen.end()) == chosen.end());
    }
    const std::uint64_t demands = trace.demands(0, trace.tokens());
    std::uint64_t fewer = 0;
    for (const std::size_t records : {std::size_t{0}, std::size_t{3}, std::size_t{1} << 30}) {
      const auto hits = engine::optimal_hits(trace, records);
      const std::uint64_t sum = std::accumulate(hits.begin(), hits.end(), std::uint64_t{0});
      WASTE_FUZZ_CHECK(hits.size() == trace.tokens() && fewer <= sum && sum < demands);
      WASTE_FUZZ_CHECK(records != 0 || sum == 0);
      fewer = sum;
    }
    WASTE_FUZZ_CHECK(trace.prefix(1).tokens() == 1);
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok && e.file().starts_with("fuzz"));
  }
  return 0;
}
