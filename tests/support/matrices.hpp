// Matrices of random bytes in every format, with the storage they view.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "waste/core/aligned_buffer.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/format/vq_view.hpp"

namespace waste::test {

/// A small generator whose sequence is fixed by its seed on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  std::uint64_t bits();
  /// Uniform in [0, n).
  std::uint64_t below(std::uint64_t n) { return bits() % n; }
  /// Uniform in [-1, 1).
  float uniform();
  /// Sum of four uniforms: near enough to normal with variance 4/3.
  float bell();
  std::vector<float> bells(std::size_t n);

 private:
  std::uint64_t state_;
};

/// What an f16 row or group scale may look like.
enum class Scales { ordinary, subnormal, zero, largest, mixed };
std::uint16_t random_scale(Random& random, Scales kind);

/// A trunk matrix whose payload and scales start at odd addresses and end where their storage
/// ends. F32 and F16 hold ordinary values; codes of grouped formats are any bytes, padding columns
/// included.
struct TrunkCase {
  std::vector<std::uint8_t> payload, scales;
  TrunkMatrix view;
  std::string name;
};
TrunkCase make_trunk(format::Fmt fmt, std::size_t rows, std::size_t cols, Scales scales,
                     std::uint64_t seed);

/// A VQ matrix of any index bytes (padding rows included), at odd addresses, ending where its
/// storage ends.
struct VqCase {
  std::vector<std::uint8_t> indices, scales;
  AlignedBuffer<float> codebooks;
  VqMatrix view;
  std::string name;
};
VqCase make_vq(const format::ExpertQuant& quant, std::size_t rows, std::size_t cols, Scales scales,
               std::uint64_t seed);

/// Every (stages, index_bits) pair of the format, with the given index_block.
std::vector<format::ExpertQuant> every_quant(std::uint32_t index_block);

}  // namespace waste::test
