// Writing a container: planned files, records with their crc, and publication of the manifest last.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/core/error.hpp"
#include "waste/format/manifest.hpp"
#include "waste/format/record_layout.hpp"
#include "waste/format/substitutes.hpp"
#include "waste/io/file.hpp"

namespace waste::io {

/// One expert record in memory, page-aligned. Fill indices() and scales() of the three matrices,
/// then seal(); the same buffer serves the next expert.
class RecordBuffer {
 public:
  explicit RecordBuffer(const format::RecordLayout& layout);

  const format::RecordLayout& layout() const noexcept { return layout_; }
  /// Index bytes of `kind`, in the order of format::IndexLayout.
  std::span<std::uint8_t> indices(format::Kind kind) noexcept;
  /// f16 row scales of `kind`, two bytes a row.
  std::span<std::uint8_t> scales(format::Kind kind) noexcept;
  /// Writes header and crc32 and zeroes the padding; returns the whole record. `flags`: hints, of
  /// format::record_flags. Throws Error(out_of_range) for a layer or an expert beyond 65535.
  std::span<const std::uint8_t> seal(LayerId layer, ExpertId expert, std::uint32_t codebook_base,
                                     std::uint8_t flags = 0);

 private:
  format::RecordLayout layout_;
  AlignedBuffer<std::uint8_t> bytes_;
};

/// What to write, known before the first byte: everything but the weights.
struct ContainerPlan {
  std::string arch;
  std::string tensor_prefix;
  JsonValue config;                       ///< as the manifest will hold it
  format::ExpertQuant expert_quant;       ///< of every expert
  std::vector<format::TrunkEntry> trunk;  ///< name, fmt and shape; the rest is derived
  bool substitutes = false;               ///< a second set of banks, see format::SubstituteBanks
};

/// Which banks of a container are meant.
enum class BankSet : std::uint8_t { experts, substitutes };

/// Fills a manifest from a plan: the typed model, record layout, one bank per MoE layer
/// (codebook_base ascending by 3 * stages), the trunk sorted by name, back to back. Throws Error
/// for whatever parse_manifest would refuse in the result.
format::Manifest make_manifest(const ContainerPlan& plan);

/// One bank, written as `experts-L{n}.bin.part` (`subs-L{n}.bin.part`) until published. A part file
/// left by a writer that was killed is continued: has() tells which records in it are whole.
class BankWriter {
 public:
  BankWriter(BankWriter&&) noexcept = default;

  /// True when the part file holds this expert's record with a right header, crc and padding.
  bool has(ExpertId expert) const;
  /// Writes a sealed record to its place; may be called from several threads. Throws Error:
  /// out_of_range for an expert that the bank has not, bad_argument for a record of another size,
  /// what format::validate_header finds where the record is not this expert's, io, no_space.
  void write(ExpertId expert, std::span<const std::uint8_t> record) const;
  /// Flushes and renames; every record must have been written.
  void publish();

 private:
  friend class ContainerWriter;
  BankWriter(std::filesystem::path directory, const format::RecordLayout& layout,
             const format::BankEntry& bank);

  std::filesystem::path final_path_, part_path_;
  format::RecordLayout layout_;
  format::BankEntry bank_;
  File file_;
};

/// `trunk.bin`, written as `trunk.bin.part` until published, with the number of leading tensors
/// that are complete and flushed in `trunk.progress`.
class TrunkWriter {
 public:
  TrunkWriter(TrunkWriter&&) noexcept = default;

  /// Tensors [0, finished()) are in the part file already; write the others, in any order.
  std::size_t finished() const noexcept { return finished_; }
  /// Rows [first_row, first_row + n) of tensor `index`: n * row payload bytes and n * row scale
  /// bytes (none for F32 and F16). May be called from several threads. Throws Error: bad_argument
  /// for a tensor or rows that are not there and for sizes that are no whole rows, io, no_space.
  void write_rows(std::size_t index, std::uint64_t first_row, std::span<const std::uint8_t> payload,
                  std::span<const std::uint8_t> scales) const;
  /// Declares tensors [0, finished) complete: flushed, then remembered across a crash. Throws
  /// Error: bad_argument for more than there are, io, no_space.
  void commit(std::size_t finished);
  void publish();

 private:
  friend class ContainerWriter;
  TrunkWriter(std::filesystem::path directory, const std::vector<format::TrunkEntry>& trunk);

