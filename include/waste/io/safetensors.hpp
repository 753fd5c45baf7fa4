// Safetensors checkpoints: strict headers, shards behind an index, and piecewise reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/io/file.hpp"

namespace waste::io {

/// Element types that are read here. Others (`other`) may be listed by a file and are refused, by
/// name, when their elements are asked for.
enum class Dtype : std::uint8_t { f32, f16, bf16, u8, other };

/// One tensor of a checkpoint: row-major, the last dimension fastest.
struct SourceTensor {
  std::string name;
  Dtype dtype = Dtype::other;
  std::string dtype_name;            ///< as the file spells it: "BF16", "I64", ...
  std::vector<std::uint64_t> shape;  ///< empty for a scalar
  std::uint64_t off = 0;             ///< of the first byte, in its file
  std::uint64_t bytes = 0;
  std::uint32_t shard = 0;  ///< index into Safetensors::shards()

  std::uint64_t elements() const noexcept {
    std::uint64_t n = 1;
    for (const std::uint64_t d : shape) n *= d;
    return n;
  }
};

/// Bounds on what a safetensors header may be.
namespace safetensors_limits {
inline constexpr std::uint64_t header_bytes = 100'000'000;
inline constexpr std::uint64_t dims = 8;
inline constexpr std::uint64_t index_bytes = 256u << 20;
inline constexpr std::uint64_t shards = 4096;
}  // namespace safetensors_limits

/// Reads the JSON of a safetensors header. `data_off` is the file offset of the data (8 + header
/// length), `data_bytes` what follows it in the file. Required: strict JSON, a known dtype name, at
/// most 8 dimensions, bytes == dtype x shape, and ranges that tile the data exactly: no gap, no
/// overlap, nothing left over. Returned in the order of their bytes. Throws Error naming the
/// tensor.
std::vector<SourceTensor> parse_safetensors_header(std::string_view json, std::uint64_t data_off,
                                                   std::uint64_t data_bytes, std::string_view file);

/// A checkpoint directory: `model.safetensors.index.json` and the shards its weight_map names, or
/// one `model.safetensors`. Every header is read and checked by open(); data is read on demand.
/// Reads are safe from several threads.
class Safetensors {
 public:
  struct Shard {
    std::string name;  ///< file name inside the directory
    FileIdentity identity;
    std::uint32_t header_crc32 = 0;
    File file;
  };

  /// Throws Error: no checkpoint there (not_found), a shard that the index names is missing, a name
  /// that leaves the directory (bad_field), a tensor that the index maps to a shard that lacks it
  /// (missing), one that no or another map entry claims (mismatch), the same name twice
  /// (duplicate), anything that parse_safetensors_header refuses.
  static Safetensors open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const noexcept { return directory_; }
  /// In byte order of their names.
  const std::vector<SourceTensor>& tensors() const noexcept { return tensors_; }
  const std::vector<Shard>& shards() const noexcept { return shards_; }

  /// Null pointer where there is none.
  const SourceTensor* find(std::string_view name) const noexcept;
  /// Throws Error(missing) naming the tensor.
  const SourceTensor& at(std::string_view name) const;

  /// `out.size()` bytes of a tensor of tensors(), starting `first_byte` into it. Throws Error: a
  /// range outside the tensor or a shard that is not there (bad_argument), a shard that changed
  /// since open() (changed), io, truncated.
  void read_bytes(const SourceTensor& tensor, std::uint64_t first_byte,
                  std::span<std::uint8_t> out) const;

  /// `out.size()` elements as f32, starting at flat index `first_element`. F32, F16 and BF16 are
  /// exact; other dtypes are refused by name (unsupported). Uses a fixed buffer of 256 KiB. Throws
  /// Error also as read_bytes does.
  void read_f32(const SourceTensor& tensor, std::uint64_t first_element,
                std::span<float> out) const;

 private:
  const Shard& shard_of(const SourceTensor& tensor) const;

  std::filesystem::path directory_;
  std::vector<Shard> shards_;
  std::vector<SourceTensor> tensors_;
};

}  // namespace waste::io
