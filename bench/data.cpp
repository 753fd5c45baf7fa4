#include "data.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "registry.hpp"
#include "waste/core/checked.hpp"

namespace waste::bench {
namespace {

std::uint16_t ordinary_scale(std::uint64_t& state) {  // 2^-7 .. 2^-5
  return static_cast<std::uint16_t>(0x2000 + random_bits(state) % 0x800);
}

std::size_t vq_bytes(const format::ExpertQuant& quant, std::size_t rows, std::size_t cols) {
  return format::IndexLayout(quant, rows, cols).bytes() + 2 * rows;
}
std::size_t trunk_bytes(format::Fmt fmt, std::size_t rows, std::size_t cols) {
  return rows * (format::trunk_row_bytes(fmt, cols) + format::trunk_row_scale_bytes(fmt, cols));
}

}  // namespace

std::uint64_t random_bits(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::vector<float> random_inputs(std::size_t n, std::uint64_t seed, std::size_t outlier_every) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    double sum = -6;  // twelve uniforms: variance 1
    for (int k = 0; k < 12; ++k) sum += static_cast<double>(random_bits(seed) >> 11) * 0x1p-53;
    const bool outlier = outlier_every != 0 && i % outlier_every == 0;
    out[i] = static_cast<float>(outlier ? 10 * sum : sum);
  }
  return out;
}

Copies::Copies(std::size_t bytes, std::size_t count, std::uint64_t seed)
    : bytes_(bytes),
      stride_(round_up<std::size_t>(bytes, 64)),
      count_(count),
      storage_(stride_ * count) {
  for (std::size_t i = 0; i < bytes; ++i) {
    storage_[i] = static_cast<std::uint8_t>(random_bits(seed) >> 17);
  }
}
void Copies::spread() {
  for (std::size_t i = 1; i < count_; ++i) std::memcpy(copy(i), copy(0), bytes_);
}

std::size_t copies_for(const std::string& cache, std::size_t bytes) {
  return cache == "hot" ? 1 : std::max<std::size_t>(2, ram_bytes() / bytes + 1);
}

VqData::VqData(const format::ExpertQuant& q, std::size_t r, std::size_t c, const std::string& cache)
    : quant(q),
      rows(r),
      cols(c),
      layout(q, r, c),
      codebooks(q.stages * (std::size_t{8} << q.index_bits), 64),
      copies(vq_bytes(q, r, c), copies_for(cache, vq_bytes(q, r, c)), r + c) {
  // Each stage quantizes what the earlier ones left: 2^-bits/dimension of it.
  const std::size_t entries = std::size_t{1} << q.index_bits;
  const double shrink = std::exp2(-static_cast<double>(q.index_bits) / 8);
  const auto values = random_inputs(codebooks.size(), 7);
  for (std::size_t i = 0; i < codebooks.size(); ++i) {
    const auto stage = static_cast<double>(i / (8 * entries));
    codebooks[i] = f16_to_f32(f32_to_f16(values[i] * static_cast<float>(std::pow(shrink, stage))));
  }
  std::uint64_t seed = 11;
  for (std::size_t i = 0; i < rows; ++i) {
    store_le<std::uint16_t>(copies.copy(0) + layout.bytes() + 2 * i, ordinary_scale(seed));
  }
  copies.spread();
}
VqMatrix VqData::view(std::uint8_t* copy) const {
  return {copy, copy + layout.bytes(), codebooks.data(), rows, cols, quant};
}

TrunkData::TrunkData(format::Fmt f, std::size_t r, std::size_t c, const std::string& cache)
    : fmt(f),
      rows(r),
      cols(c),
      copies(trunk_bytes(f, r, c), copies_for(cache, trunk_bytes(f, r, c)), r + c) {
  std::uint8_t* const first = copies.copy(0);
  const auto numbers =
      random_inputs(fmt == format::Fmt::f32 || fmt == format::Fmt::f16 ? r * c : 0, 3);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (fmt == format::Fmt::f32) store_le<float>(first + 4 * i, numbers[i]);
    if (fmt == format::Fmt::f16) store_le<std::uint16_t>(first + 2 * i, f32_to_f16(numbers[i]));
  }
  std::uint64_t seed = 13;
  std::uint8_t* const scales = first + rows * format::trunk_row_bytes(fmt, cols);
  for (std::size_t i = 0; i < rows * format::trunk_row_scale_bytes(fmt, cols); i += 2) {
    store_le<std::uint16_t>(scales + i, ordinary_scale(seed));
  }
  copies.spread();
}
TrunkMatrix TrunkData::view(std::uint8_t* copy) const {
  return {fmt, copy, copy + rows * format::trunk_row_bytes(fmt, cols), rows, cols};
}
double TrunkData::payload() const { return static_cast<double>(trunk_bytes(fmt, rows, cols)); }

double relative_error(std::span<const float> got, std::span<const double> want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}
double relative_error(std::span<const float> got, std::span<const float> want) {
  const std::vector<double> wide(want.begin(), want.end());
  return relative_error(got, wide);
}

}  // namespace waste::bench
