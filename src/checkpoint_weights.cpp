#include "waste/model/checkpoint_weights.hpp"

#include <algorithm>

#include "waste/core/parallel.hpp"

namespace waste::model {

CheckpointWeights::CheckpointWeights(const convert::Checkpoint& source, unsigned threads,
                                     std::uint64_t limit_bytes)
    : config_(source.model()) {
  struct Job {
    const convert::TrunkSource* from;
    Tensor* to;
  };
  std::vector<Job> jobs;
  for (const convert::TrunkSource& t : source.trunk()) {
    if (t.role != convert::Role::text) continue;
    std::string_view name = t.name;
    if (name.starts_with(source.prefix())) name.remove_prefix(source.prefix().size());
    Tensor& tensor = trunk_[std::string(name)];
    tensor.rows = t.rows();
    tensor.cols = t.cols();
    bytes_ += sizeof(float) * t.elements();
    jobs.push_back({&t, &tensor});
  }
  const format::ExpertShape shape = config_.expert_shape();
  const std::size_t count = std::size_t{config_.moe_layers()} * config_.num_experts;
  std::uint64_t each = 0;
  for (const auto kind : {format::Kind::gate, format::Kind::up, format::Kind::down}) {
    each += sizeof(float) * shape.rows(kind) * shape.cols(kind);
  }
  bytes_ += each * count;
  if (limit_bytes != 0 && bytes_ > limit_bytes) {
    throw Error(fault(Errc::over_budget, "f32 weights", bytes_, limit_bytes),
                source.directory().string());
  }
  parallel_for(jobs.size(), threads, [&](std::size_t i) {
    Tensor& t = *jobs[i].to;
    t.values = AlignedBuffer<float>(t.rows * t.cols, 64);
    source.read_rows(*jobs[i].from, 0, {t.values.data(), t.rows, t.cols});
  });
  experts_.resize(count);
  parallel_for(count, threads, [&](std::size_t i) {
    const LayerId layer{
        static_cast<std::uint32_t>(config_.first_k_dense_replace + i / config_.num_experts)};
    const ExpertId expert{static_cast<std::uint32_t>(i % config_.num_experts)};
    for (std::size_t k = 0; k < format::kinds; ++k) {
      const auto kind = static_cast<format::Kind>(k);
      Tensor& t = experts_[i][k];
      t.rows = shape.rows(kind);
      t.cols = shape.cols(kind);
      t.values = AlignedBuffer<float>(t.rows * t.cols, 64);
      source.read_expert_rows(layer, expert, kind, 0, {t.values.data(), t.rows, t.cols});
    }
  });
}

const CheckpointWeights::Tensor& CheckpointWeights::find(std::string_view name) const {
  const auto it = trunk_.find(name);
  if (it == trunk_.end()) throw Error(fault(Errc::missing, "tensor"), {}, name);
  return it->second;
}

TrunkMatrix CheckpointWeights::matrix(std::string_view name) const { return find(name).view(); }

std::vector<float> CheckpointWeights::values(std::string_view name) const {
  const AlignedBuffer<float>& values = find(name).values;
  return {values.begin(), values.end()};
}

void CheckpointWeights::embedding(std::uint32_t token, std::span<float> out) const {
  const Tensor& table = find("model.embed_tokens.weight");
  if (token >= table.rows) {
    throw Error(fault(Errc::out_of_range, "token", token, table.rows - 1));
  }
  nn::require_size("embedding", out.size(), table.cols);
  std::copy_n(table.values.data() + token * table.cols, table.cols, out.data());
}

nn::ExpertLease CheckpointWeights::expert(LayerId layer, ExpertId expert) {
  const std::uint32_t first = config_.first_k_dense_replace;
  if (to_index(layer) < first || to_index(layer) >= config_.num_hidden_layers ||
      to_index(expert) >= config_.num_experts) {
    throw Error(fault(Errc::out_of_range, "expert").at(layer, expert));
  }
  const auto& e = experts_[(to_index(layer) - first) * config_.num_experts + to_index(expert)];
  return {nn::FfnWeights{e[0].view(), e[1].view(), e[2].view()}, nullptr};
}

}  // namespace waste::model
