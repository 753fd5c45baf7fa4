// The kernel to beat: the scalar gather from an f32 table. Compiled with vectorisation off.
#include "gather.hpp"

namespace waste::bench {
namespace {

template <std::size_t Stages>
float sum8(const float* table, const std::uint8_t* run) noexcept {
  float sum = table[run[0]];
  for (std::size_t s = 1; s < Stages; ++s) sum += table[256 * s + run[s]];
  return sum;
}
float sum6(const float* table, const std::uint8_t* run) noexcept {
  const std::uint32_t word =
      run[0] | static_cast<std::uint32_t>(run[1]) << 8 | static_cast<std::uint32_t>(run[2]) << 16;
  return table[word & 63] + table[64 + (word >> 6 & 63)] + table[128 + (word >> 12 & 63)] +
         table[192 + (word >> 18)];
}

/// A block of 64 rows, one position after another: their indices lie together.
template <class Sum>
void blocks(const VqMatrix& w, const float* table, float* y, std::size_t row_begin,
            std::size_t row_end, const Sum& sum) noexcept {
  const std::size_t positions = w.positions(), run = w.quant.run_bytes();
  const std::size_t position_floats = w.quant.stages * w.table_entries();
  for (std::size_t r0 = row_begin; r0 < row_end; r0 += 64) {
    const std::size_t n = row_end - r0 < 64 ? row_end - r0 : 64;
    float total[64] = {};
    const std::uint8_t* at = w.indices + r0 * positions * run;
    for (std::size_t v = 0; v < positions; ++v, at += 64 * run) {
      const float* entries = table + v * position_floats;
      for (std::size_t r = 0; r < n; ++r) total[r] += sum(entries, at + r * run);
    }
    for (std::size_t r = 0; r < n; ++r) y[r0 + r] = w.scale(r0 + r) * total[r];
  }
}

}  // namespace

void gather(const VqMatrix& w, const float* table, float* y, std::size_t row_begin,
            std::size_t row_end) noexcept {
  if (w.quant.index_bits == 6) return blocks(w, table, y, row_begin, row_end, sum6);
  if (w.quant.stages == 2) return blocks(w, table, y, row_begin, row_end, sum8<2>);
  return blocks(w, table, y, row_begin, row_end, sum8<3>);
}

}  // namespace waste::bench
