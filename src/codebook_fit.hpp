// Fits the codebooks of all stages to a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "waste/kernels/encode_kernels.hpp"
#include "waste/quant/random.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::quant {

/// State of one training: sample x [n][8], codebooks [stages][table][8], indices [n][stages].
/// Searches run in parallel; every sum runs in sample order on one thread, so the result does not
/// depend on `threads`. Random numbers come from the seed alone.
class CodebookFit {
 public:
  CodebookFit(std::vector<float> x, const EncodeOptions& options);

  /// Residual k-means, stage after stage: k-means++ start (Arthur, Vassilvitskii 2007), `rounds` of
  /// Lloyd's iteration, empty clusters re-seeded with vectors drawn in proportion to their error.
  void start(int rounds);
  /// Indices of every sample vector for the codebooks in hand, by a beam search.
  void encode(std::size_t beam);
  /// The codebooks of all stages that minimise sum |x - sum of entries|^2 + ridge for the indices
  /// in hand: the normal equations, by Gauss-Seidel over entries from the codebooks in hand.
  void refit();
  /// Adds noise of standard deviation `amount` times that of the remaining error.
  void disturb(double amount);

  /// Mean of |x - sum of entries|^2 at the last encode().
  double error() const noexcept { return error_; }
  std::vector<float> take_books() noexcept { return std::move(books_); }

 private:
  float* entry(std::size_t stage, std::size_t e) noexcept {
    return books_.data() + (stage * table_ + e) * 8;
  }
  void seed_means(const std::vector<float>& rest, float* book);
  void search(const std::vector<float>& x, const float* books, std::size_t stages, std::size_t beam,
              std::vector<std::uint8_t>& indices) const;
  std::vector<float> remainder() const;
  std::size_t draw(const std::vector<double>& cumulative);

  std::vector<float> x_;
  std::size_t n_, stages_, entries_, table_;
  unsigned threads_;
  const kernels::EncodeKernels& kernel_;
  Random random_;
  std::vector<float> books_;
  std::vector<std::uint8_t> indices_;
  double error_ = 0;
};

}  // namespace waste::quant
