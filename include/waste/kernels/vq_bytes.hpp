// The fast VQ product: byte tables held in registers, integer sums, 64 rows at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/bytes.hpp"
#include "waste/kernels/lut_i8.hpp"
#include "waste/kernels/vq_table.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// The sum that every tier computes, from the table of byte_table_build:
///     y = scale (t[0] + t[1] + ..)   over chunks of 32 positions, from 0 and in order,
///     t = fma(step0, sum0, fma(step1, sum1, bias)),
/// sum0 and sum1 being integers (at most 32 * 255, which fits 16 bits and f32). The integers agree
/// on every tier, y wherever multiply-add is fused.
///
/// Chunk-major: the part of the table that 32 positions need (8 to 64 KB) stays in the nearest
/// cache while all rows are swept. The next block's indices are a long jump away from there, beyond
/// what hardware prefetches, so they are prefetched by hand.
template <class Traits, class Arch, bool HiLo>
struct vq_bytes {
  using plan = byte_plan<Traits, HiLo>;
  using vec = arch::u8x64<Arch>;
  static constexpr std::size_t run = Traits::run, S = Traits::stages, E = Traits::entries;
  static constexpr std::size_t block_bytes = 64 * run;  ///< of one position
  static constexpr std::size_t position_bytes = S * E * plan::planes;

  static WASTE_INLINE vec lookup(const std::uint8_t* table, const vec& index) noexcept {
    if constexpr (Traits::index_bits == 6) {
      return arch::lookup64<Arch>(table, index);
    } else {
      return arch::lookup256<Arch>(table, index);
    }
  }

  static WASTE_INLINE void add_position(const std::uint8_t* indices, const std::uint8_t* planes,
                                        arch::u16x64<Arch> (&sums)[2]) noexcept {
    vec bytes[run], index[S];
    arch::deinterleave<Arch, run>(indices, bytes);
    if constexpr (Traits::index_bits == 6) {
      arch::unpack6<Arch>(bytes, index);
    } else {
      for (std::size_t s = 0; s < S; ++s) index[s] = bytes[s];
    }
    constexpr std::size_t split = HiLo ? S : plan::split;
    vec sum = lookup(planes, index[0]);
    for (std::size_t s = 1; s < split; ++s) {
      sum = arch::add_u8<Arch>(sum, lookup(planes + plan::planes * E * s, index[s]));
    }
    arch::accumulate<Arch>(sums[0], sum);
    if constexpr (HiLo) {
      sum = lookup(planes + E, index[0]);
      for (std::size_t s = 1; s < S; ++s) {
        sum = arch::add_u8<Arch>(sum, lookup(planes + 2 * E * s + E, index[s]));
      }
      arch::accumulate<Arch>(sums[1], sum);
    } else if constexpr (split < S) {
      sum = lookup(planes + E * split, index[split]);
      for (std::size_t s = split + 1; s < S; ++s) {
        sum = arch::add_u8<Arch>(sum, lookup(planes + E * s, index[s]));
      }
      arch::accumulate<Arch>(sums[1], sum);
    }
  }

  /// `n` positions of Blocks blocks of 64 rows. `last` is the one position whose surplus bytes
  /// might lie outside the matrix; `copy` holds it with room behind.
  template <std::size_t Blocks>
  static WASTE_INLINE void chunk(const std::uint8_t* const (&indices)[Blocks],
                                 std::size_t prefetch_bytes, const std::uint8_t* last,
                                 const std::uint8_t* copy, const ChunkSteps& steps,
                                 const std::uint8_t* planes, std::size_t n,
                                 float* const (&totals)[Blocks]) noexcept {
    arch::u16x64<Arch> sums[Blocks][2];
    for (std::size_t b = 0; b < Blocks; ++b) {
      arch::clear<Arch>(sums[b][0]);
      arch::clear<Arch>(sums[b][1]);
    }
    for (std::size_t v = 0; v < n; ++v) {
      for (std::size_t b = 0; b < Blocks; ++b) {
        const std::uint8_t* at = indices[b] + v * block_bytes;
        for (std::size_t line = 0; line < block_bytes; line += 64) {
          __builtin_prefetch(at + prefetch_bytes + line);
        }
        add_position(at == last ? copy : at, planes + v * position_bytes, sums[b]);
      }
    }
    for (std::size_t b = 0; b < Blocks; ++b) {
      arch::fold<Arch>(sums[b][0], sums[b][1], steps.steps[0], steps.steps[1], steps.bias,
                       totals[b]);
    }
  }

