// usage.waste: a fault, or a log that writes and reads back as itself.
#include "fuzz_target.hpp"
#include "waste/format/usage_log.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste::format;
  ModelConfig model;
  model.num_hidden_layers = 27;
  model.first_k_dense_replace = 1;
  model.num_experts = 256;
  UsageLog log;
  if (parse_usage({data, size}, model, log)) {
    WASTE_FUZZ_CHECK(log.entries.empty());
    return 0;
  }
  for (const UsageEntry& e : log.entries) {
    WASTE_FUZZ_CHECK(e.layer >= 1 && e.layer < 27 && e.expert < 256);
  }
  UsageLog again;
  WASTE_FUZZ_CHECK(!parse_usage(dump_usage(log), model, again));
  WASTE_FUZZ_CHECK(again.entries == log.entries && again.clock == log.clock);
  WASTE_FUZZ_CHECK(again.ignored == 0);
  return 0;
}
