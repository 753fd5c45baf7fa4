// Sizes as text, in columns.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace waste::cli {

/// "12,345,678"
inline std::string grouped(std::uint64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

inline void size_line(const std::string& label, std::uint64_t bytes, const std::string& note = {}) {
  std::printf("  %-34s %22s bytes %10.3f GiB%s%s\n", label.c_str(), grouped(bytes).c_str(),
              static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0), note.empty() ? "" : "   ",
              note.c_str());
}

}  // namespace waste::cli
