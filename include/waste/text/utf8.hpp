// UTF-8, one step at a time, with every ill-formed byte kept apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace waste::text {

/// One step through a text: a well-formed character, or a single byte that begins none.
struct Utf8Step {
  std::uint32_t point = 0;  ///< the code point; the byte's value when !valid
  std::uint32_t bytes = 1;
  bool valid = false;
};

/// The step at text[at]; at < text.size(). Well-formed as the Unicode standard's table 3-7 has it:
/// shortest form only, no surrogates, nothing above U+10FFFF.
constexpr Utf8Step utf8_step(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::uint32_t bytes = lead < 0xc2   ? 0
                              : lead < 0xe0 ? 2
                              : lead < 0xf0 ? 3
                              : lead < 0xf5 ? 4
                                            : 0;
  if (bytes == 0 || text.size() - at < bytes) return {lead, 1, false};
  std::uint32_t point = lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {lead, 1, false};
    point = point << 6 | (byte(i) & 0x3fu);
  }
  const bool overlong = (bytes == 3 && point < 0x800) || (bytes == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  if (overlong || surrogate || point > 0x10ffff) return {lead, 1, false};
  return {point, bytes, true};
}

/// Bytes at the end of `text` (0 to 3) that may still become a character when more bytes follow.
constexpr std::size_t utf8_unfinished(std::string_view text) noexcept {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto lead = static_cast<unsigned char>(text[text.size() - back]);
    if ((lead & 0xc0) == 0x80) continue;
    const std::size_t bytes = lead < 0xc2   ? 1
                              : lead < 0xe0 ? 2
                              : lead < 0xf0 ? 3
                              : lead < 0xf5 ? 4
                                            : 1;
    if (bytes <= back) return 0;
    if (back == 1) return 1;
    // The second byte alone decides whether a form is overlong, a surrogate or too large.
    const auto second = static_cast<unsigned char>(text[text.size() - back + 1]);
    const bool possible = !(lead == 0xe0 && second < 0xa0) && !(lead == 0xed && second > 0x9f) &&
                          !(lead == 0xf0 && second < 0x90) && !(lead == 0xf4 && second > 0x8f);
    return possible ? back : 0;
  }
  return 0;
}

/// Bytes of the first `characters` steps of `text`, or all of it where it has fewer.
constexpr std::size_t utf8_prefix_bytes(std::string_view text, std::size_t characters) noexcept {
  std::size_t at = 0;
  while (characters > 0 && at < text.size()) {
    at += utf8_step(text, at).bytes;
    --characters;
  }
  return at;
}

}  // namespace waste::text
