// Where the parts of a VQ table lie, for every precision.
#pragma once

#include <cstddef>
#include <cstdint>

#include "waste/core/checked.hpp"
#include "waste/format/expert_quant.hpp"

namespace waste::kernels {

/// How a VQ product looks its table up.
///   exact   f32 table; the sum of the formula in f32
///   hilo14  two byte planes of a 14-bit table; about 0.05 % output error
///   split8  two byte groups with a step of their own; about 1.5 % output error, fastest
enum class Precision : std::uint8_t { exact, hilo14, split8 };

/// Vector positions that are summed together before they join the total (and that share the steps
/// of a byte table).
inline constexpr std::size_t chunk_positions = 32;

/// Byte tables: what one chunk's integer sums mean,
///     sum over positions and stages of LUT = steps[0] sum0 + steps[1] sum1 + bias.
struct ChunkSteps {
  float steps[2];
  float bias;
  float unused;
};

/// Layout of a table for `positions` vector positions.
///   exact    f32 [position][stage][entry]
///   split8   ChunkSteps [chunk], padding to 64, then u8 [position][stage][entry]
///   hilo14   ChunkSteps [chunk], padding to 64, then u8 [position][stage][high, low][entry]
/// The order of the bytes within a plane of `entries` is the tier's own: a table belongs to the
/// kernels that built it.
struct TableLayout {
  std::size_t positions = 0;
  std::size_t chunks = 0;
  std::size_t position_bytes = 0;  ///< of one position
  std::size_t planes_off = 0;      ///< of position 0

  constexpr TableLayout() = default;
  constexpr TableLayout(Precision precision, const format::ExpertQuant& quant,
                        std::size_t cols) noexcept
      : positions(cols / format::vec_dim), chunks(ceil_div(positions, chunk_positions)) {
    const std::size_t entries = quant.stages * (std::size_t{1} << quant.index_bits);
    if (precision == Precision::exact) {
      position_bytes = entries * sizeof(float);
    } else {
      position_bytes = entries * (precision == Precision::hilo14 ? 2 : 1);
      planes_off = round_up<std::size_t>(chunks * sizeof(ChunkSteps), 64);
    }
  }
  constexpr std::size_t bytes() const noexcept { return planes_off + positions * position_bytes; }
};

}  // namespace waste::kernels
