// JSON text: a typed error, or a value that writes and reads back as itself.
#include "fuzz_target.hpp"
#include "waste/format/json.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const waste::JsonValue value = waste::parse_json(waste::fuzz::text_of(data, size), "fuzz");
    const std::string text = waste::dump_json(value);
    WASTE_FUZZ_CHECK(waste::parse_json(text, "again") == value);
    WASTE_FUZZ_CHECK(waste::dump_json(waste::parse_json(waste::dump_json(value, 1), "x")) == text);
  } catch (const waste::Error& e) {
    WASTE_FUZZ_CHECK(e.code() == waste::Errc::bad_json);
  }
  return 0;
}
