// A container's weights: trunk in memory, embedding rows read on use, experts through the cache.
#pragma once

#include <optional>

#include "waste/engine/expert_cache.hpp"
#include "waste/engine/usage.hpp"
#include "waste/io/container.hpp"
#include "waste/model/weights.hpp"

namespace waste::model {

class ContainerWeights final : public Weights {
 public:
  /// `container` must have been opened with its trunk resident; it is shared, not copied. Throws
  /// Error(over_budget) as ExpertCache does.
  ContainerWeights(const Container& container, const engine::CacheOptions& cache);

  const format::ModelConfig& config() const noexcept override { return container_.model(); }
  TrunkMatrix matrix(std::string_view name) const override;
  std::vector<float> values(std::string_view name) const override;
  void embedding(std::uint32_t token, std::span<float> out) const override;
  nn::ExpertLease expert(LayerId layer, ExpertId expert) override;
  std::optional<nn::SharedCodebooks> codebooks(LayerId layer) const override;
  void prepare(LayerId layer, std::span<const ExpertId> experts) override {
    if (usage_) usage_->use(layer, experts.data(), experts.size());
    cache_.prepare(layer, experts);
  }
  void expect(LayerId layer, std::span<const ExpertId> experts) override {
    cache_.expect(layer, experts);
  }
  std::size_t look_ahead() const override { return cache_.status().look_ahead; }
  void begin_token() override {
    if (usage_) usage_->begin_token();
    cache_.begin_token();
  }

  /// From now on every layer's choices are counted in `usage` (null: in nothing).
  void learn(std::shared_ptr<engine::UsageFile> usage) { usage_ = std::move(usage); }
  /// Reads experts into the places that nothing has filled yet, in the background.
  void warm(std::span<const std::pair<LayerId, ExpertId>> experts) { cache_.warm(experts); }

  const Container& container() const noexcept { return container_; }
  const ExpertCache& cache() const noexcept { return cache_; }

 private:
  std::string full(std::string_view name) const;

  Container container_;
  ExpertCache cache_;
  std::shared_ptr<engine::UsageFile> usage_;
};

}  // namespace waste::model
