// The search kernel of the VQ encoder, for one tier.
#pragma once

#include <cstddef>
#include <cstdint>

namespace waste::kernels {

/// Codebooks as the search sees them: integers in units of a step h chosen by the builder
/// (quant/search_books), C = round(c / h), such that every sum below fits in 32 bits:
///   norms   i32 [stages][entries]        16 |C|^2 + entry / 16
///   pairs   i16 [stages][4][entries][2]  -8 C[2k], -8 C[2k + 1]
///   steps   i16 [stages][entries][8]     4 C
/// `entries` is a multiple of 16, at most 256; the builder repeats entry 0 to fill up. With
/// r = target - sum of the entries taken so far, 16 |r - C|^2 = 16 |r|^2 + norm - 32 r.C (the low
/// four bits of the sum then name the row of 16 entries).
struct SearchBooks {
  std::size_t stages = 0;
  std::size_t entries = 0;
  const std::int32_t* norms = nullptr;
  const std::int16_t* pairs = nullptr;
  const std::int16_t* steps = nullptr;
};

/// Bounds that keep 16 |r|^2 and every score below 2^31: |sum of entries| <= search_reach in each
/// dimension, |target| <= search_limit.
inline constexpr int search_reach = 1540;
inline constexpr int search_limit = 2490;

struct EncodeKernels {
  /// For each of `count` targets i16 [count][8] (4 T, |T| <= search_limit), the indices
  /// u8 [count][stages] whose entries sum closest to it among those that a beam of `beam` paths
  /// visits. beam: 1 (greedy), 4, 8, 16 or 32. At the first stage every entry begins a path;
  /// at later ones a path is extended by the best entry in each of the 16 classes `entry mod 16`,
  /// and the `beam` best extensions live on; the last stage takes the best of all. Pure integer
  /// arithmetic with a fixed rule for ties (lower path, then lower row of 16, then lower class):
  /// the same indices on every tier.
  void (*search)(const SearchBooks& books, const std::int16_t* targets, std::size_t count,
                 std::size_t beam, std::uint8_t* indices) noexcept;

  /// z[r][j] += sum over d = 0..7, in that order, of v[r][d] * factor[d][j], for r < rows, j <
  /// count; each product and each sum rounded (no fused multiply-add: the same bits on every tier).
  /// v is [rows][8], factor's rows are `stride` apart, z's `z_stride`.
  void (*feed)(const float* v, std::size_t rows, const float* factor, std::size_t stride,
               std::size_t count, float* z, std::size_t z_stride) noexcept;
};

}  // namespace waste::kernels
