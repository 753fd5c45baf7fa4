// Beam search for the codebook entries whose sum is closest to a vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "waste/arch/i32x16.hpp"
#include "waste/format/constants.hpp"
#include "waste/kernels/encode_kernels.hpp"
#include "waste/kernels/smallest.hpp"

namespace waste::kernels {
namespace search_detail {

using arch::detail::i16x8;

/// One stage of SearchBooks.
struct Stage {
  const std::int32_t* norms;
  const std::int16_t* pairs;
  const std::int16_t* steps;

  WASTE_INLINE Stage(const SearchBooks& books, std::size_t s) noexcept
      : norms(books.norms + s * books.entries),
        pairs(books.pairs + s * books.entries * 8),
        steps(books.steps + s * books.entries * 8) {}
};

/// A residual (8 x i16) as four pairs, each in all lanes.
template <class Arch>
struct Broadcast {
  arch::i32x16<Arch> pair[4];
  WASTE_INLINE explicit Broadcast(const std::int16_t* residual) noexcept {
    std::int32_t words[4];
    std::memcpy(words, residual, sizeof words);
    for (int k = 0; k < 4; ++k) pair[k] = arch::i32x16<Arch>::broadcast(words[k]);
  }
};

template <class Arch>
WASTE_INLINE arch::i32x16<Arch> score(const Stage& stage, std::size_t entries, std::size_t first,
                                      const Broadcast<Arch>& r) noexcept {
  using I = arch::i32x16<Arch>;
  I sum = I::load(stage.norms + first);
  for (std::size_t k = 0; k < 4; ++k) {
    sum = dot_i16(sum, r.pair[k], I::load(stage.pairs + 2 * (k * entries + first)));
  }
  return sum;
}

/// The least score of each class of entries; its low four bits name the row of 16.
template <class Arch>
WASTE_INLINE arch::i32x16<Arch> best_of_classes(const Stage& stage, std::size_t entries,
                                                const std::int16_t* residual) noexcept {
  const Broadcast<Arch> r(residual);
  arch::i32x16<Arch> best = score<Arch>(stage, entries, 0, r);
  for (std::size_t first = 16; first < entries; first += 16) {
    best = min(best, score<Arch>(stage, entries, first, r));
  }
  return best;
}

/// Two residuals at once, which halves the loads.
template <class Arch>
WASTE_INLINE void best_of_classes(const Stage& stage, std::size_t entries,
                                  const std::int16_t* residual0, const std::int16_t* residual1,
                                  arch::i32x16<Arch>& best0, arch::i32x16<Arch>& best1) noexcept {
  using batch = typename arch::i32x16<Arch>::batch;
  using ops = arch::detail::i32_ops<Arch>;
  std::int32_t words0[4], words1[4];
  std::memcpy(words0, residual0, sizeof words0);
  std::memcpy(words1, residual1, sizeof words1);
  batch r0[4], r1[4];
  for (int k = 0; k < 4; ++k) r0[k] = batch(words0[k]), r1[k] = batch(words1[k]);
  for (std::size_t part = 0; part < best0.count; ++part) {
    batch least0(0x7fffffff), least1(0x7fffffff);
    for (std::size_t at = part * batch::size; at < entries; at += 16) {
      batch sum0 = batch::load_unaligned(stage.norms + at), sum1 = sum0;
      for (std::size_t k = 0; k < 4; ++k) {
        const batch pair = batch::load_unaligned(
            reinterpret_cast<const std::int32_t*>(stage.pairs + 2 * (k * entries + at)));
        sum0 = ops::dot(sum0, r0[k], pair);
        sum1 = ops::dot(sum1, r1[k], pair);
      }
      least0 = xsimd::min(least0, sum0);
      least1 = xsimd::min(least1, sum1);
    }
    best0.v[part] = least0;
    best1.v[part] = least1;
  }
}

/// The entry of the least of 16 class minima; the lowest class at a tie.
template <class Arch>
WASTE_INLINE std::size_t least_entry(const arch::i32x16<Arch>& best) noexcept {
  std::size_t lane;
  const std::int32_t score = first_least(best, lane);
  return static_cast<std::size_t>(score & 15) * 16 + lane;
}

/// Stage by stage over a few vectors, so that the next pair's scores overlap this pair's choice.
template <class Arch>
WASTE_INLINE void greedy(const SearchBooks& books, const std::int16_t* targets, std::size_t count,
                         std::uint8_t* indices) noexcept {
  constexpr std::size_t chunk = 64;
  alignas(64) std::int16_t residuals[chunk * 8];
  for (std::size_t first = 0; first < count; first += chunk) {
    const std::size_t n = count - first < chunk ? count - first : chunk;
    std::memcpy(residuals, targets + 8 * first, n * 8 * sizeof(std::int16_t));
    for (std::size_t s = 0; s < books.stages; ++s) {
      const Stage stage(books, s);
      const auto take = [&](std::size_t i, const arch::i32x16<Arch>& best) {
        const std::size_t entry = least_entry(best);
        indices[(first + i) * books.stages + s] = static_cast<std::uint8_t>(entry);
        std::int16_t* residual = residuals + 8 * i;
        i16x8::subtract(residual, stage.steps + 8 * entry, residual);
      };
      std::size_t i = 0;
      for (; i + 2 <= n; i += 2) {
        arch::i32x16<Arch> best0, best1;
        best_of_classes<Arch>(stage, books.entries, residuals + 8 * i, residuals + 8 * i + 8, best0,
                              best1);
        take(i, best0);
        take(i + 1, best1);
      }
      if (i < n) take(i, best_of_classes<Arch>(stage, books.entries, residuals + 8 * i));
    }
  }
}

/// The paths of one vector that are alive, and the candidates that extend them.
template <std::size_t B>
struct Beam {
  struct Path {
    alignas(16) std::int16_t residual[8];
  };
  alignas(64) std::int32_t keys[B < 16 ? 17 * 16 : (B + 1) * 16];
  alignas(64) std::int32_t errors[B < 16 ? 16 * 16 : B * 16];  ///< 16 |r|^2 and a row number
  Path paths[2][B];
  std::int32_t error[B];
  std::uint64_t history[2][B];  ///< stage s in byte s
  std::int32_t chosen[B];
};

/// Keys whose order is that of the errors to a relative 2^-(15 - log2 B) and which name their
/// candidate: path, row of 16, class.
template <class Arch, std::size_t B>
WASTE_INLINE void add_candidates(Beam<B>& beam, std::size_t row, std::size_t path,
                                 const arch::i32x16<Arch>& error) noexcept {
  using I = arch::i32x16<Arch>;
  alignas(64) static constexpr std::int32_t classes[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                           8, 9, 10, 11, 12, 13, 14, 15};
  const I id = I::load(classes) | I::broadcast(static_cast<std::int32_t>(path << 8)) |
               shift_left(error & I::broadcast(15), 4);
  const std::int32_t keep = ~static_cast<std::int32_t>(256 * B - 1);
  ((float_bits(error) & I::broadcast(keep)) | id).store(beam.keys + 16 * row);
  error.store(beam.errors + 16 * row);
}

template <class Arch, std::size_t B>
WASTE_INLINE void search_one(const SearchBooks& books, const std::int16_t* target, Beam<B>& beam,
                             std::uint8_t* indices) noexcept {
  using I = arch::i32x16<Arch>;
  std::int32_t norm = 0;
  for (std::size_t d = 0; d < 8; ++d) norm += target[d] * target[d];
  std::memcpy(beam.paths[0][0].residual, target, 16);
  beam.error[0] = norm;  // 16 |T|^2, as targets are 4 T
  beam.history[0][0] = 0;
  std::size_t alive = 1, now = 0;

  for (std::size_t s = 0; s + 1 < books.stages; ++s) {
    const Stage stage(books, s);
    std::size_t rows = 0;
    if (alive == 1) {  // every entry is a candidate: rows are rows of 16 entries
      const Broadcast<Arch> r(beam.paths[now][0].residual);
      const I base = I::broadcast(beam.error[0]);
      for (; rows < books.entries / 16; ++rows) {
        add_candidates<Arch>(beam, rows, 0, base + score<Arch>(stage, books.entries, 16 * rows, r));
      }
    } else {
      for (; rows < alive; rows += 2) {
        I best0, best1;
        best_of_classes<Arch>(stage, books.entries, beam.paths[now][rows].residual,
                              beam.paths[now][rows + 1].residual, best0, best1);
        add_candidates<Arch>(beam, rows, rows, best0 + I::broadcast(beam.error[rows]));
        add_candidates<Arch>(beam, rows + 1, rows + 1, best1 + I::broadcast(beam.error[rows + 1]));
      }
    }
    const std::size_t candidates = 16 * rows;
    for (; rows % B != 0; ++rows) I::broadcast(0x7fffffff).store(beam.keys + 16 * rows);
    smallest<Arch, B>(beam.keys, rows, candidates < B, beam.chosen);
    const bool first = alive == 1;
    alive = candidates < B ? candidates : B;
    for (std::size_t i = 0; i < alive; ++i) {
      const std::size_t id = static_cast<std::size_t>(beam.chosen[i]) & (256 * B - 1);
      const std::size_t path = id >> 8, entry = id & 255;
      const std::size_t row = first ? entry >> 4 : path;
      beam.error[i] = beam.errors[16 * row + (entry & 15)] & ~15;
      beam.history[1 - now][i] = beam.history[now][path] | std::uint64_t{entry} << (8 * s);
      i16x8::subtract(beam.paths[now][path].residual, stage.steps + 8 * entry,
                      beam.paths[1 - now][i].residual);
    }
    now = 1 - now;
  }

  const std::size_t last = books.stages - 1;
  const Stage stage(books, last);
  I best = I::broadcast(0x7fffffff), owner = I::broadcast(0);
  for (std::size_t path = 0; path < alive; ++path) {
    const I error = best_of_classes<Arch>(stage, books.entries, beam.paths[now][path].residual) +
                    I::broadcast(beam.error[path]);
    for (std::size_t i = 0; i < best.count; ++i) {
      const auto closer = error.v[i] < best.v[i];
      best.v[i] = xsimd::min(best.v[i], error.v[i]);
      owner.v[i] =
          xsimd::select(closer, typename I::batch(static_cast<std::int32_t>(path)), owner.v[i]);
    }
  }
  alignas(64) std::int32_t owners[16];
  owner.store(owners);
  const std::size_t entry = least_entry(best);
  const std::uint64_t history = beam.history[now][owners[entry & 15]] | std::uint64_t{entry}
                                                                            << (8 * last);
  for (std::size_t s = 0; s < books.stages; ++s) {
    indices[s] = static_cast<std::uint8_t>(history >> (8 * s));
  }
}

template <class Arch, std::size_t B>
WASTE_FLATTEN inline void search_all(const SearchBooks& books, const std::int16_t* targets,
                                     std::size_t count, std::uint8_t* indices) noexcept {
  Beam<B> beam;
  for (std::size_t i = 0; i < count; ++i) {
    search_one<Arch, B>(books, targets + 8 * i, beam, indices + i * books.stages);
  }
}

}  // namespace search_detail

/// EncodeKernels::search.
struct vq_search {
  template <class Arch>
  void operator()(Arch, const SearchBooks& books, const std::int16_t* targets, std::size_t count,
                  std::size_t beam, std::uint8_t* indices) const noexcept {
    using namespace search_detail;
    if (beam >= 32) return search_all<Arch, 32>(books, targets, count, indices);
    if (beam >= 16) return search_all<Arch, 16>(books, targets, count, indices);
    if (beam >= 8) return search_all<Arch, 8>(books, targets, count, indices);
    if (beam >= 4) return search_all<Arch, 4>(books, targets, count, indices);
    greedy<Arch>(books, targets, count, indices);
  }
};

}  // namespace waste::kernels
