// manifest.json: a typed error, or a manifest whose sizes add up and that writes back as itself.
#include "fuzz_target.hpp"
#include "waste/format/manifest.hpp"
#include "waste/format/trunk_view.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  using namespace waste::format;
  try {
    const Manifest m = parse_manifest(fuzz::text_of(data, size), "fuzz");
    WASTE_FUZZ_CHECK(m.layers.size() == m.model.moe_layers());
    for (const BankEntry& bank : m.layers) {
      WASTE_FUZZ_CHECK(bank.bytes == bank.experts * m.layout.record_bytes);
      WASTE_FUZZ_CHECK(bank.file.find('/') == std::string::npos && bank.file != "..");
    }
    std::uint64_t end = 0;
    for (const TrunkEntry& t : m.trunk) {
      WASTE_FUZZ_CHECK(t.off >= end);
      WASTE_FUZZ_CHECK(t.bytes == trunk_sizes(t.fmt, t.rows(), t.cols()).total());
      end = t.off + t.bytes;
    }
    WASTE_FUZZ_CHECK(trunk_end(m) == end);
    WASTE_FUZZ_CHECK(trunk_hole_bytes(m) <= end);
    const std::string text = dump_manifest(m);
    WASTE_FUZZ_CHECK(dump_manifest(parse_manifest(text, "again")) == text);
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok);
  }
  return 0;
}
