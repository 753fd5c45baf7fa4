// How rows of several bytes are taken apart with loads and lane masks alone.
#pragma once

#include <cstddef>

namespace waste::arch::detail {

/// `Lanes` rows of `Run` bytes lie one after another. A load of Lanes bytes at off(r) + s holds, in
/// the lanes l with l % Run == r, byte s of the rows first(r), first(r) + 1, ...: merging the Run
/// loads by lane masks gives byte plane s without a shuffle, and all planes have their rows in the
/// same lanes.
template <std::size_t Lanes, std::size_t Run>
struct interleave {
  /// The first row of residue r: residues before it have ceil((Lanes - i) / Run) lanes each.
  static constexpr std::size_t first(std::size_t r) noexcept {
    std::size_t row = 0;
    for (std::size_t i = 0; i < r; ++i) row += (Lanes - i + Run - 1) / Run;
    return row;
  }
  static constexpr std::size_t off(std::size_t r) noexcept { return Run * first(r) - r; }
  static constexpr std::size_t row_of_lane(std::size_t lane) noexcept {
    return first(lane % Run) + lane / Run;
  }
};

}  // namespace waste::arch::detail
