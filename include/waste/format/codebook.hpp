// The records of codebooks.bin: a 16-byte header and f16 entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "waste/core/error.hpp"
#include "waste/core/half.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/expert_quant.hpp"

namespace waste::format {

/// Header of a codebook record, little-endian, packed. The record's position in the file is its
/// id; `entries` x 8 f16 follow, [entry][dim].
struct CodebookHeader {
  std::uint32_t magic = codebook_magic;
  std::uint16_t codebook_id = 0;  ///< id & 0xffff
  std::uint8_t fmt = 0;
  std::uint8_t vec_dim = 8;
  std::uint32_t n_entries = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(CodebookHeader) == codebook_header_bytes);

/// Bytes of one record: 4112 for 256 entries, 1040 for 64.
constexpr std::size_t codebook_record_bytes(const ExpertQuant& quant) noexcept {
  return codebook_header_bytes + 2 * vec_dim * quant.entries;
}

/// Codebooks of one layer: gate s0 .. sS-1, then up, then down.
constexpr std::uint32_t codebooks_per_layer(const ExpertQuant& quant) noexcept {
  return static_cast<std::uint32_t>(kinds) * quant.stages;
}

/// Checks the header that record `id` must have. One tolerance: the C engine's converter writes
/// fmt 4 for every format, so 4 is accepted beside the container's own (not beside SUB1, which it
/// does not write).
inline Fault validate_codebook_header(const CodebookHeader& h, const ExpertQuant& quant,
                                      std::uint32_t id) noexcept {
  if (h.magic != codebook_magic) {
    return fault(Errc::bad_magic, "codebook magic", h.magic, codebook_magic);
  }
  if (h.codebook_id != (id & 0xffffu)) {
    return fault(Errc::mismatch, "codebook id", h.codebook_id, id & 0xffffu);
  }
  const auto fmt = static_cast<std::uint8_t>(quant.fmt);
  const bool any_label = quant.fmt != Fmt::sub1;
  if (h.fmt != fmt && !(any_label && h.fmt == static_cast<std::uint8_t>(Fmt::vq3r))) {
    return fault(Errc::mismatch, "codebook fmt", h.fmt, fmt);
  }
  if (h.vec_dim != vec_dim) return fault(Errc::mismatch, "codebook vec_dim", h.vec_dim, vec_dim);
  if (h.n_entries != quant.entries) {
    return fault(Errc::mismatch, "codebook entries", h.n_entries, quant.entries);
  }
  if (h.reserved != 0) return fault(Errc::bad_field, "codebook reserved", h.reserved, 0);
  return {};
}

/// Checks a whole record, codebook_record_bytes long: header and finite entries.
inline Fault validate_codebook(std::span<const std::uint8_t> record, const ExpertQuant& quant,
                               std::uint32_t id) noexcept {
  if (record.size() != codebook_record_bytes(quant)) {
    return fault(Errc::truncated, "codebook record", record.size(), codebook_record_bytes(quant));
  }
  if (const Fault f = validate_codebook_header(load_le<CodebookHeader>(record.data()), quant, id)) {
    return f;
  }
  for (std::size_t at = codebook_header_bytes; at < record.size(); at += 2) {
    if (!f16_is_finite(load_le<std::uint16_t>(record.data() + at))) {
      return fault(Errc::bad_field, "codebook entry is not finite");
    }
  }
  return {};
}

/// A record that a resumed conversion left for an id nobody uses: all zero.
inline bool is_filler(std::span<const std::uint8_t> record) noexcept {
  for (const std::uint8_t b : record) {
    if (b != 0) return false;
  }
  return true;
}

}  // namespace waste::format
