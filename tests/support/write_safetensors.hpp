// Writes safetensors files for tests, well-formed or damaged on purpose.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/files.hpp"

namespace waste::test {

struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<std::size_t> shape;
  std::vector<std::uint8_t> bytes;
};

template <class T>
std::vector<std::uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<std::uint8_t> out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

/// u64 header length, header, data: nothing checked.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const std::uint64_t n = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + data;
}

/// A well-formed file of these tensors in this order.
inline std::string safetensors_bytes(const std::vector<RawTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
  for (const RawTensor& t : tensors) {
    header += ",\"" + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < t.shape.size(); ++i) {
      header += (i ? "," : "") + std::to_string(t.shape[i]);
    }
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.bytes.size()) + "]}";
    data.append(t.bytes.begin(), t.bytes.end());
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return safetensors_bytes(header, data);
}

/// Writes one shard per element and the index of them all.
inline void write_sharded(
    const std::filesystem::path& dir,
    const std::vector<std::pair<std::string, std::vector<RawTensor>>>& shards) {
  std::string map;
  for (const auto& [file, tensors] : shards) {
    write_file(dir / file, safetensors_bytes(tensors));
    for (const RawTensor& t : tensors) {
      map += (map.empty() ? "" : ",") + ("\"" + t.name + "\":\"" + file + "\"");
    }
  }
  write_file(dir / "model.safetensors.index.json",
             "{\"metadata\":{},\"weight_map\":{" + map + "}}");
}

}  // namespace waste::test
