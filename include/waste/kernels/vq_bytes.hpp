// The fast VQ product: byte tables held in registers, integer sums, 64 rows at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/bytes.hpp"
#include "waste/kernels/lut_i8.hpp"
#include "waste/kernels/vq_lanes.hpp"
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
/// cache while all rows are swept. The next rows' indices are a long jump away from there, beyond
/// what hardware prefetches, so they are prefetched by hand: into the second cache, as the first is
/// the table's, and a core has few places to wait for lines that are on their way to the first.
template <class Traits, class Arch, bool HiLo>
struct vq_bytes {
  using plan = byte_plan<Traits, HiLo>;
  using common = vq_lanes<Traits, Arch>;
  using vec = typename common::vec;
  static constexpr std::size_t run = Traits::run, S = Traits::stages, E = Traits::entries;
  static constexpr std::size_t block_bytes = 64 * run;  ///< of one position
  static constexpr std::size_t position_bytes = S * E * plan::planes;
  static constexpr std::size_t lanes = arch::byte_lanes<Arch>;

  /// Adds the entries of stages [First, End) of one position; a stage's plane is First-relative
  /// `stride` bytes from the next one's.
  template <std::size_t First, std::size_t End, std::size_t G>
  static WASTE_INLINE void add_stages(const std::uint8_t* planes, const vec (&index)[S][G],
                                      arch::u16_sums<Arch> (&sums)[G]) noexcept {
    vec total[G], entry[G];
    common::template lookup<G>(planes + First * E * plan::planes, index[First], total);
    for (std::size_t s = First + 1; s < End; ++s) {
      common::template lookup<G>(planes + s * E * plan::planes, index[s], entry);
      for (std::size_t g = 0; g < G; ++g) total[g] = arch::add_u8<Arch>(total[g], entry[g]);
    }
    for (std::size_t g = 0; g < G; ++g) arch::accumulate<Arch>(sums[g], total[g]);
  }

  /// `lanes` rows at a time: where their indices of the chunk begin, what to prefetch meanwhile,
  /// where a copy of those of the chunk's last position lies if the matrix ends right behind them
  /// (else null), and their totals.
  struct group {
    const std::uint8_t* indices;
    const std::uint8_t* next;
    const std::uint8_t* end_copy;
    float* totals;
  };

  /// `n` positions of G groups that share the loads of the table.
  template <std::size_t G>
  static WASTE_INLINE void chunk(const group (&groups)[G], const ChunkSteps& steps,
                                 const std::uint8_t* planes, std::size_t n) noexcept {
    constexpr std::size_t split = HiLo ? S : plan::split;
    arch::u16_sums<Arch> sum0[G], sum1[G];
    for (std::size_t g = 0; g < G; ++g) {
      arch::clear<Arch>(sum0[g]);
      arch::clear<Arch>(sum1[g]);
    }
    for (std::size_t v = 0; v < n; ++v, planes += position_bytes) {
      vec index[S][G];
      for (std::size_t g = 0; g < G; ++g) {
        const std::uint8_t* from = groups[g].indices + v * block_bytes;
        common::prefetch(groups[g].next + v * block_bytes);
        if (v + 1 == n && groups[g].end_copy != nullptr) from = groups[g].end_copy;
        common::template indices<G>(from, g, index);
      }
      add_stages<0, split, G>(planes, index, sum0);
      if constexpr (HiLo) {
        add_stages<0, S, G>(planes + E, index, sum1);
      } else if constexpr (split < S) {
        add_stages<split, S, G>(planes, index, sum1);
      }
    }
    for (std::size_t g = 0; g < G; ++g) {
      arch::fold<Arch>(sum0[g], sum1[g], steps.steps[0], steps.steps[1], steps.bias,
                       groups[g].totals);
    }
  }

