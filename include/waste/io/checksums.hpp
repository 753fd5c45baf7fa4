// checksums.json: crc32 of what carries none of its own, the trunk's tensors and the codebooks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/manifest.hpp"

namespace waste::io {

/// An optional file beside the manifest, which readers that do not know it ignore:
///
///     {"version": 1, "trunk": {"NAME": CRC, ...}, "codebooks": [CRC, ...], "files": {"NAME": CRC}}
///
/// CRC is the zlib crc32, as a number, of a tensor's bytes in trunk.bin (payload and scales), of
/// whole codebook records, by id, and of whole files, those of summed_files that are there. "files"
/// may be absent; names that are not among summed_files are ignored. A container with substitutes
/// also has "substitute_codebooks", the same of subs-codebooks.bin.
struct Checksums {
  std::vector<std::pair<std::string, std::uint32_t>> trunk;  ///< sorted by name
  std::vector<std::uint32_t> codebooks;                      ///< by codebook id
  std::vector<std::uint32_t> substitute_codebooks;           ///< the same; empty: none
  std::vector<std::pair<std::string, std::uint32_t>> files;  ///< in the order of summed_files

  std::optional<std::uint32_t> of_tensor(std::string_view name) const noexcept;
  std::optional<std::uint32_t> of_codebook(std::size_t id) const noexcept;
  std::optional<std::uint32_t> of_file(std::string_view name) const noexcept;
};

/// Checksums::codebooks, or none.
inline std::span<const std::uint32_t> codebook_crcs(const std::optional<Checksums>& sums) noexcept {
  if (!sums) return {};
  return sums->codebooks;
}

inline constexpr const char* checksums_file = "checksums.json";
/// Small files that a conversion writes and nobody edits afterwards (as they may chat.json).
inline constexpr std::string_view summed_files[] = {"manifest.json", "tokenizer.model",
                                                    "specials.json", "generation_config.json"};

/// Reads the file in `directory`; nothing where there is none or its version is another. Throws
/// Error (bad_json, bad_field) for a file that is none of these.
std::optional<Checksums> read_checksums(const std::filesystem::path& directory);

/// Sums trunk.bin, codebooks.bin and, where they are there, subs-codebooks.bin and summed_files of
/// `directory`: one pass over each, memory of a megabyte. Throws Error where they cannot be read.
Checksums compute_checksums(const std::filesystem::path& directory,
                            const format::Manifest& manifest);

/// crc32 of a whole file. Throws Error where it cannot be read.
std::uint32_t file_crc(const std::filesystem::path& path);

/// The file's text.
std::string dump_checksums(const Checksums& sums);

}  // namespace waste::io
