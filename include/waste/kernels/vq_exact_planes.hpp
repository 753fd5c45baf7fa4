// The exact VQ product on tiers that look bytes up faster than floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/arch/bytes.hpp"
#include "waste/arch/ops.hpp"
#include "waste/kernels/vq_lanes.hpp"
#include "waste/kernels/vq_table.hpp"
#include "waste/quant/vq.hpp"

namespace waste::kernels {

/// The sum of vq_exact, bit for bit, 64 rows at a time, of matrices in blocks of 64 rows. Byte p of
/// an entry is looked up in plane p of the table, and a row's four bytes are its f32. The planes of
/// a few positions are made from the f32 table when the sweep comes to them, and stay in the
/// nearest cache while up to slab_rows rows pass. The indices that come next are prefetched as in
/// vq_bytes.
template <class Traits, class Arch>
struct vq_exact_planes {
  using common = vq_lanes<Traits, Arch>;
  using vec = typename common::vec;
  using f32 = arch::f32x16<Arch>;
  static constexpr std::size_t run = Traits::run, S = Traits::stages, E = Traits::entries;
  static constexpr std::size_t block_bytes = 64 * run;  ///< of one position
  static constexpr std::size_t position_bytes = 4 * S * E;
  static constexpr std::size_t slab_rows = 4096;
  /// Fewer rows are not worth making planes for.
  static constexpr std::size_t least_rows = 128;
  /// Positions whose planes are made together; a whole number of them is a chunk.
  static constexpr std::size_t positions_at_once = [] {
    std::size_t n = chunk_positions;
    while (n * position_bytes > 24 * 1024) n /= 2;
    return n;
  }();
  static_assert(arch::byte_lanes<Arch> == 64 && positions_at_once > 0);

  /// 64 rows: their indices of these positions, what to prefetch meanwhile, and in the order of
  /// join_f32 the sums of the chunk so far and their totals.
  struct group {
    const std::uint8_t* indices;
    const std::uint8_t* next;
    float* sums;
    float* totals;
  };

  static WASTE_INLINE void make_planes(const float* lut, std::size_t n,
                                       std::uint8_t* planes) noexcept {
    for (std::size_t i = 0; i < n * S; ++i, lut += E, planes += 4 * E) {
      for (std::size_t e = 0; e < E; e += 64) arch::split_f32<Arch>(lut + e, planes + e, E);
    }
  }

  /// `n` positions of G groups that share the loads of the planes.
  template <std::size_t G>
  static WASTE_INLINE void sweep(const group (&groups)[G], const std::uint8_t* planes,
                                 std::size_t n, bool begins_chunk, bool ends_chunk) noexcept {
    f32 sum[G][4];
    for (std::size_t g = 0; g < G; ++g) {
      for (std::size_t q = 0; q < 4; ++q) {
        sum[g][q] = begins_chunk ? arch::broadcast16<Arch>(0.0f)
                                 : arch::load_f32<Arch>(groups[g].sums + 16 * q);
      }
    }
    for (std::size_t v = 0; v < n; ++v) {
      vec index[S][G];
      for (std::size_t g = 0; g < G; ++g) {
        common::prefetch(groups[g].next + v * block_bytes);
        common::template indices<G>(groups[g].indices + v * block_bytes, g, index);
      }
      f32 t[G][4];
      for (std::size_t s = 0; s < S; ++s, planes += 4 * E) {
        vec byte[4][G];
        for (std::size_t p = 0; p < 4; ++p) {
          common::template lookup<G>(planes + p * E, index[s], byte[p]);
        }
        for (std::size_t g = 0; g < G; ++g) {
          const vec bytes[4] = {byte[0][g], byte[1][g], byte[2][g], byte[3][g]};
          f32 entry[4];
          arch::join_f32<Arch>(bytes, entry);
          for (std::size_t q = 0; q < 4; ++q) t[g][q] = s == 0 ? entry[q] : t[g][q] + entry[q];
        }
      }
      for (std::size_t g = 0; g < G; ++g) {
        for (std::size_t q = 0; q < 4; ++q) sum[g][q] = sum[g][q] + t[g][q];
      }
    }
    for (std::size_t g = 0; g < G; ++g) {
      for (std::size_t q = 0; q < 4; ++q) {
        if (ends_chunk) {
          float* const at = groups[g].totals + 16 * q;
          arch::store_f32<Arch>(at, arch::load_f32<Arch>(at) + sum[g][q]);
        } else {
          arch::store_f32<Arch>(groups[g].sums + 16 * q, sum[g][q]);
        }
      }
    }
  }

  WASTE_KERNEL static void rows(const VqMatrix& w, const float* lut, float* y,
                                std::size_t row_begin, std::size_t row_end) noexcept {
    for (std::size_t r = row_begin; r < row_end; r += slab_rows) {
      slab(w, lut, y, r, row_end - r < slab_rows ? row_end : r + slab_rows);
    }
  }

  static WASTE_INLINE void slab(const VqMatrix& w, const float* lut, float* y,
                                std::size_t row_begin, std::size_t row_end) noexcept {
    const std::size_t positions = w.n_cols / Traits::vec_dim;
    const std::size_t blocks = (row_end - row_begin + 63) / 64;
    const std::size_t whole = (row_end - row_begin) / 64;
    const std::uint8_t* const indices = w.indices + row_begin * positions * run;
    alignas(64) std::uint8_t planes[positions_at_once * position_bytes];
    alignas(64) float sums[slab_rows];
    // Totals of whole blocks live in y, in the order of join_f32, until the end.
    float rest[64] = {};
    for (std::size_t i = 0; i < 64 * whole; ++i) y[row_begin + i] = 0.0f;
    const auto totals_of = [&](std::size_t block) {
      return block < whole ? y + row_begin + 64 * block : rest;
    };

    for (std::size_t v = 0; v < positions; v += positions_at_once) {
      const std::size_t left = positions - v;
      const std::size_t n = left < positions_at_once ? left : positions_at_once;
      make_planes(lut + v * S * E, n, planes);
      const bool begins_chunk = v % chunk_positions == 0;
      const bool ends_chunk = (v + n) % chunk_positions == 0 || n == left;
      constexpr std::size_t G = 2;
      const auto group_at = [&](std::size_t block) {
        const auto indices_of = [&](std::size_t b, std::size_t position) {
          return indices + b * positions * block_bytes + position * block_bytes;
        };
        const std::size_t ahead = block + G;
        group out = {indices_of(block, v), nullptr, sums + 64 * block, totals_of(block)};
        out.next = ahead < blocks ? indices_of(ahead, v)
                   : n < left     ? indices_of(ahead % blocks, v + n)
                                  : out.indices;
        return out;
      };
      std::size_t b = 0;
      for (; b + G <= blocks; b += G) {
        const group groups[G] = {group_at(b), group_at(b + 1)};
        sweep<G>(groups, planes, n, begins_chunk, ends_chunk);
      }
      if (b < blocks) {
        const group groups[1] = {group_at(b)};
        sweep<1>(groups, planes, n, begins_chunk, ends_chunk);
      }
    }
    constexpr auto row_of =
        rows_of_sums([](std::size_t i) { return arch::row_of_joined<Arch, run>(i); });
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::size_t r = row_begin + 64 * b;
      scale_rows<Arch>(totals_of(b), row_of, w.scales + 2 * r, row_end - r < 64 ? row_end - r : 64,
                       y + r);
    }
  }
};

}  // namespace waste::kernels