  /// `n` positions of up to 64 rows of a matrix without blocks, brought into a block's order; rows
  /// that are missing count as index 0.
  static WASTE_INLINE void gather_rows(const std::uint8_t* from, std::size_t row_bytes,
                                       std::size_t rows, std::size_t n, std::uint8_t* to) noexcept {
    if (rows < 64) __builtin_memset(to, 0, n * block_bytes);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t v = 0; v < n; ++v) {
        for (std::size_t i = 0; i < run; ++i) {
          to[v * block_bytes + r * run + i] = from[r * row_bytes + v * run + i];
        }
      }
    }
  }

  WASTE_KERNEL static void rows(const VqMatrix& w, const void* table, float* y,
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
    std::uint8_t copy[block_bytes + arch::deinterleave_overread] = {};
    const bool to_end = blocked && row_end == w.n_rows && row_end != row_begin && positions != 0;
    if (to_end) {
      __builtin_memcpy(copy, w.indices + w.layout().bytes() - block_bytes, block_bytes);
    }
    for (std::size_t c = 0; c < layout.chunks; ++c) {
      const std::size_t v0 = c * chunk_positions;
      const std::size_t left = positions - v0, n = left < chunk_positions ? left : chunk_positions;
      const std::uint8_t* const table_at = planes + v0 * position_bytes;
      const bool at_end = to_end && c + 1 == layout.chunks;
      std::uint8_t gathered[chunk_positions * block_bytes + arch::deinterleave_overread];

      constexpr std::size_t G = arch::groups_at_once<Arch>(E), together = G * lanes;
      constexpr std::size_t ahead = together > 64 ? together : 64;
      const std::size_t last_block = row_begin == row_end ? row_begin : (row_end - 1) / 64 * 64;
      const auto indices_of = [&](std::size_t r, std::size_t position) {
        return w.indices + r / 64 * 64 * row_bytes + position * block_bytes + r % 64 * run;
      };
      // `lanes` rows from row r on, which is a multiple of lanes. What follows them are rows
      // further down, or behind the last ones the first ones' indices of the next chunk.
      const auto group_at = [&](std::size_t r) {
        const std::size_t block = r / 64 * 64, part = r % 64;
        group out = {gathered + part * run, gathered, nullptr, block < whole ? y + r : rest + part};
        if (blocked) {
          out.indices = out.next = indices_of(r, v0);
          if (block + ahead <= last_block) {
            out.next = indices_of(r + ahead, v0);
          } else if (c + 1 < layout.chunks) {
            const std::size_t rows_swept = last_block + 64 - row_begin;
            out.next =
                indices_of(row_begin + (r + ahead - row_begin) % rows_swept, v0 + chunk_positions);
          }
          if (at_end && block + 64 >= row_end) out.end_copy = copy + part * run;
        }
        return out;
      };
      for (std::size_t r = row_begin; r < row_end;) {
        [[maybe_unused]] const std::size_t rows_left = (row_end - r + 63) / 64 * 64;
        if (!blocked && r % 64 == 0) {
          gather_rows(w.indices + r * row_bytes + v0 * run, row_bytes,
                      row_end - r < 64 ? row_end - r : 64, n, gathered);
        }
        if constexpr (G > 1) {
          if (rows_left >= together && (blocked || together <= 64)) {
            group groups[G];
            for (std::size_t g = 0; g < G; ++g) groups[g] = group_at(r + g * lanes);
            chunk<G>(groups, steps[c], table_at, n);
            r += together;
            continue;
          }
        }
        const group one[1] = {group_at(r)};
        chunk<1>(one, steps[c], table_at, n);
        r += lanes;
      }
    }
    constexpr auto row_of = rows_of_sums(
        [](std::size_t i) { return i / lanes * lanes + arch::row_of_sum<Arch, run>(i % lanes); });
    for (std::size_t r = row_begin; r < row_end; r += 64) {
      scale_rows<Arch>(r < whole ? y + r : rest, row_of, w.scales + 2 * r,
                       row_end - r < 64 ? row_end - r : 64, y + r);
    }
  }
};

}  // namespace waste::kernels
