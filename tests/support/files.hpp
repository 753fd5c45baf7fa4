// Files as a test writes them.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace waste::test {

/// Makes or replaces the file.
inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace waste::test
