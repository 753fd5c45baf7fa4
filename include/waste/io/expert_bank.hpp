// One layer's expert bank: an expert is one positional read, checked before anyone sees it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "waste/core/aligned_buffer.hpp"
#include "waste/core/error.hpp"
#include "waste/format/manifest.hpp"
#include "waste/format/record_layout.hpp"
#include "waste/format/vq_view.hpp"
#include "waste/io/codebook_file.hpp"
#include "waste/io/file.hpp"

namespace waste {

namespace io {
class ExpertBank;
}

/// An expert that owns its record (and keeps its codebooks alive). Move-only; the views stay valid
/// as long as the Expert, moved or not.
class Expert {
 public:
  Expert() = default;

  const VqMatrix& gate() const noexcept { return view_.gate; }  ///< [moe_intermediate][width]
  const VqMatrix& up() const noexcept { return view_.up; }      ///< [moe_intermediate][width]
  const VqMatrix& down() const noexcept { return view_.down; }  ///< [width][moe_intermediate]
  const ExpertView& view() const noexcept { return view_; }
  std::span<const std::uint8_t> record() const noexcept { return record_.span(); }

 private:
  friend class io::ExpertBank;
  AlignedBuffer<std::uint8_t> record_;
  std::shared_ptr<const io::Codebooks> codebooks_;
  ExpertView view_;
};

namespace io {

/// Whether `record` (layout.record_bytes long, else bad_argument) is this expert's: every header
/// field the derived one, row scales finite, and with `verify_crc` the crc32 of the payload.
Fault check_record(const format::RecordLayout& layout, LayerId layer, ExpertId expert,
                   std::uint32_t codebook_base, std::span<const std::uint8_t> record,
                   bool verify_crc) noexcept;

/// The matrices of a record that check_record accepted. `codebooks` has those of `codebook_base`
/// (their pointers are null otherwise). Borrows both.
ExpertView view_record(const format::RecordLayout& layout, std::span<const std::uint8_t> record,
                       const Codebooks& codebooks, std::uint32_t codebook_base) noexcept;

/// How a bank is opened and read.
struct BankOptions {
  bool verify_records = false;  ///< also compare the crc32 of every record read
  bool direct_io = false;       ///< bypass the page cache where the file system allows it
};

/// An open `experts-L{n}.bin`. Reads are positional, so any number of threads may share a bank.
///
/// What every read checks: magic, layer, expert, formats, codebook and low-rank ids and every
/// offset equal to what the manifest derives; row scales finite; the file unchanged since it was
/// opened (size and modification time: Errc::changed). Indices need no check at run time: codebook
/// tables have 2^index_bits entries a stage, so no index value can leave them.
class ExpertBank {
 public:
  /// Opens the bank in `directory`. Throws Error: not_found, io, and truncated or mismatch where
  /// the file's size is not bank.bytes.
  ExpertBank(const std::filesystem::path& directory, const format::BankEntry& bank,
             const format::RecordLayout& layout, std::shared_ptr<const Codebooks> codebooks,
             const BankOptions& options = {});

  LayerId layer() const noexcept { return LayerId{entry_.layer}; }
  std::uint32_t experts() const noexcept { return entry_.experts; }
  std::uint64_t record_bytes() const noexcept { return layout_.record_bytes; }
  const format::RecordLayout& layout() const noexcept { return layout_; }
  std::uint32_t codebook_base() const noexcept { return entry_.codebook_base; }
  const File& file() const noexcept { return file_; }
  bool verifies() const noexcept { return options_.verify_records; }

  /// One expert in memory of its own: one pread, header checked, crc32 too with verify_records.
  /// Throws Error naming file, expert and layer; out_of_range for an expert that is not there.
  Expert read(ExpertId expert) const;

  /// The same into the caller's memory: record.size() == record_bytes(), 4096-aligned when the
  /// file is read directly (bad_argument otherwise). On a fault the bytes must not be used.
  Fault try_read(ExpertId expert, std::span<std::uint8_t> record, bool verify_crc) const noexcept;

  /// Reads the bytes without looking at them (beyond the file being unchanged): for audits.
  Fault try_read_raw(ExpertId expert, std::span<std::uint8_t> record) const noexcept;

  /// io::check_record for an expert of this bank.
  Fault check_record(ExpertId expert, std::span<const std::uint8_t> record,
                     bool verify_crc) const noexcept {
    return io::check_record(layout_, layer(), expert, entry_.codebook_base, record, verify_crc);
  }

  /// The matrices of a record that try_read accepted. Borrows `record` and this bank's codebooks.
  ExpertView view(std::span<const std::uint8_t> record) const noexcept {
    return view_record(layout_, record, *codebooks_, entry_.codebook_base);
  }

 private:
  format::BankEntry entry_;
  format::RecordLayout layout_;
  std::shared_ptr<const Codebooks> codebooks_;
  BankOptions options_;
  File file_;
  FileIdentity identity_;
};

}  // namespace io
}  // namespace waste
