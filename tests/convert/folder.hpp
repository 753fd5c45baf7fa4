// A directory's files as bytes, for comparing conversions.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace waste::test {

/// A conversion flushes every file to the device; where there is a memory file system, tests of
/// many small ones keep their scratch folders there. Call before scratch_dir.
inline bool scratch_in_memory() {
  if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  return true;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::map<std::string, std::string> folder_bytes(const std::filesystem::path& dir) {
  std::map<std::string, std::string> out;
  for (const auto& e : std::filesystem::directory_iterator(dir)) {
    out[e.path().filename().string()] = read_bytes(e.path());
  }
  return out;
}

/// Names of the files that differ or exist on one side only; empty when the folders are the same.
inline std::string folder_difference(const std::filesystem::path& a,
                                     const std::filesystem::path& b) {
  const auto left = folder_bytes(a), right = folder_bytes(b);
  std::string out;
  for (const auto& [name, bytes] : left) {
    const auto it = right.find(name);
    if (it == right.end() || it->second != bytes) out += name + " ";
  }
  for (const auto& [name, bytes] : right) {
    if (!left.count(name)) out += name + " ";
  }
  return out;
}

}  // namespace waste::test