  std::filesystem::path directory_;
  std::vector<format::TrunkEntry> trunk_;
  std::size_t finished_ = 0;
  File file_;
};

/// Writes a container into a directory. Nothing in it is a container before finish() publishes
/// manifest.json; every file appears under its name only when it is complete. Parts of a killed
/// run are continued by a writer with the same plan (the caller makes sure that it is the same).
///
///     io::ContainerWriter writer(dir, plan);
///     for (LayerId layer : ...) {
///       writer.write_codebooks(layer, values);            // f32, exactly f16, of all three kinds
///       io::BankWriter bank = writer.open_bank(layer);
///       io::RecordBuffer record(writer.layout());
///       ... fill record ...; bank.write(e, record.seal(layer, e, writer.codebook_base(layer)));
///       bank.publish();
///     }
///     io::TrunkWriter trunk = writer.open_trunk();  ...  trunk.publish();
///     writer.finish();
class ContainerWriter {
 public:
  /// Creates the directory where there is none. Throws Error: exists when it holds a manifest.json,
  /// and what make_manifest refuses.
  ContainerWriter(std::filesystem::path directory, const ContainerPlan& plan);

  const std::filesystem::path& directory() const noexcept { return directory_; }
  const format::Manifest& manifest() const noexcept { return manifest_; }
  /// What follows throws Error(bad_argument) for a layer without experts, and for substitutes that
  /// the plan does not have.
  const format::RecordLayout& layout(BankSet set = BankSet::experts) const;
  std::uint32_t codebook_base(LayerId layer, BankSet set = BankSet::experts) const {
    return entry(layer, set).codebook_base;
  }
  const std::string& bank_file(LayerId layer, BankSet set = BankSet::experts) const {
    return entry(layer, set).file;
  }
  bool has_substitutes() const noexcept { return substitutes_.has_value(); }
  /// Bytes of all files of the finished container but the manifest and side files.
  std::uint64_t total_bytes() const noexcept;

  bool has_codebooks(LayerId layer, BankSet set = BankSet::experts) const;
  /// Codebooks of a layer, f32 [gate, up, down][stages][2^index_bits][8], values exactly f16;
  /// entries past the set's entries are not stored. Throws Error as codebook_records and
  /// write_atomically do.
  void write_codebooks(LayerId layer, std::span<const float> values,
                       BankSet set = BankSet::experts) const;
  /// What write_codebooks stored, in the same form. Throws Error where it is not there or damaged.
  std::vector<float> read_codebooks(LayerId layer, BankSet set = BankSet::experts) const;

  bool has_bank(LayerId layer, BankSet set = BankSet::experts) const;
  /// Throws Error(exists) while another process writes the same bank. The codebooks of the layer
  /// must have been written; without them a left part file could not be trusted.
  BankWriter open_bank(LayerId layer, BankSet set = BankSet::experts) const;

  bool has_trunk() const;
  TrunkWriter open_trunk() const;

  /// A small file beside the manifest (tokenizer.model, specials.json, ...), written atomically.
  /// Throws Error: bad_argument for a name that could leave the directory or is the manifest's, io,
  /// no_space.
  void write_side_file(std::string_view name, std::string_view bytes) const;

  /// Joins the codebooks, checks that every file is there with its size, publishes manifest.json
  /// and removes the parts. Throws Error(missing) naming what was not written.
  void finish();

 private:
  const std::vector<format::BankEntry>& banks(BankSet set) const;
  const format::BankEntry& entry(LayerId layer, BankSet set) const;
  std::filesystem::path codebook_part(LayerId layer, BankSet set) const;
  void join_codebooks(BankSet set) const;

  std::filesystem::path directory_;
  format::Manifest manifest_;
  std::optional<format::SubstituteBanks> substitutes_;
};

/// Codebook records of one layer as codebooks.bin holds them, ids from `base` up. `values` as in
/// ContainerWriter::write_codebooks. Throws Error: what validate(quant) refuses, bad_argument for
/// another number of values, out_of_range for one that is no finite f16.
std::vector<std::uint8_t> codebook_records(const format::ExpertQuant& quant, std::uint32_t base,
                                           std::span<const float> values);

/// Removes what an interrupted writer may have left: parts, progress and temporary files of the
/// files that a container consists of. Other files stay. Never throws for what cannot be listed or
/// removed, a directory that is not there among it.
void remove_parts(const std::filesystem::path& directory);

}  // namespace waste::io
