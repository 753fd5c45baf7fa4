// Inputs of benchmarks: random matrices, and as many copies as no cache can hold.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/format/vq_view.hpp"

namespace waste::bench {

/// splitmix64.
std::uint64_t random_bits(std::uint64_t& state);
/// Near-normal numbers with unit variance; every `outlier_every`-th is ten times as large (0:
/// none).
std::vector<float> random_inputs(std::size_t n, std::uint64_t seed, std::size_t outlier_every = 0);

/// `count` copies of one record's bytes, each 64-byte aligned; the bytes are random.
class Copies {
 public:
  Copies(std::size_t bytes, std::size_t count, std::uint64_t seed);
  std::size_t count() const { return count_; }
  std::uint8_t* copy(std::size_t i) { return storage_.data() + i % count_ * stride_; }
  /// Every copy becomes copy 0.
  void spread();
  /// The next copy in turn.
  std::uint8_t* next() { return copy(at_++); }

 private:
  std::size_t bytes_, stride_, count_, at_ = 0;
  AlignedBuffer<std::uint8_t> storage_;
};

/// How many copies of `bytes` the cache state asks for.
std::size_t copies_for(const std::string& cache, std::size_t bytes);

/// A VQ matrix: indices, then scales, behind each other in every copy.
struct VqData {
  VqData(const format::ExpertQuant& quant, std::size_t rows, std::size_t cols,
         const std::string& cache);
  VqMatrix view(std::uint8_t* copy) const;
  VqMatrix next() { return view(copies.next()); }
  double payload() const { return static_cast<double>(layout.bytes() + 2 * rows); }

  format::ExpertQuant quant;
  std::size_t rows, cols;
  format::IndexLayout layout;
  AlignedBuffer<float> codebooks;
  Copies copies;
};

/// A trunk matrix: payload, then scales.
struct TrunkData {
  TrunkData(format::Fmt fmt, std::size_t rows, std::size_t cols, const std::string& cache);
  TrunkMatrix view(std::uint8_t* copy) const;
  TrunkMatrix next() { return view(copies.next()); }
  double payload() const;

  format::Fmt fmt;
  std::size_t rows, cols;
  Copies copies;
};

/// ||got - want|| / ||want||.
double relative_error(std::span<const float> got, std::span<const double> want);
double relative_error(std::span<const float> got, std::span<const float> want);

}  // namespace waste::bench
