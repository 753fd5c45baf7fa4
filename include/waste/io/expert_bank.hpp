// One layer's expert bank: an expert is one positional read, checked before anyone sees it.
#pragma once

#include <atomic>
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
/// field the derived one, row scales finite, and with `verify_crc` the crc32 of the payload. A
/// layer or an expert beyond 65535 is out_of_range.
Fault check_record(const format::RecordLayout& layout, LayerId layer, ExpertId expert,
                   std::uint32_t codebook_base, std::span<const std::uint8_t> record,
                   bool verify_crc) noexcept;

/// The matrices of a record that check_record accepted. `codebooks` has those of `codebook_base`
/// (their pointers are null otherwise) and is of layout.quant. Borrows both.
ExpertView view_record(const format::RecordLayout& layout, std::span<const std::uint8_t> record,
                       const Codebooks& codebooks, std::uint32_t codebook_base) noexcept;

/// When the crc32 of a record is compared with its bytes. (Its header always is.)
enum class Verify : std::uint8_t {
  off,     ///< never
  once,    ///< when this bank, as long as it is open, reads the record for the first time
  always,  ///< at every read
};

/// What reads cost; added to.
struct ReadStats {
  std::uint64_t crc_ns = 0;
  std::uint64_t crc_records = 0;  ///< whose crc32 was computed
};

/// How a bank is opened and read.
struct BankOptions {
  Verify verify_records = Verify::once;
  bool direct_io = false;  ///< bypass the page cache where the file system allows it
};

/// An open `experts-L{n}.bin`. Reads are positional, so any number of threads may share a bank.
///
/// What every read checks: magic, layer, expert, formats, codebook and low-rank ids and every
/// offset equal to what the manifest derives; row scales finite; the file unchanged since it was
/// opened (size and modification time: Errc::changed). Indices need no check at run time: codebook
/// tables have 2^index_bits entries a stage, so no index value can leave them.
class ExpertBank {
 public:
  /// Opens the bank in `directory`. Throws Error: not_found, io, truncated or mismatch where the
  /// file's size is not bank.bytes, bad_argument for no codebooks or those of another quantization
  /// (an empty Codebooks serves where no view is asked for).
  ExpertBank(const std::filesystem::path& directory, const format::BankEntry& bank,
             const format::RecordLayout& layout, std::shared_ptr<const Codebooks> codebooks,
             const BankOptions& options = {});

  LayerId layer() const noexcept { return LayerId{entry_.layer}; }
  std::uint32_t experts() const noexcept { return entry_.experts; }
  std::uint64_t record_bytes() const noexcept { return layout_.record_bytes; }
  const format::RecordLayout& layout() const noexcept { return layout_; }
  std::uint32_t codebook_base() const noexcept { return entry_.codebook_base; }
  const File& file() const noexcept { return file_; }
  /// Number of the drive (file system) that holds the file.
  std::uint64_t device() const noexcept { return identity_.device; }
  Verify verify() const noexcept { return options_.verify_records; }

  /// One expert in memory of its own: one pread, header checked, crc32 as verify() says.
  /// Throws Error naming file, expert and layer; out_of_range for an expert that is not there.
  Expert read(ExpertId expert) const;

  /// The same into the caller's memory: record.size() == record_bytes(), 4096-aligned when the
  /// file is read directly (bad_argument otherwise). On a fault the bytes must not be used.
  ///
  /// A record whose crc32 is to be computed is summed piece by piece as it arrives through the page
  /// cache, while each piece is still in the core's own; read directly, it is one pread and then
  /// summed. Verify::once remembers who passed for as long as the bank is open: what the bank reads
  /// is the file with the size, time and inode of its opening, or the read is an error.
  Fault try_read(ExpertId expert, std::span<std::uint8_t> record,
                 ReadStats* stats = nullptr) const noexcept;
  /// The same, the crc32 compared or not whatever the mode.
  Fault try_read(ExpertId expert, std::span<std::uint8_t> record, bool verify_crc) const noexcept;

  /// Whether try_read may be called so: out_of_range, bad_argument.
  Fault check_request(ExpertId expert, std::span<std::uint8_t> record) const noexcept;
  /// Where the record of an expert begins in file().
  std::uint64_t offset_of(ExpertId expert) const noexcept {
    return to_index(expert) * layout_.record_bytes;
  }
  /// The end of a try_read whose bytes came from file() at offset_of(expert) by other means than
  /// its own: `read` is what that read found. Checks what try_read checks, the crc32 in one go, and
  /// finds what check_request finds of the expert and the record's size.
  Fault accept(ExpertId expert, std::span<const std::uint8_t> record, const Fault& read,
               ReadStats* stats = nullptr) const noexcept;

  /// Reads the bytes without looking at them (beyond the file being unchanged): for audits. Faults:
  /// those of check_request, changed, truncated, io.
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
  Fault check_expert(ExpertId expert) const noexcept;
  bool is_to_sum(ExpertId expert) const noexcept;
  void remember(ExpertId passed) const noexcept;
  Fault read_summed(ExpertId expert, std::span<std::uint8_t> record,
                    ReadStats& stats) const noexcept;

  format::BankEntry entry_;
  format::RecordLayout layout_;
  std::shared_ptr<const Codebooks> codebooks_;
  BankOptions options_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> passed_;  ///< a bit per expert: its crc was right
  File file_;
  FileIdentity identity_;
};

}  // namespace io
}  // namespace waste
