// What the VQ products on byte lanes share: indices, lookups, and scaled rows at the end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "waste/arch/bytes.hpp"
#include "waste/arch/ops.hpp"

namespace waste::kernels {

/// One position of byte_lanes rows of a matrix in blocks of 64.
template <class Traits, class Arch>
struct vq_lanes {
  using vec = arch::u8_lanes<Arch>;
  static constexpr std::size_t run = Traits::run, S = Traits::stages;

  /// Fetches the rows' indices at `from` into the second cache; any address will do.
  static WASTE_INLINE void prefetch(const std::uint8_t* from) noexcept {
    for (std::size_t line = 0; line < arch::byte_lanes<Arch> * run; line += 64) {
      __builtin_prefetch(from + line, 0, 2);
    }
  }

  /// index[s][g] = the rows' indices of stage s, their rows in the order of deinterleave.
  template <std::size_t G>
  static WASTE_INLINE void indices(const std::uint8_t* from, std::size_t g,
                                   vec (&index)[S][G]) noexcept {
    vec bytes[run];
    arch::deinterleave<Arch, run>(from, bytes);
    if constexpr (Traits::index_bits == 6) {
      vec fields[4];
      arch::unpack6<Arch>(bytes, fields);
      for (std::size_t s = 0; s < S; ++s) index[s][g] = fields[s];
    } else {
      for (std::size_t s = 0; s < S; ++s) index[s][g] = bytes[s];
    }
  }

  /// out[g] = table[index[g]] lane by lane, of one stage's prepared table of bytes.
  template <std::size_t G>
  static WASTE_INLINE void lookup(const std::uint8_t* table, const vec (&index)[G],
                                  vec (&out)[G]) noexcept {
    if constexpr (Traits::index_bits == 6) {
      arch::lookup64<Arch, G>(table, index, out);
    } else {
      arch::lookup256<Arch, G>(table, index, out);
    }
  }
};

/// The rows of the 64 sums of a block, row_of(i) being that of sum i.
template <class F>
constexpr std::array<std::uint8_t, 64> rows_of_sums(F row_of) noexcept {
  std::array<std::uint8_t, 64> out{};
  for (std::size_t i = 0; i < 64; ++i) out[i] = static_cast<std::uint8_t>(row_of(i));
  return out;
}

/// y[row_of[i]] = scale[row_of[i]] sums[i] for those of a block's 64 rows that are below `rows`;
/// `scales` are f16 at any address, y may be where the sums are.
template <class Arch>
WASTE_INLINE void scale_rows(const float* sums, const std::array<std::uint8_t, 64>& row_of,
                             const std::uint8_t* scales, std::size_t rows, float* y) noexcept {
  float ordered[64];
  for (std::size_t i = 0; i < 64; ++i) ordered[row_of[i]] = sums[i];
  std::size_t r = 0;
  for (; r + 16 <= rows; r += 16) {
    arch::store_f32(y + r,
                    arch::load_f16<Arch>(scales + 2 * r) * arch::load_f32<Arch>(ordered + r));
  }
  for (; r < rows; ++r) y[r] = arch::load_one_f16<Arch>(scales + 2 * r) * ordered[r];
}

}  // namespace waste::kernels
