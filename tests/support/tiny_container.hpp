// Small valid containers written byte by byte from the specification, without the library.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace waste::test {

/// What to build. The defaults give a Kimi-Linear-shaped model of awkward sizes (row counts that
/// are no multiples of 64, columns that are no multiples of 128, records of several pages).
struct TinySpec {
  bool k3 = false;  ///< K3's architecture: wrapper, latent experts, residual attention, situ, ...
  std::string fmt = "VQ3R";
  std::uint32_t stages = 3;
  std::uint32_t entries = 256;
  std::uint32_t index_bits = 8;
  std::uint32_t index_block = 64;
  std::uint32_t hidden = 160;
  std::uint32_t inter = 72;
  std::uint32_t latent = 96;  ///< K3 only
  std::uint32_t experts = 5;
  std::uint32_t top_k = 2;
  std::uint32_t shared = 1;
  std::uint32_t layers = 4;  ///< layer 0 dense, the third (1-based 3, 7, ...) MLA, the others KDA
  std::uint32_t vocab = 272;
  int trunk_fmt = 3;                     ///< of matrices with at least trunk_threshold elements
  int head_fmt = 2;                      ///< of embedding and LM head
  std::uint64_t trunk_threshold = 4096;  ///< smaller tensors are F32; the C engine has 65536
  int record_fmt = -1;                   ///< fmt byte of records; -1: 4, 5 or 8 as `fmt` says
  std::uint64_t seed = 1;

  static TinySpec vq3r() { return {}; }
  static TinySpec vq2r();
  static TinySpec vq4p();
  static TinySpec kimi_k3();  ///< VQ3R; combine with the fields above for other formats
  std::size_t run() const { return stages * index_bits / 8; }
  std::uint32_t width() const { return k3 ? latent : hidden; }
};

using Bytes = std::vector<std::uint8_t>;

/// One expert matrix as numbers: W[r][8v+d] = scale[r] * sum_s books[s][index[r][v][s]][d].
struct TinyMatrix {
  std::size_t rows = 0, cols = 0;
  std::vector<std::uint8_t> index;   ///< [rows][cols / 8][stages]
  std::vector<std::uint16_t> scale;  ///< f16 bits
};
using TinyExpert = std::array<TinyMatrix, 3>;  ///< gate, up, down

struct TinyLayer {
  std::uint32_t layer = 0;
  std::uint32_t codebook_base = 0;
  std::vector<std::uint16_t> books;  ///< f16 bits [kind][stages][entries][8]
  std::vector<TinyExpert> experts;
};

struct TinyTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  int fmt = 0;
  std::vector<float> values;  ///< before quantization
};

/// A container in memory. Change `manifest`, `files` or the numbers (then rebuild with pack()), and
/// write() it.
struct TinyContainer {
  TinySpec spec;
  nlohmann::ordered_json manifest;
  std::vector<TinyLayer> layers;
  std::vector<TinyTensor> tensors;     ///< in file order
  std::map<std::string, Bytes> files;  ///< every file but manifest.json

  /// Derives `files` and the manifest's trunk and layers from the numbers.
  void pack();
  void write(const std::filesystem::path& directory) const;
  const TinyTensor& tensor(const std::string& name) const;
  Bytes& bank(std::uint32_t layer) {
    return files.at("experts-L" + std::to_string(layer) + ".bin");
  }
  const Bytes& bank(std::uint32_t layer) const {
    return files.at("experts-L" + std::to_string(layer) + ".bin");
  }
  std::size_t record_bytes() const;
  /// Rewrites the crc32 of record `e` in a bank's bytes, this container's or a damaged copy's.
  void fix_crc(std::uint32_t layer, std::uint32_t e) { fix_crc(bank(layer), e); }
  void fix_crc(std::span<std::uint8_t> bank_bytes, std::uint32_t e) const;
  /// The weights of an expert's matrix (kind 0 gate, 1 up, 2 down) in f64, [rows][cols].
  std::vector<double> weights(std::size_t layer_slot, std::uint32_t e, std::size_t kind) const;
};

TinyContainer make_tiny(const TinySpec& spec);

/// Names and shapes of a model's trunk tensors (fmt and values unset), and its config.
std::vector<TinyTensor> tiny_tensors(const TinySpec& spec);
nlohmann::ordered_json tiny_config(const TinySpec& spec);

/// Index region of a matrix, row padding included: section 3 of the specification.
Bytes tiny_index_bytes(const TinySpec& spec, const TinyMatrix& m);
/// A whole record: section 2.
Bytes tiny_record(const TinySpec& spec, std::uint32_t layer, std::uint32_t expert,
                  std::uint32_t codebook_base, const TinyExpert& e);
/// Payload and scales of a trunk tensor: section 6.
Bytes tiny_trunk_bytes(const TinyTensor& t);

/// IEEE binary16 by way of double arithmetic, independent of the library's bit tricks.
double half_value(std::uint16_t bits);
std::uint16_t half_bits(double value);

}  // namespace waste::test
