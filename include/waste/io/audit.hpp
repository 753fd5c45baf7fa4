// Reading all of a container to find damage: what every token must not pay for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "waste/core/error.hpp"
#include "waste/io/container.hpp"

namespace waste::io {

/// Where an audit reports. Both may be empty. `found` gets every fault as the Error a reader would
/// have thrown; `progress` the bytes of the file that were looked at so far.
struct AuditSink {
  std::function<void(const Error&)> found;
  std::function<void(std::uint64_t bytes)> progress;
};

/// Everything that can be told of one record: what check_record(crc) says, every index below
/// `entries`, padding rows of the index blocks zero, the padding behind the payload zero.
Fault audit_record(const format::RecordLayout& layout, LayerId layer, ExpertId expert,
                   std::uint32_t codebook_base, std::span<const std::uint8_t> record) noexcept;
inline Fault audit_record(const ExpertBank& bank, ExpertId expert,
                          std::span<const std::uint8_t> record) noexcept {
  return audit_record(bank.layout(), bank.layer(), expert, bank.codebook_base(), record);
}

/// Audits every record of a bank, going on after a fault; memory of one record. Returns the number
/// of faults.
std::uint64_t audit_bank(const ExpertBank& bank, const AuditSink& sink);

/// Audits every record of codebooks.bin: valid, or all zero and in no layer's use. (The codebooks
/// in use were checked when the container was opened.) Returns the number of faults.
std::uint64_t audit_codebooks(const Container& container, const AuditSink& sink);
/// The same of one codebook file for the banks that use it, where the container does not open (and
/// of subs-codebooks.bin): throws Error where the file does not, and for what validate(quant)
/// refuses. Records that have their crc32 in
/// `crcs`, by id, are compared with it.
std::uint64_t audit_codebooks(const std::filesystem::path& file, const format::ExpertQuant& quant,
                              std::span<const format::BankEntry> banks, const AuditSink& sink,
                              std::span<const std::uint32_t> crcs = {});

/// Audits every tensor of trunk.bin, resident or not: finite elements and scales, padding columns
/// of code 0, guard bytes 0, the crc32 of trunk.checksums() where it has one. At most one fault per
/// tensor; memory of about a megabyte, or of one row where that is larger. Returns the number of
/// faults.
std::uint64_t audit_trunk(const Container& container, const AuditSink& sink);
std::uint64_t audit_trunk(const Trunk& trunk, const AuditSink& sink);

}  // namespace waste::io
