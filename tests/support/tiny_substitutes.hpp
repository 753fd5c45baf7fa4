// Substitutes for small containers, byte by byte from the specification: a container of one-stage
// experts whose banks are renamed and restamped.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "support/tiny_container.hpp"

namespace waste::test {

/// One-stage experts of the shapes of `spec`, from other random numbers.
inline TinyContainer one_stage(TinySpec spec) {
  spec.fmt = "VQ3R";
  spec.stages = 1;
  spec.entries = 256;
  spec.index_bits = 8;
  spec.index_block = 64;
  spec.record_fmt = -1;
  spec.seed = 99;
  TinyContainer out = make_tiny(spec);
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    out.layers[i].codebook_base = static_cast<std::uint32_t>(3 * i);
  }
  out.pack();
  return out;
}

/// The files that make the experts of `coarse` the substitutes of a container.
inline std::map<std::string, Bytes> substitute_files(const TinyContainer& coarse) {
  std::map<std::string, Bytes> out;
  Bytes& books = out["subs-codebooks.bin"] = coarse.files.at("codebooks.bin");
  for (std::size_t at = 0; at < books.size(); at += 4112) books[at + 6] = 6;
  for (const TinyLayer& l : coarse.layers) {
    const std::string number = std::to_string(l.layer) + ".bin";
    Bytes& bank = out["subs-L" + number] = coarse.files.at("experts-L" + number);
    for (std::size_t at = 0; at < bank.size(); at += coarse.record_bytes()) {
      std::memcpy(&bank[at], "WSUB", 4);
      bank[at + 8] = 6;
    }
  }
  return out;
}

inline void write_substitutes(const TinyContainer& coarse, const std::filesystem::path& directory) {
  for (const auto& [name, bytes] : substitute_files(coarse)) {
    std::ofstream(directory / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
}

}  // namespace waste::test