  /// `n` positions of up to 64 rows of a matrix without blocks, brought into a block's order.
  static WASTE_INLINE void gather_rows(const std::uint8_t* from, std::size_t row_bytes,
                                       std::size_t rows, std::size_t n, std::uint8_t* to) noexcept {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t v = 0; v < n; ++v) {
        for (std::size_t i = 0; i < run; ++i) {
          to[v * block_bytes + r * run + i] = from[r * row_bytes + v * run + i];
        }
      }
    }
  }

  static WASTE_INLINE void rows(const VqMatrix& w, const void* table, float* y,
                                std::size_t row_begin, std::size_t row_end) noexcept {
    const std::size_t positions = w.n_cols / Traits::vec_dim;
    const TableLayout layout(HiLo ? Precision::hilo14 : Precision::split8, w.quant, w.n_cols);
    const auto* const steps = static_cast<const ChunkSteps*>(table);
    const auto* const planes = static_cast<const std::uint8_t*>(table) + layout.planes_off;
    const bool blocked = w.quant.index_block != 0;
    const std::size_t row_bytes = positions * run;
    const std::size_t whole = row_begin + (row_end - row_begin) / 64 * 64;

    // Totals of whole blocks live in y, in the order of the tier's lanes, until the end.
    float rest[64] = {};
    for (std::size_t r = row_begin; r < whole; ++r) y[r] = 0.0f;
    const auto totals = [&](std::size_t r) { return r < whole ? y + r : rest; };
    std::uint8_t copy[block_bytes + arch::deinterleave_overread] = {};
    const std::uint8_t* last = nullptr;
    if (blocked && row_end == w.n_rows && row_end != row_begin && positions != 0) {
      last = w.indices + w.layout().bytes() - block_bytes;
      __builtin_memcpy(copy, last, block_bytes);
    }
    for (std::size_t c = 0; c < layout.chunks; ++c) {
      const std::size_t v0 = c * chunk_positions;
      const std::size_t left = positions - v0, n = left < chunk_positions ? left : chunk_positions;
      const std::uint8_t* const table_at = planes + v0 * position_bytes;
      if (!blocked) {
        std::uint8_t block[chunk_positions * block_bytes + arch::deinterleave_overread] = {};
        for (std::size_t r = row_begin; r < row_end; r += 64) {
          gather_rows(w.indices + r * row_bytes + v0 * run, row_bytes,
                      row_end - r < 64 ? row_end - r : 64, n, block);
          const std::uint8_t* const at[1] = {block};
          float* const to[1] = {totals(r)};
          chunk<1>(at, 0, nullptr, nullptr, steps[c], table_at, n, to);
        }
        continue;
      }
      const std::uint8_t* at = w.indices + row_begin * row_bytes + v0 * block_bytes;
      const std::size_t next = 64 * row_bytes;
      std::size_t r = row_begin;
      constexpr std::size_t B = arch::blocks_at_once<Arch>;
      for (; B > 1 && r + 64 * B <= row_end; r += 64 * B) {
        const std::uint8_t* pair[B];
        float* to[B];
        for (std::size_t b = 0; b < B; ++b, at += next) {
          pair[b] = at;
          to[b] = y + r + 64 * b;
        }
        chunk<B>(pair, B * next, last, copy, steps[c], table_at, n, to);
      }
      for (; r < row_end; r += 64, at += next) {
        const std::uint8_t* const one[1] = {at};
        float* const to[1] = {totals(r)};
        chunk<1>(one, next, last, copy, steps[c], table_at, n, to);
      }
    }
    for (std::size_t r0 = row_begin; r0 < row_end; r0 += 64) {
      float sums[64];
      __builtin_memcpy(sums, totals(r0), sizeof sums);
      for (std::size_t i = 0; i < 64; ++i) {
        const std::size_t r = r0 + arch::row_of_sum<Arch, run>(i);
        if (r < row_end) y[r] = arch::load_one_f16<Arch>(w.scales + 2 * r) * sums[i];
      }
    }
  }
};

}  // namespace waste::kernels
