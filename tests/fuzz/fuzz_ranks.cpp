// Tokenizer rank files: a typed error, or ranks that find themselves and encode any bytes they can.
#include "fuzz_target.hpp"
#include "waste/text/rank_table.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  try {
    const auto ranks = text::RankTable::parse(fuzz::text_of(data, size), "fuzz");
    for (std::uint32_t id = 0; id < ranks.size(); ++id) {
      WASTE_FUZZ_CHECK(ranks.find(ranks.token(id)) == id);
    }
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok);
  }
  return 0;
}
