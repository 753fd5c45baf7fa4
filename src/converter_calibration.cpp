#include <algorithm>
#include <numeric>

#include "converter_internal.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/usage_log.hpp"

namespace waste::convert {

std::vector<std::uint8_t> hot_experts(std::span<const std::uint64_t> uses) {
  std::vector<std::size_t> order(uses.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return uses[a] > uses[b]; });
  double total = 0, covered = 0;
  for (const std::uint64_t n : uses) total += static_cast<double>(n);
  std::vector<std::uint8_t> hot(uses.size());
  for (const std::size_t e : order) {
    if (uses[e] == 0 || covered >= 0.5 * total) break;
    hot[e] = 1;
    covered += static_cast<double>(uses[e]);
  }
  return hot;
}

namespace detail {
namespace {

using format::Kind;
constexpr Kind all_kinds[] = {Kind::gate, Kind::up, Kind::down};

constexpr std::size_t index_of(Kind kind) noexcept { return static_cast<std::size_t>(kind); }

/// An expert's own moments, on top of its layer's, which count as as many inputs as there are
/// columns: what an expert has seen little of keeps the layer's shape.
quant::InputMoments blend(const quant::InputMoments& own, const quant::InputMoments& layer) {
  const double weight = static_cast<double>(own.cols()) / static_cast<double>(layer.count());
  std::vector<double> sums(own.sums().begin(), own.sums().end());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * layer.sums()[i];
  quant::InputMoments out(own.cols(), own.block());
  out.set_sums(sums, own.count() + own.cols());
  return out;
}

}  // namespace

std::optional<CalibrationFile> open_calibration(const Checkpoint& source,
                                                const ConvertOptions& options) {
  if (options.calibration.empty()) return std::nullopt;
  return CalibrationFile::open(options.calibration, source.model(),
                               config_identity(source.container_config()));
}

MomentKey LayerCalibration::key(Kind kind) const {
  return {static_cast<std::uint16_t>(to_index(layer_)),
          kind == Kind::down ? Site::expert_down : Site::expert};
}

std::shared_ptr<const quant::CalibratedEncoder> LayerCalibration::make(
    const quant::InputMoments& moments, Kind kind, unsigned threads) const {
  return std::make_shared<quant::CalibratedEncoder>(
      quant::MomentFactor(moments, damping_, threads),
      books_.data() + index_of(kind) * (books_.size() / format::kinds), encode_);
}

LayerCalibration::LayerCalibration(const CalibrationFile& file, LayerId layer,
                                   const std::vector<float>& books,
                                   const quant::EncodeOptions& encode,
                                   const ConvertOptions& options)
    : file_(file),
      layer_(layer),
      books_(books),
      encode_(encode),
      damping_(options.damping),
      hot_(hot_experts(file.uses(layer))) {
  for (const Kind kind : all_kinds) {
    if (!file.has(key(kind))) continue;
    quant::InputMoments moments = file.moments(key(kind));
    if (!moments.any()) continue;
    shared_[index_of(kind)] = make(moments, kind, jobs_of(options));
    moments_[index_of(kind)] = std::move(moments);
  }
}

std::uint8_t LayerCalibration::flags(ExpertId expert) const {
  return hot_[to_index(expert)] != 0 ? format::record_flags::hot_hint : std::uint8_t{0};
}

std::shared_ptr<const quant::CalibratedEncoder> LayerCalibration::encoder(ExpertId expert,
                                                                          Kind kind) const {
  const auto& layer = moments_[index_of(kind)];
  if (!layer || file_.uses(layer_)[to_index(expert)] == 0) return nullptr;
  MomentKey own = key(kind);
  own.expert = static_cast<std::uint16_t>(to_index(expert));
  if (!file_.has(own)) return shared_[index_of(kind)];
  const quant::InputMoments moments = file_.moments(own);
  // Smaller blocks would forget more of what the layer's know than they add.
  if (moments.block() != layer->block()) return shared_[index_of(kind)];
  return make(blend(moments, *layer), kind, 1);
}

std::uint64_t calibration_memory_bytes(const CalibrationFile& file,
                                       const format::ModelConfig& model,
                                       const ConvertOptions& options, unsigned jobs) {
  std::uint64_t shared = 0, one = 0;
  const std::uint64_t table = std::uint64_t{1} << options.quant.index_bits;
  for (const MomentKey& key : file.keys()) {
    if (key.site != Site::expert && key.site != Site::expert_down) continue;
    const std::uint64_t cols =
        key.site == Site::expert ? model.expert_width() : model.moe_intermediate_size;
    // Books of every position, the factor, sums of the file and of a blend, one block in f64.
    const std::uint64_t block = file.block(key);
    const std::uint64_t bytes = options.quant.stages * table * 36 / 8 * cols + 4 * cols * block +
                                2 * 8 * moment_sums(cols, block) + 8 * block * block;
    shared = std::max(shared, bytes);
    if (key.expert != MomentKey::all) one = std::max(one, bytes);
  }
  return format::kinds * shared + jobs * one;
}

std::string usage_bytes(const CalibrationFile& file, const format::ModelConfig& model) {
  format::UsageLog log;
  log.clock = file.tokens();
  for (std::uint32_t l = model.first_k_dense_replace; l < model.num_hidden_layers; ++l) {
    const auto uses = file.uses(LayerId{l});
    for (std::size_t e = 0; e < uses.size(); ++e) {
      if (uses[e] == 0) continue;
      format::UsageEntry entry;
      entry.layer = static_cast<std::uint16_t>(l);
      entry.expert = static_cast<std::uint16_t>(e);
      entry.hits = static_cast<std::uint32_t>(std::min<std::uint64_t>(uses[e], 0xffffffffu));
      entry.last_seen = static_cast<std::uint32_t>(log.clock);
      log.entries.push_back(entry);
    }
  }
  std::stable_sort(log.entries.begin(), log.entries.end(),
                   [](const auto& a, const auto& b) { return a.hits > b.hits; });
  const std::vector<std::uint8_t> bytes = format::dump_usage(log);
  return {bytes.begin(), bytes.end()};
}

}  // namespace detail
}  // namespace waste::convert
