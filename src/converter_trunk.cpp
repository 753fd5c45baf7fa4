#include <algorithm>
#include <cmath>
#include <map>

#include "converter_internal.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/quant/group_calibrated.hpp"

namespace waste::convert::detail {
namespace {

constexpr std::uint64_t slab_elements = std::uint64_t{1} << 20;

void require_finite(const Checkpoint& source, const TrunkSource& t, std::uint64_t first_row,
                    const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    throw Error(
        fault(Errc::out_of_range, "weight"),
        source.files().shards()[source.files().tensors()[t.weight].shard].file.path().string(),
        "tensor " + t.name + " is not finite at element " +
            std::to_string(first_row * t.cols() + i));
  }
}

void convert_slab(const Checkpoint& source, const TrunkSource& t, const io::TrunkWriter& out,
                  std::size_t index, format::Fmt fmt, std::uint64_t first, std::uint64_t rows,
                  const ConvertOptions& options, const quant::MomentFactor* factor) {
  const std::uint64_t cols = t.cols();
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  const MatrixView<float> view(values.data(), static_cast<std::size_t>(rows),
                               static_cast<std::size_t>(cols));
  source.read_rows(t, first, view);
  require_finite(source, t, first, values);
  if (fmt == format::Fmt::f32) {
    out.write_rows(index, first,
                   {reinterpret_cast<const std::uint8_t*>(values.data()), 4 * values.size()}, {});
    return;
  }
  std::vector<std::uint8_t> payload(
      static_cast<std::size_t>(rows * format::trunk_row_bytes(fmt, cols)));
  std::vector<std::uint8_t> scales(
      static_cast<std::size_t>(rows * format::trunk_row_scale_bytes(fmt, cols)));
  try {
    if (factor) {
      quant::quantize_groups_calibrated(fmt, view, *factor, {}, payload.data(), scales.data());
    } else {
      quant::quantize_groups(fmt, view, payload.data(), scales.data(), options.trunk_scale);
    }
  } catch (const Error& e) {
    throw Error(e.fault(), source.directory().string(), "tensor " + t.name);
  }
  out.write_rows(index, first, payload, scales);
}

/// Factors of the moments that the tensors of one layer share.
class TrunkFactors {
 public:
  TrunkFactors(const Checkpoint& source, const CalibrationFile* file, const ConvertOptions& options)
      : source_(source),
        file_(options.trunk_scale == quant::GroupScale::search ? file : nullptr),
        options_(options) {}

  /// Null where the tensor is coded without.
  const quant::MomentFactor* of(const TrunkSource& t, format::Fmt fmt) {
    if (!file_ || !format::is_grouped(fmt) || t.role != Role::text) return nullptr;
    std::string_view name = t.name;
    if (name.starts_with(source_.prefix())) name.remove_prefix(source_.prefix().size());
    const auto key = site_of(name);
    if (!key || !file_->has(*key)) return nullptr;
    if (!factors_.empty() && factors_.begin()->first.layer != key->layer) factors_.clear();
    const auto it = factors_.find(*key);
    if (it != factors_.end()) return &it->second;
    const quant::InputMoments moments = file_->moments(*key);
    if (!moments.any()) return nullptr;
    return &factors_.try_emplace(*key, moments, options_.damping, jobs_of(options_)).first->second;
  }

 private:
  const Checkpoint& source_;
  const CalibrationFile* file_;
  const ConvertOptions& options_;
  std::map<MomentKey, quant::MomentFactor> factors_;
};

}  // namespace

void convert_trunk(const Checkpoint& source, const io::ContainerWriter& writer,
                   const ConvertOptions& options, const CalibrationFile* calibration,
                   ProgressSink& progress) {
  progress.stage("trunk", 0);
  io::TrunkWriter out = writer.open_trunk();
  const std::vector<TrunkSource>& tensors = source.trunk();
  const std::vector<format::TrunkEntry>& entries = writer.manifest().trunk;
  double kept = 0;
  for (std::size_t i = 0; i < out.finished(); ++i) {
    kept += static_cast<double>(tensors[i].elements());
  }
  if (kept > 0) progress.add(trunk_cost_per_weight * kept);
  TrunkFactors factors(source, calibration, options);
  std::uint64_t uncommitted = 0;
  for (std::size_t i = out.finished(); i < tensors.size(); ++i) {
    const TrunkSource& t = tensors[i];
    const std::uint64_t slab = std::max<std::uint64_t>(1, slab_elements / t.cols());
    const std::uint64_t slabs = ceil_div(t.rows(), slab);
    const quant::MomentFactor* const factor = factors.of(t, entries[i].fmt);
    std::atomic<bool> failed{false};
    parallel_for(static_cast<std::size_t>(slabs), jobs_of(options), [&](std::size_t s) {
      if (failed.load(std::memory_order_relaxed)) return;
      try {
        const std::uint64_t first = s * slab, rows = std::min(slab, t.rows() - first);
        convert_slab(source, t, out, i, entries[i].fmt, first, rows, options, factor);
        progress.add(trunk_cost_per_weight * static_cast<double>(rows * t.cols()));
      } catch (...) {
        failed = true;
        throw;
      }
    });
    uncommitted += entries[i].bytes;
    if (uncommitted >= options.commit_bytes) {
      out.commit(i + 1);
      uncommitted = 0;
    }
  }
  out.publish();
}

}  // namespace waste::convert::detail
