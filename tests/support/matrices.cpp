#include "support/matrices.hpp"

#include <cmath>

namespace waste::test {

std::uint64_t Random::bits() {  // splitmix64
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
float Random::uniform() {
  return static_cast<float>(static_cast<std::int64_t>(bits() >> 40) - (1 << 23)) * 0x1p-23f;
}
float Random::bell() { return uniform() + uniform() + uniform() + uniform(); }
std::vector<float> Random::bells(std::size_t n) {
  std::vector<float> out(n);
  for (float& v : out) v = bell();
  return out;
}

std::uint16_t random_scale(Random& random, Scales kind) {
  switch (kind) {
    case Scales::ordinary:
      return static_cast<std::uint16_t>(0x2000 + random.below(0x0800));  // 2^-7 .. 2^-5
    case Scales::subnormal:
      return static_cast<std::uint16_t>(1 + random.below(0x3ff));
    case Scales::zero:
      return 0;
    case Scales::largest:
      return 0x7bff;
    case Scales::mixed:
      break;
  }
  return random_scale(random, static_cast<Scales>(random.below(4)));
}

namespace {

// Storage that begins at an odd address and ends exactly with the data.
std::uint8_t* odd(std::vector<std::uint8_t>& storage, std::size_t bytes) {
  storage.resize(bytes + 1);
  return storage.data() + 1;
}

void fill_scales(Random& random, Scales kind, std::uint8_t* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    store_le<std::uint16_t>(to + 2 * i, random_scale(random, kind));
  }
}

}  // namespace

TrunkCase make_trunk(format::Fmt fmt, std::size_t rows, std::size_t cols, Scales scales,
                     std::uint64_t seed) {
  TrunkCase out;
  Random random(seed);
  const std::size_t row_bytes = format::trunk_row_bytes(fmt, cols);
  std::uint8_t* const payload = odd(out.payload, rows * row_bytes);
  std::uint8_t* const scale = odd(out.scales, rows * format::trunk_row_scale_bytes(fmt, cols));
  for (std::size_t i = 0; i < rows * row_bytes; ++i) {
    payload[i] = static_cast<std::uint8_t>(random.bits());
  }
  for (std::size_t i = 0; i < rows * cols; ++i) {
    if (fmt == format::Fmt::f32) store_le<float>(payload + 4 * i, random.bell());
    if (fmt == format::Fmt::f16) {
      const bool tiny = random.below(8) == 0;
      store_le<std::uint16_t>(payload + 2 * i, f32_to_f16(random.bell() * (tiny ? 1e-6f : 1.0f)));
    }
  }
  if (format::is_grouped(fmt)) fill_scales(random, scales, scale, out.scales.size() / 2);
  out.view = {fmt, payload, scale, rows, cols};
  out.name =
      std::string(to_string(fmt)) + " " + std::to_string(rows) + " x " + std::to_string(cols);
  return out;
}

VqCase make_vq(const format::ExpertQuant& quant, std::size_t rows, std::size_t cols, Scales scales,
               std::uint64_t seed) {
  VqCase out;
  Random random(seed);
  const format::IndexLayout layout(quant, rows, cols);
  std::uint8_t* const indices = odd(out.indices, layout.bytes());
  for (std::size_t i = 0; i < layout.bytes(); ++i) {
    indices[i] = static_cast<std::uint8_t>(random.bits());
  }
  std::uint8_t* const scale = odd(out.scales, 2 * rows);
  fill_scales(random, scales, scale, rows);
  const std::size_t entries = std::size_t{1} << quant.index_bits;
  out.codebooks = AlignedBuffer<float>(quant.stages * entries * 8, 64);
  for (std::size_t s = 0; s < quant.stages; ++s) {
    for (std::size_t i = 0; i < entries * 8; ++i) {
      const float value = random.bell() * std::pow(0.55f, static_cast<float>(s));
      const float kept = i / 8 == 5 ? 0.0f : i / 8 == 3 ? value * 1e-6f : value;
      out.codebooks[s * entries * 8 + i] = f16_to_f32(f32_to_f16(kept));
    }
  }
  out.view = {indices, scale, out.codebooks.data(), rows, cols, quant};
  out.name = std::to_string(quant.stages) + " stages of " + std::to_string(quant.index_bits) +
             " bits, block " + std::to_string(quant.index_block) + ", " + std::to_string(rows) +
             " x " + std::to_string(cols);
  return out;
}

std::vector<format::ExpertQuant> every_quant(std::uint32_t index_block) {
  std::vector<format::ExpertQuant> out;
  for (std::uint32_t stages = 1; stages <= 8; ++stages) {
    format::ExpertQuant q = stages == 2 ? format::vq2r : format::vq3r;
    q.stages = stages;
    q.index_block = index_block;
    out.push_back(q);
  }
  format::ExpertQuant q = format::vq4p;
  q.index_block = index_block;
  out.push_back(q);
  return out;
}

}  // namespace waste::test
