// What the tests of the tokenizer share: files, vocabularies and checksums.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/rank_file.hpp"
#include "waste/core/error.hpp"
#include "waste/text/tokenizer.hpp"

namespace waste::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

inline std::filesystem::path tokenizer_data(const std::string& name) {
  return data_dir() / "tokenizer" / name;
}

inline nlohmann::json tokenizer_golden(const std::string& name) {
  return nlohmann::json::parse(read_file(tokenizer_data(name)));
}

inline std::string tiny_ranks() {
  return read_file(source_root() / "examples" / "tiny_k3" / "checkpoint" / "tiktoken.model");
}
inline std::string multi_ranks() { return read_file(tokenizer_data("multi.model")); }

/// crc32 of the numbers as little-endian u32.
inline std::uint32_t crc_of(const std::vector<std::uint32_t>& numbers) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(numbers.data()), 4 * numbers.size()));
}
inline std::uint32_t crc_of(const std::string& bytes) {
  return static_cast<std::uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

/// splitmix64, as the script that makes the golden files draws its random texts.
struct Random {
  std::uint64_t state;
  std::uint64_t operator()() {
    std::uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
};

inline std::string utf8(std::uint32_t point) {
  std::string out;
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (point >> shift & 63)); };
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xc0 | point >> 6);
    tail(0);
  } else if (point < 0x10000) {
    out += static_cast<char>(0xe0 | point >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0 | point >> 18);
    tail(12), tail(6), tail(0);
  }
  return out;
}

/// The Error that `run` throws; fails the test where it throws none.
template <class Run>
Error error_of(Run&& run) {
  try {
    run();
  } catch (const Error& e) {
    return e;
  }
  FAIL("no Error was thrown");
  return Error(fault(Errc::ok, ""));
}

}  // namespace waste::test
