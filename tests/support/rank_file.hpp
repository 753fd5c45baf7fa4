// Rank files of tokenizers, made for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace waste::test {

inline std::string base64(std::string_view bytes) {
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

/// A rank file: the 256 bytes in order, then `tokens`.
inline std::string rank_file(const std::vector<std::string>& tokens = {}) {
  std::string out;
  std::size_t rank = 0;
  const auto line = [&](std::string_view token) {
    out += base64(token) + " " + std::to_string(rank++) + "\n";
  };
  for (int b = 0; b < 256; ++b) line(std::string(1, static_cast<char>(b)));
  for (const auto& token : tokens) line(token);
  return out;
}

}  // namespace waste::test
