// Bytes that need not be UTF-8, for JSON.
#pragma once

#include <string>
#include <string_view>

#include "waste/text/utf8.hpp"

namespace waste::cli {

/// `bytes` with U+FFFD for each byte that is in no character.
inline std::string as_utf8(std::string_view bytes) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const text::Utf8Step step = text::utf8_step(bytes, at);
    out += step.valid ? bytes.substr(at, step.bytes) : std::string_view("\xef\xbf\xbd");
    at += step.bytes;
  }
  return out;
}

}  // namespace waste::cli
