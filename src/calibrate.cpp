#include "waste/model/calibrate.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "waste/core/parallel.hpp"
#include "waste/format/manifest.hpp"

namespace waste::model {
namespace {

using convert::MomentKey;
using convert::Site;

bool of_experts(Site site) noexcept { return site == Site::expert || site == Site::expert_down; }

/// Moments on their way: rows wait until the end of a layer, then every site takes its own.
struct Gatherer {
  MomentKey key;
  quant::InputMoments moments;
  std::vector<float> waiting;

  Gatherer(const MomentKey& k, std::size_t cols, std::size_t block)
      : key(k), moments(cols, std::min(block, cols)) {}
  void take(std::span<const float> row) { waiting.insert(waiting.end(), row.begin(), row.end()); }
  void settle() {
    moments.add({waiting.data(), waiting.size() / moments.cols(), moments.cols()});
    waiting.clear();
  }
};

class Gathering {
 public:
  Gathering(const TextModel& model, const CalibrateOptions& options)
      : config_(model.config()),
        plan_(plan_calibration(config_, options)),
        sites_(convert::calibration_sites(config_)),
        uses_(std::size_t{config_.moe_layers()} * config_.num_experts),
        threads_(model.options().exec.threads) {
    if (!options.trunk) return;
    for (const format::RequiredTensor& t : format::required_tensors(config_)) {
      const auto key = convert::site_of(t.name);
      // Matrices of one site are fed the same: the first stands for all.
      if (t.role == format::RequiredTensor::Role::matrix && key && !gatherers_.count(*key)) {
        trunk_[model.weights().matrix(t.name).payload] = &gatherer(*key, plan_.block);
      }
    }
  }

  Observer observer() {
    Observer out;
    out.routing = [this](std::uint32_t layer, const nn::Routing& r) {
      for (std::size_t t = 0; t < r.ids.rows; ++t) {
        for (const std::uint32_t e : r.ids.row(t)) ++uses_[slot(layer, e)];
      }
    };
    out.expert_input = [this](std::uint32_t layer, ExpertId e, format::Kind kind,
                              std::span<const float> x) {
      MomentKey key;
      key.layer = static_cast<std::uint16_t>(layer);
      key.site = kind == format::Kind::down ? Site::expert_down : Site::expert;
      // Where an expert's blocks are as large, the whole is their sum in the end.
      if (plan_.expert_block < plan_.block) gatherer(key, plan_.block).take(x);
      if (plan_.expert_block == 0) return;
      key.expert = static_cast<std::uint16_t>(to_index(e));
      gatherer(key, plan_.expert_block).take(x);
    };
    out.trunk_input = [this](const TrunkMatrix& w, MatrixView<const float> x) {
      const auto it = trunk_.find(w.payload);
      if (it == trunk_.end()) return;
      for (std::size_t t = 0; t < x.rows; ++t) it->second->take(x.row(t));
    };
    if (trunk_.empty()) out.trunk_input = nullptr;
    out.layer = [this](std::uint32_t, MatrixView<const float>) { settle(); };
    return out;
  }

  convert::Calibration finish(std::uint64_t tokens) {
    convert::Calibration out;
    out.tokens = tokens;
    out.uses = uses_;
    for (auto& [key, g] : gatherers_) {
      if (key.expert != MomentKey::all && plan_.expert_block >= plan_.block) {
        MomentKey whole = key;
        whole.expert = MomentKey::all;
        const auto sum = out.moments.try_emplace(whole, g.moments.cols(), g.moments.block()).first;
        sum->second.add(g.moments);
      }
      const bool enough = key.expert == MomentKey::all ? g.moments.count() > 0
                                                       : g.moments.count() >= least_expert_inputs;
      if (enough) out.moments[key] = std::move(g.moments);
    }
    return out;
  }

 private:
  std::size_t slot(std::uint32_t layer, std::uint32_t expert) const noexcept {
    return std::size_t{layer - config_.first_k_dense_replace} * config_.num_experts + expert;
  }
  Gatherer& gatherer(const MomentKey& key, std::size_t block) {
    const auto it = gatherers_.find(key);
    if (it != gatherers_.end()) return it->second;
    MomentKey whole = key;
    whole.expert = MomentKey::all;
    return gatherers_.try_emplace(key, key, sites_.at(whole), block).first->second;
  }
  void settle() {
    std::vector<Gatherer*> full;
    for (auto& [key, g] : gatherers_) {
      if (!g.waiting.empty()) full.push_back(&g);
    }
    parallel_for(full.size(), threads_, [&](std::size_t i) { full[i]->settle(); });
  }

  const format::ModelConfig& config_;
  CalibrationPlan plan_;
  std::map<MomentKey, std::uint32_t> sites_;
  std::map<MomentKey, Gatherer> gatherers_;
  std::map<const void*, Gatherer*> trunk_;  ///< by payload of the matrix that stands for its site
  std::vector<std::uint64_t> uses_;
  unsigned threads_;
};

}  // namespace

CalibrationPlan plan_calibration(const format::ModelConfig& model,
                                 const CalibrateOptions& options) {
  const auto sites = convert::calibration_sites(model);
  std::size_t widest = 1;
  for (const auto& [key, cols] : sites) widest = std::max<std::size_t>(widest, cols);
  std::vector<std::size_t> blocks = {widest};
  for (std::size_t b = 16384; b >= 8; b /= 2) {
    if (b < widest) blocks.push_back(b);
  }
  blocks.push_back(1);
  const auto bytes = [&](std::size_t block, bool experts_only) {
    std::uint64_t sum = 0;
    for (const auto& [key, cols] : sites) {
      if (experts_only ? of_experts(key.site) : (options.trunk || of_experts(key.site))) {
        sum += sizeof(double) * convert::moment_sums(cols, block);
      }
    }
    return sum;
  };
  CalibrationPlan plan;
  for (const std::size_t b : blocks) {
    plan.bytes = bytes(b, false);
    plan.block = b;
    if (plan.bytes <= options.memory_bytes) break;
  }
  if (plan.bytes > options.memory_bytes) {
    throw Error(fault(Errc::over_budget, "moments", plan.bytes, options.memory_bytes));
  }
  for (const std::size_t b : blocks) {
    const std::uint64_t more = model.num_experts * bytes(b, true);
    if (b > plan.block || more > options.memory_bytes - plan.bytes) continue;
    plan.expert_block = b;
    plan.bytes += more;
    break;
  }
  return plan;
}

convert::Calibration calibrate(const TextModel& model, std::span<const std::uint32_t> tokens,
                               const CalibrateOptions& options) {
  if (tokens.empty()) throw Error(fault(Errc::bad_argument, "text"), {}, "no tokens");
  if (options.window == 0) throw Error(fault(Errc::bad_argument, "window", 0, 1));
  Gathering gathering(model, options);
  const Observer observer = gathering.observer();
  Session session = model.start(std::min(options.window, tokens.size()));
  constexpr std::size_t piece = 32;
  for (std::size_t first = 0; first < tokens.size(); first += options.window) {
    session.reset();
    const std::size_t end = std::min(tokens.size(), first + options.window);
    for (std::size_t at = first; at < end; at += piece) {
      model.forward(session, tokens.subspan(at, std::min(piece, end - at)), {}, observer);
      if (options.progress) options.progress(std::min(end, at + piece), tokens.size());
    }
  }
  return gathering.finish(tokens.size());
}

}  // namespace waste::model
