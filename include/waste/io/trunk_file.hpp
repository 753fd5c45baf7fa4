// trunk.bin: the tensors every token needs, in memory; the rest read where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/core/error.hpp"
#include "waste/format/manifest.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/io/checksums.hpp"
#include "waste/io/file.hpp"

namespace waste::io {

/// One tensor read into memory of its own, payload at its beginning (64-byte aligned), scales right
/// behind it. 64 readable zero bytes follow, so that vector loads may run past the end.
class LoadedTensor {
 public:
  LoadedTensor() = default;
  const TrunkMatrix& view() const noexcept { return view_; }
  bool empty() const noexcept { return bytes_.empty(); }

 private:
  friend class Trunk;
  AlignedBuffer<std::uint8_t> bytes_;
  TrunkMatrix view_;
};

/// An open trunk.bin. Resident: every tensor that the text model needs except the embedding table,
/// of which a token needs one row. Tensors of a vision tower or MTP head stay on disk until load()
/// asks for them. Immutable after open; safe to share between threads.
///
/// Values are checked as they are read: F32 and F16 elements and f16 scales must be finite
/// (bad_field); the file must be unchanged since it was opened (changed). Subnormal scales are
/// kept.
class Trunk {
 public:
  Trunk() = default;

  /// Opens the file; `manifest` as parse_manifest returned it. With `resident`, reads the resident
  /// tensors on `threads` threads (0: all). Throws Error: truncated or mismatch where the file does
  /// not end where its last tensor ends, checksum where a tensor that is read whole, now or by
  /// load(), differs from `sums` (single rows are not summed), over_budget where the memory cannot
  /// be had.
  static Trunk open(const std::filesystem::path& path, const format::Manifest& manifest,
                    bool resident = true, unsigned threads = 0, std::optional<Checksums> sums = {});

  /// A resident tensor. Names are full names, tensor_prefix included. Throws Error: missing for a
  /// name not in the trunk, bad_argument for a tensor that is not resident.
  TrunkMatrix tensor(std::string_view name) const;
  /// The elements of a resident F32 tensor; throws Error (unsupported) for another format.
  std::span<const float> values(std::string_view name) const;
  bool is_resident(std::string_view name) const noexcept;
  bool contains(std::string_view name) const noexcept;

  /// Where and what a tensor is; throws Error(missing).
  const format::TrunkEntry& entry(std::string_view name) const;
  const std::vector<format::TrunkEntry>& entries() const noexcept { return entries_; }

  /// Reads any tensor from the file. Throws Error.
  LoadedTensor load(std::string_view name) const;

  /// Reads one row of a tensor: the result is [1][cols] in `buffer`, which grows as needed and is
  /// overwritten. Throws Error: out_of_range for a row that is not there, and as the class says.
  TrunkMatrix read_row(std::string_view name, std::uint64_t row,
                       AlignedBuffer<std::uint8_t>& buffer) const;

  /// Bytes of the tensors held in memory, and of those that would be with `resident`.
  std::uint64_t resident_bytes() const noexcept { return resident_bytes_; }
  static std::uint64_t resident_bytes(const format::Manifest& manifest);

  const File& file() const noexcept { return file_; }
  /// What checksums.json says, where the trunk was opened with it.
  const std::optional<Checksums>& checksums() const noexcept { return sums_; }

 private:
  std::size_t index_of(std::string_view name) const;
  LoadedTensor load_entry(const format::TrunkEntry& entry) const;
  void read_checked(std::span<std::uint8_t> out, std::uint64_t offset,
                    const std::string& name) const;

  std::vector<format::TrunkEntry> entries_;
  std::vector<LoadedTensor> loaded_;  ///< one per entry; empty where not resident
  std::unordered_map<std::string_view, std::size_t> by_name_;  ///< keys point into entries_
  std::uint64_t resident_bytes_ = 0;
  File file_;
  FileIdentity identity_;
  std::optional<Checksums> sums_;
};

/// Whether the values of a tensor's bytes are usable: finite F32 or F16 elements, finite scales.
/// `payload` and `scales` are whole rows of a tensor of this format (either may be empty); bytes
/// behind the last whole element of either are not looked at.
Fault check_trunk_values(format::Fmt fmt, std::span<const std::uint8_t> payload,
                         std::span<const std::uint8_t> scales) noexcept;

/// The names (tensor_prefix included) of the tensors that a text model keeps in memory.
std::vector<std::string> resident_tensors(const format::Manifest& manifest);
/// The embedding table's full name.
std::string embedding_name(const format::Manifest& manifest);

}  // namespace waste::io
