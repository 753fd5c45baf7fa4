// A container's weights: trunk in memory, embedding rows read on use, experts through the cache.
#pragma once

#include <optional>

#include "waste/engine/expert_cache.hpp"
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
    cache_.prepare(layer, experts);
  }
  void expect(LayerId layer, std::span<const ExpertId> experts) override {
    cache_.expect(layer, experts);
  }
  std::size_t look_ahead() const override { return cache_.status().look_ahead; }
  void begin_token() override { cache_.begin_token(); }

  const Container& container() const noexcept { return container_; }
  const ExpertCache& cache() const noexcept { return cache_; }

 private:
  std::string full(std::string_view name) const;

  Container container_;
  ExpertCache cache_;
};

}  // namespace waste::model
