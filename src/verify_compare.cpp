#include <algorithm>
#include <vector>

#include "verify_internal.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/quant/group.hpp"

namespace waste::convert::detail {
namespace {

constexpr std::size_t slab_rows = 64;
constexpr std::size_t slab_bytes = std::size_t{1} << 20;

/// One row: scale * (sum of the stages in order).
void decode_row(const VqMatrix& w, std::size_t row, float* out) {
  const format::IndexLayout layout = w.layout();
  const float scale = w.scale(row);
  const std::size_t table = w.table_entries() * format::vec_dim;
  for (std::size_t v = 0; v < layout.positions; ++v, out += format::vec_dim) {
    const std::uint8_t* run = w.indices + layout.offset(row, v);
    float sum[format::vec_dim] = {};
    for (std::size_t s = 0; s < w.quant.stages; ++s) {
      const float* entry =
          w.codebooks + s * table + format::vec_dim * format::index_at(run, s, w.quant.index_bits);
      for (std::size_t d = 0; d < format::vec_dim; ++d) sum[d] += entry[d];
    }
    for (std::size_t d = 0; d < format::vec_dim; ++d) out[d] = scale * sum[d];
  }
}

void decode_row(const TrunkMatrix& w, std::size_t row, float* out) {
  if (format::is_grouped(w.fmt)) {
    quant::dequantize_group_row(w, row, out);
    return;
  }
  const std::uint8_t* from = w.payload + row * format::trunk_row_bytes(w.fmt, w.n_cols);
  for (std::size_t c = 0; c < w.n_cols; ++c) {
    out[c] = w.fmt == format::Fmt::f32 ? load_le<float>(from + 4 * c)
                                       : f16_to_f32(load_le<std::uint16_t>(from + 2 * c));
  }
}

void accumulate(const float* want, const float* got, std::size_t n, quant::EncodeStats& stats) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double w = want[i], d = w - got[i];
    error += d * d;
    norm += w * w;
  }
  stats.squared_error += error;
  stats.squared_norm += norm;
}

}  // namespace

quant::EncodeStats compare_matrix(const Checkpoint& source, LayerId layer, ExpertId expert,
                                  format::Kind kind, const VqMatrix& stored) {
  const std::size_t cols = stored.cols();
  std::vector<float> want(std::min(slab_rows, stored.rows()) * cols), got(cols);
  quant::EncodeStats stats;
  for (std::size_t first = 0; first < stored.rows(); first += slab_rows) {
    const std::size_t rows = std::min(slab_rows, stored.rows() - first);
    source.read_expert_rows(layer, expert, kind, first, {want.data(), rows, cols});
    for (std::size_t r = 0; r < rows; ++r) {
      decode_row(stored, first + r, got.data());
      accumulate(want.data() + r * cols, got.data(), cols, stats);
    }
  }
  return stats;
}

quant::EncodeStats compare_tensor(const Checkpoint& source, const TrunkSource& tensor,
                                  const io::Trunk& trunk, const format::TrunkEntry& entry) {
  const auto cols = static_cast<std::size_t>(entry.cols());
  const std::uint64_t row = format::trunk_row_bytes(entry.fmt, cols);
  const std::uint64_t scale_row = format::trunk_row_scale_bytes(entry.fmt, cols);
  const std::size_t step = std::max<std::size_t>(1, slab_bytes / (4 * cols));
  std::vector<std::uint8_t> payload, scales;
  std::vector<float> want, got(cols);
  quant::EncodeStats stats;
  for (std::uint64_t first = 0; first < entry.rows(); first += step) {
    const auto rows = static_cast<std::size_t>(std::min<std::uint64_t>(step, entry.rows() - first));
    payload.resize(static_cast<std::size_t>(rows * row));
    scales.resize(static_cast<std::size_t>(rows * scale_row));
    want.resize(rows * cols);
    trunk.file().pread(payload, entry.off + first * row);
    if (!scales.empty()) trunk.file().pread(scales, entry.scale_off + first * scale_row);
    source.read_rows(tensor, first, {want.data(), rows, cols});
    const TrunkMatrix stored{entry.fmt, payload.data(), scales.data(), rows, cols};
    for (std::size_t r = 0; r < rows; ++r) {
      decode_row(stored, r, got.data());
      accumulate(want.data() + r * cols, got.data(), cols, stats);
    }
  }
  return stats;
}

}  // namespace waste::convert::detail
