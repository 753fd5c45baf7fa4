// Side files of the tokenizer: the first byte chooses specials.json, the added tokens of a
// tokenizer_config.json, or chat.json. A typed error, or what writes and reads back as itself, and
// messages that only ever stand in plain segments.
#include <array>

#include "fuzz_target.hpp"
#include "waste/text/chat.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  using namespace waste::text;
  fuzz::Input in(data, size);
  const auto which = in.take(1) % 3;
  const std::string_view json = fuzz::text_of(in.rest().data(), in.rest().size());
  try {
    if (which < 2) {
      const auto specials =
          which == 0 ? parse_specials(json, "fuzz") : parse_added_tokens(json, "fuzz");
      WASTE_FUZZ_CHECK(specials.size() <= Tokenizer::max_specials);
      const std::string text = dump_specials(specials);
      WASTE_FUZZ_CHECK(dump_specials(parse_specials(text, "again")) == text);
      return 0;
    }
    const ChatFormat chat = ChatFormat::parse(json, "fuzz");
    const std::string secret = "\x01message\x02";
    for (const char* role : {"system", "user", "assistant", "tool"}) {
      const std::array<Message, 1> messages = {Message{role, secret, std::nullopt}};
      for (const Opening opening : {Opening::none, Opening::response, Opening::thinking}) {
        try {
          std::size_t plain = 0;
          for (const Segment& s : chat.render(messages, opening)) {
            if (s.mode == Mode::plain) plain += s.text == secret;
          }
          WASTE_FUZZ_CHECK(plain == 1);
        } catch (const Error& e) {
          WASTE_FUZZ_CHECK(e.code() == Errc::bad_argument || e.code() == Errc::unsupported);
        }
      }
    }
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok && e.file() == "fuzz");
  }
  return 0;
}
