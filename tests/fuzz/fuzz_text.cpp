// Any bytes as a text: encoding and decoding gives them back, plain text never becomes a control
// token, and the stream decoder prints what decode says.
#include <string>

#include "fuzz_target.hpp"
#include "waste/text/tokenizer.hpp"

namespace {

std::string base64(std::string_view bytes) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t b = 0; b < 3; ++b) {
      bits = bits << 8 | (i + b < bytes.size() ? static_cast<unsigned char>(bytes[i + b]) : 0u);
    }
    for (std::size_t d = 0; d < 4; ++d) {
      out += i + d > bytes.size() ? '=' : digits[bits >> (18 - 6 * d) & 63];
    }
  }
  return out;
}

std::string ranks() {
  std::string out;
  std::size_t rank = 0;
  const auto line = [&](std::string_view token) {
    out += base64(token) + " " + std::to_string(rank++) + "\n";
  };
  for (int b = 0; b < 256; ++b) line(std::string(1, static_cast<char>(b)));
  for (const char* t : {"ab", " a", "abc", "th", "he", "the", " the", "  ", "    ", "\r\n", "12",
                        "123", "\xc3\xa9", "\xe4\xb8", "\xe4\xb8\xad", "'s", "<|", "|>"}) {
    line(t);
  }
  return out;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste::text;
  static const Tokenizer tokenizer(ranks(), {{300, "<|end|>"}, {301, "<|end|>x"}, {302, "\xc3"}},
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
