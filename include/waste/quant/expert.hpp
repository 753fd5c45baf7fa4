// The three matrices of an expert record that lies in memory.
#pragma once

#include <cstdint>

#include "waste/format/record_layout.hpp"
#include "waste/format/vq_view.hpp"

namespace waste::quant {

/// Matrix `kind` of a record whose header was checked against `layout` (all offsets derived, none
/// read). `record` has layout.record_bytes bytes; `codebooks` are the kind's, f32
/// [stages][2^index_bits][8].
inline VqMatrix matrix_view(const format::RecordLayout& layout, const std::uint8_t* record,
                            format::Kind kind, const float* codebooks) noexcept {
  VqMatrix w;
  w.indices = record + layout.index_off[static_cast<std::size_t>(kind)];
  w.scales = record + layout.scales(kind);
  w.codebooks = codebooks;
  w.n_rows = layout.shape.rows(kind);
  w.n_cols = layout.shape.cols(kind);
  w.quant = layout.quant;
  return w;
}

/// Gate, up and down of such a record; `codebooks` in that order.
inline ExpertView expert_view(const format::RecordLayout& layout, const std::uint8_t* record,
                              const float* const (&codebooks)[format::kinds]) noexcept {
  return {matrix_view(layout, record, format::Kind::gate, codebooks[0]),
          matrix_view(layout, record, format::Kind::up, codebooks[1]),
          matrix_view(layout, record, format::Kind::down, codebooks[2])};
}

}  // namespace waste::quant
