// Every offset of an expert record, derived from shapes and never believed from a file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "waste/core/checked.hpp"
#include "waste/core/error.hpp"
#include "waste/format/constants.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/format/expert_record.hpp"
#include "waste/format/index_layout.hpp"

namespace waste::format {

/// Rows and columns of the three matrices: gate and up [inter][width], down [width][inter].
/// `width` is the routed experts' input size: the latent size where the model has one.
struct ExpertShape {
  std::size_t inter = 0;
  std::size_t width = 0;

  constexpr std::size_t rows(Kind k) const noexcept { return k == Kind::down ? width : inter; }
  constexpr std::size_t cols(Kind k) const noexcept { return k == Kind::down ? inter : width; }
  bool operator==(const ExpertShape&) const = default;
};

/// Layout of the records of a container (all banks share it).
struct RecordLayout {
  ExpertQuant quant;
  ExpertShape shape;
  std::array<std::uint32_t, kinds> index_off{};  ///< gate, up, down indices
  std::uint32_t scale_off = 0;                   ///< f16 row scales: gate, up, down
  std::uint32_t payload_end = 0;                 ///< end of the bytes the crc covers
  std::uint64_t record_bytes = 0;                ///< a multiple of 4096

  constexpr IndexLayout indices(Kind k) const noexcept {
    return IndexLayout(quant, shape.rows(k), shape.cols(k));
  }
  /// Byte offset of the first row scale of `k`.
  constexpr std::size_t scales(Kind k) const noexcept {
    std::size_t before = 0;
    if (k != Kind::gate) before += shape.inter;
    if (k == Kind::down) before += shape.inter;
    return scale_off + 2 * before;
  }
};

/// Derives the layout. Faults: what validate(ExpertQuant) refuses; columns that are 0, too large or
/// no multiple of vec_dim; a record that does not fit in 32-bit offsets.
constexpr Fault derive_layout(const ExpertQuant& quant, const ExpertShape& shape,
                              RecordLayout& out) noexcept {
  if (const Fault f = validate(quant)) return f;
  for (const std::size_t n : {shape.inter, shape.width}) {
    const char* field = n == shape.inter ? "moe_intermediate_size" : "routed_expert_hidden_size";
    if (n == 0 || n > limits::dimension) {
      return fault(Errc::out_of_range, field, n, limits::dimension);
    }
    if (n % vec_dim != 0) return fault(Errc::bad_field, field, n, round_up(n, vec_dim));
  }
  out.quant = quant;
  out.shape = shape;
  CheckedSize at(record_header_bytes);
  for (std::size_t k = 0; k < kinds; ++k) {
    if (at.value() > 0xffffffffu) return fault(Errc::overflow, "record", at.value(), 0xffffffffu);
    out.index_off[k] = static_cast<std::uint32_t>(at.value());
    const IndexLayout layout = out.indices(static_cast<Kind>(k));
    at.add(CheckedSize(layout.padded_rows()).mul(layout.positions).mul(layout.run).value());
  }
  const std::uint64_t scales = at.value();
  at.add(2 * (2 * shape.inter + shape.width));
  if (!at.ok() || at.value() > limits::record_bytes - page_bytes) {
    return fault(Errc::overflow, "record", at.value(), limits::record_bytes);
  }
  out.scale_off = static_cast<std::uint32_t>(scales);
  out.payload_end = static_cast<std::uint32_t>(at.value());
  out.record_bytes = round_up<std::uint64_t>(at.value(), page_bytes);
  return {};
}

/// The header that a writer stores for this expert, crc left 0.
constexpr ExpertRecordHeader make_header(const RecordLayout& layout, LayerId layer, ExpertId expert,
                                         std::uint32_t codebook_base) noexcept {
  ExpertRecordHeader h;
  if (layout.quant.fmt == Fmt::sub1) h.magic = substitute_magic;
  h.layer = static_cast<std::uint16_t>(to_index(layer));
  h.expert_id = static_cast<std::uint16_t>(to_index(expert));
  h.fmt = static_cast<std::uint8_t>(layout.quant.fmt);
  h.codebook_id = static_cast<std::uint16_t>(codebook_base);
  h.rec_4k_blocks = static_cast<std::uint32_t>(layout.record_bytes / page_bytes);
  h.gate_off = layout.index_off[0];
  h.up_off = layout.index_off[1];
  h.down_off = layout.index_off[2];
  h.chan_corr_off = layout.scale_off;
  return h;
}

/// Checks a header against what the manifest derives: every field equal, with two tolerances of
/// files in the world: fmt 4 and 5 are both accepted for 8-bit indices (the stage count comes
/// from the manifest), and `flags` are hints. bf16 payloads and low-rank parts are refused. A
/// substitute's header has neither tolerance: fmt 6, flags 0.
constexpr Fault validate_header(const ExpertRecordHeader& h, const RecordLayout& layout,
                                LayerId layer, ExpertId expert,
                                std::uint32_t codebook_base) noexcept {
  const ExpertRecordHeader want = make_header(layout, layer, expert, codebook_base);
  const auto differs = [&](Errc code, const char* field, std::uint64_t got, std::uint64_t wanted) {
    return fault(code, field, got, wanted).at(layer, expert);
  };
  if (h.magic != want.magic) return differs(Errc::bad_magic, "magic", h.magic, want.magic);
  if (h.layer != want.layer) return differs(Errc::mismatch, "layer", h.layer, want.layer);
  if (h.expert_id != want.expert_id) {
    return differs(Errc::mismatch, "expert_id", h.expert_id, want.expert_id);
  }
  const bool substitute = layout.quant.fmt == Fmt::sub1;
  const bool byte_indices = layout.quant.index_bits == 8;
  const bool fmt_ok = byte_indices && !substitute
                          ? (h.fmt == static_cast<std::uint8_t>(Fmt::vq3r) ||
                             h.fmt == static_cast<std::uint8_t>(Fmt::vq2r))
                          : h.fmt == want.fmt;
  if (!fmt_ok) return differs(Errc::mismatch, "fmt", h.fmt, want.fmt);
  if (substitute && h.flags != 0) return differs(Errc::bad_field, "flags", h.flags, 0);
  if ((h.flags & ~7u) != 0) return differs(Errc::bad_field, "flags", h.flags, 0);
  if ((h.flags & record_flags::bf16_payload) != 0) {
    return differs(Errc::unsupported, "flags (bf16 payload)", h.flags, 0);
  }
  if (h.codebook_id != want.codebook_id) {
    return differs(Errc::mismatch, "codebook_id", h.codebook_id, want.codebook_id);
  }
  if (h.lowrank_id != 0) return differs(Errc::unsupported, "lowrank_id", h.lowrank_id, 0);
  if (h.reserved0 != 0) return differs(Errc::bad_field, "reserved0", h.reserved0, 0);
  if (h.rec_4k_blocks != want.rec_4k_blocks) {
    return differs(Errc::mismatch, "rec_4k_blocks", h.rec_4k_blocks, want.rec_4k_blocks);
  }
  if (h.gate_off != want.gate_off) {
    return differs(Errc::mismatch, "gate_off", h.gate_off, want.gate_off);
  }
  if (h.up_off != want.up_off) return differs(Errc::mismatch, "up_off", h.up_off, want.up_off);
  if (h.down_off != want.down_off) {
    return differs(Errc::mismatch, "down_off", h.down_off, want.down_off);
  }
  if (h.chan_corr_off != want.chan_corr_off) {
    return differs(Errc::mismatch, "chan_corr_off", h.chan_corr_off, want.chan_corr_off);
  }
  for (const std::uint32_t r : h.reserved1) {
    if (r != 0) return differs(Errc::bad_field, "reserved1", r, 0);
  }
  return {};
}

}  // namespace waste::format
