// The B smallest of many distinct int32 keys, without a branch on a key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "waste/arch/i32x16.hpp"

namespace waste::kernels {

/// Comparators of Batcher's odd-even merge sort of N = 2^k elements.
template <std::size_t N>
struct SortNetwork {
  static constexpr std::size_t count_comparators() noexcept {
    std::size_t count = 0;
    for_each([&](std::size_t, std::size_t) { ++count; });
    return count;
  }
  template <class F>
  static constexpr void for_each(F&& f) noexcept {
    for (std::size_t p = 1; p < N; p *= 2) {
      for (std::size_t k = p; k >= 1; k /= 2) {
        for (std::size_t j = k % p; j + k < N; j += 2 * k) {
          for (std::size_t i = j; i < j + k && i + k < N; ++i) {
            if (i / (2 * p) == (i + k) / (2 * p)) f(i, i + k);
          }
        }
      }
    }
  }
  static constexpr auto make() noexcept {
    std::array<std::pair<std::uint8_t, std::uint8_t>, count_comparators()> out{};
    std::size_t n = 0;
    for_each([&](std::size_t a, std::size_t b) {
      out[n].first = static_cast<std::uint8_t>(a);
      out[n++].second = static_cast<std::uint8_t>(b);
    });
    return out;
  }
};

/// Comparators that sort N = 2^k elements which rise, then fall (or fall, then rise).
template <std::size_t N>
struct BitonicNetwork {
  static constexpr auto make() noexcept {
    constexpr std::size_t levels = static_cast<std::size_t>(__builtin_ctzll(N));
    std::array<std::pair<std::uint8_t, std::uint8_t>, levels * N / 2> out{};
    std::size_t n = 0;
    for (std::size_t k = N / 2; k >= 1; k /= 2) {
      for (std::size_t i = 0; i < N; ++i) {
        if ((i & k) != 0) continue;
        out[n].first = static_cast<std::uint8_t>(i);
        out[n++].second = static_cast<std::uint8_t>(i + k);
      }
    }
    return out;
  }
};

/// Sorts each lane of rows[0 .. N) by a network.
template <class Network, class Batch, std::size_t... I>
WASTE_INLINE void sort_rows(Batch* rows, std::index_sequence<I...>) noexcept {
  const auto exchange = [rows](std::size_t a, std::size_t b) {
    const Batch low = xsimd::min(rows[a], rows[b]);
    rows[b] = xsimd::max(rows[a], rows[b]);
    rows[a] = low;
  };
  constexpr auto comparators = Network::make();
  (exchange(comparators[I].first, comparators[I].second), ...);
}
template <class Network, class Batch>
WASTE_INLINE void sort_rows(Batch* rows) noexcept {
  constexpr auto comparators = Network::make();
  constexpr std::size_t count = comparators.size();
  if constexpr (count <= 80) {  // in registers; longer networks would spill anyway
    sort_rows<Network>(rows, std::make_index_sequence<count>{});
  } else {
    for (const auto& c : comparators) {
      const Batch low = xsimd::min(rows[c.first], rows[c.second]);
      rows[c.second] = xsimd::max(rows[c.first], rows[c.second]);
      rows[c.first] = low;
    }
  }
}

/// Moves the B smallest keys of keys[rows][16] to out[0 .. B); ascending where `sorted`, else in an
/// order that depends on the keys alone. `rows` is a multiple of B = 2^k; unused places hold the
/// largest int32. keys has room for one row of 16 more (its content does not matter) and is
/// overwritten.
///
/// Each lane's column is cut into runs of B, the runs are sorted by a network and merged keeping
/// the B smallest; then the lanes are merged in pairs, 16 to 1, the same way: of two ascending
/// runs a, b of length B, min(a[i], b[B-1-i]) are the B smallest of both, in bitonic order.
template <class Arch, std::size_t B>
WASTE_INLINE void smallest(std::int32_t* keys, std::size_t rows, bool sorted,
                           std::int32_t* out) noexcept {
  using batch = typename arch::i32x16<Arch>::batch;
  constexpr std::size_t width = batch::size;
  for (std::size_t lane = 0; lane < 16; lane += width) {
    batch best[B];
    for (std::size_t i = 0; i < B; ++i) best[i] = batch::load_unaligned(keys + 16 * i + lane);
    sort_rows<SortNetwork<B>>(best);
    for (std::size_t first = B; first < rows; first += B) {
      batch next[B];
      for (std::size_t i = 0; i < B; ++i) {
        next[i] = batch::load_unaligned(keys + 16 * (first + i) + lane);
      }
      sort_rows<SortNetwork<B>>(next);
      for (std::size_t i = 0; i < B; ++i) best[i] = xsimd::min(best[i], next[B - 1 - i]);
      sort_rows<BitonicNetwork<B>>(best);
    }
    for (std::size_t i = 0; i < B; ++i) best[i].store_unaligned(keys + 16 * i + lane);
  }
  for (std::size_t half = 8; half >= 1; half /= 2) {
    for (std::size_t lane = 0; lane < half; lane += width) {
      batch best[B];
      for (std::size_t i = 0; i < B; ++i) {
        best[i] = xsimd::min(batch::load_unaligned(keys + 16 * i + lane),
                             batch::load_unaligned(keys + 16 * (B - 1 - i) + lane + half));
      }
      if (half > 1 || sorted) sort_rows<BitonicNetwork<B>>(best);
      for (std::size_t i = 0; i < B; ++i) best[i].store_unaligned(keys + 16 * i + lane);
    }
  }
  for (std::size_t i = 0; i < B; ++i) out[i] = keys[16 * i];
}

}  // namespace waste::kernels
