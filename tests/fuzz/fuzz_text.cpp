// Any bytes as a text: encoding and decoding gives them back, plain text never becomes a control
// token, and the stream decoder prints what decode says.
#include <string>

#include "fuzz_target.hpp"
#include "support/rank_file.hpp"
#include "waste/text/tokenizer.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste::text;
  static const std::string ranks = waste::test::rank_file(
      {"ab", " a", "abc", "th", "he", "the", " the", "  ", "    ", "\r\n", "12", "123", "\xc3\xa9",
       "\xe4\xb8", "\xe4\xb8\xad", "'s", "<|", "|>"});
  static const Tokenizer tokenizer(ranks, {{300, "<|end|>"}, {301, "<|end|>x"}, {302, "\xc3"}},
                                   {300});
  const std::string_view text = waste::fuzz::text_of(data, size);
  for (const Mode mode : {Mode::plain, Mode::markup}) {
    const auto ids = tokenizer.encode(text, mode);
    WASTE_FUZZ_CHECK(ids.size() <= text.size());
    WASTE_FUZZ_CHECK(tokenizer.decode(ids) == text);
    StreamDecoder stream(tokenizer);
    std::string printed;
    for (const TokenId id : ids) {
      WASTE_FUZZ_CHECK(mode == Mode::markup || !tokenizer.is_special(id));
      printed += stream.push(id);
    }
    WASTE_FUZZ_CHECK(printed + stream.finish() == text);
  }
  return 0;
}
