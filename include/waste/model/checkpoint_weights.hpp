// A source checkpoint's weights in f32, everything in memory: the model before quantization.
#pragma once

#include <array>
#include <map>
#include <string>

#include "waste/convert/checkpoint.hpp"
#include "waste/core/aligned_buffer.hpp"
#include "waste/model/weights.hpp"

namespace waste::model {

/// For small models and for measuring what quantization costs: 4 bytes a weight. BF16, F16 and
/// MXFP4 convert to f32 exactly.
class CheckpointWeights final : public Weights {
 public:
  /// Reads every text tensor and expert, on `threads` threads (0: all). Throws Error as
  /// Checkpoint's reads do, and (over_budget) where `limit_bytes` (0: none) would be exceeded.
  explicit CheckpointWeights(const convert::Checkpoint& source, unsigned threads = 0,
                             std::uint64_t limit_bytes = 0);

  const format::ModelConfig& config() const noexcept override { return config_; }
  TrunkMatrix matrix(std::string_view name) const override;
  std::vector<float> values(std::string_view name) const override;
  void embedding(std::uint32_t token, std::span<float> out) const override;
  nn::ExpertLease expert(LayerId layer, ExpertId expert) override;
  std::optional<nn::SharedCodebooks> codebooks(LayerId) const override { return std::nullopt; }

  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct Tensor {
    AlignedBuffer<float> values;
    std::size_t rows = 0, cols = 0;
    TrunkMatrix view() const noexcept {
      return {format::Fmt::f32, reinterpret_cast<const std::uint8_t*>(values.data()), nullptr, rows,
              cols};
    }
  };
  const Tensor& find(std::string_view name) const;

  format::ModelConfig config_;
  std::map<std::string, Tensor, std::less<>> trunk_;        ///< without the prefix
  std::vector<std::array<Tensor, format::kinds>> experts_;  ///< [moe layer][expert]
  std::uint64_t bytes_ = 0;
};

}  // namespace waste::model
