#include "waste/quant/group.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/core/half.hpp"

namespace waste::quant {
namespace {

using format::Fmt;
constexpr std::size_t group = format::group;

// Round half to even for |v| < 2^22: the sum has no bits below 1.
inline float round_even(float v) noexcept { return (v + 12582912.0f) - 12582912.0f; }

inline float code_of(float x, float inverse, float low, float high) noexcept {
  return round_even(std::min(std::max(x * inverse, low), high));
}

// The squared error of the nearest codes for `scale`, summed in 16 fixed partial sums. weight[i],
// if any, multiplies the square of element i.
template <bool Weighted>
float rounding_error(const float* x, const float* weight, float scale, GroupCodes range) noexcept {
  const float inverse = 1.0f / scale;
  const float low = static_cast<float>(range.lowest), high = static_cast<float>(range.highest);
  float sums[16] = {};
  for (std::size_t i = 0; i < group; i += 16) {
    for (std::size_t k = 0; k < 16; ++k) {
      const float error = x[i + k] - scale * code_of(x[i + k], inverse, low, high);
      sums[k] += Weighted ? error * error * weight[i + k] : error * error;
    }
  }
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

void round_codes(const float* x, float scale, GroupCodes range, std::int8_t* codes) noexcept {
  const float inverse = 1.0f / scale;
  const float low = static_cast<float>(range.lowest), high = static_cast<float>(range.highest);
  for (std::size_t i = 0; i < group; ++i) {
    codes[i] = static_cast<std::int8_t>(code_of(x[i], inverse, low, high));
  }
}

double squared_error(const float* x, float scale, const std::int8_t* codes) noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < group; ++i) {
    const double error = static_cast<double>(x[i]) - static_cast<double>(scale) * codes[i];
    sum += error * error;
  }
  return sum;
}

// The scale that minimises |x - scale * codes|^2.
float fitted_scale(const float* x, const float* weight, const std::int8_t* codes) noexcept {
  double dot = 0, norm = 0;
  for (std::size_t i = 0; i < group; ++i) {
    const double factor = (weight == nullptr ? 1.0 : static_cast<double>(weight[i])) * codes[i];
    dot += factor * x[i];
    norm += factor * codes[i];
  }
  return norm > 0 ? static_cast<float>(dot / norm) : 0.0f;
}

}  // namespace

std::uint16_t best_group_scale(Fmt fmt, const float* x, const float* weight) noexcept {
  const GroupCodes range = group_codes(fmt);
  float top = 0;
  for (std::size_t i = 0; i < group; ++i) top = std::max(top, std::fabs(x[i]));
  float best = INFINITY;
  std::uint16_t best_scale = 0;
  const auto attempt = [&](float wanted) {
    const std::uint16_t bits = f32_to_f16(wanted);
    const float value = f16_to_f32(bits);
    if (value == 0 || !f16_is_finite(bits)) return;
    const float error = weight == nullptr ? rounding_error<false>(x, weight, value, range)
                                          : rounding_error<true>(x, weight, value, range);
    if (error < best) {
      best = error;
      best_scale = bits;
    }
  };
  // The largest magnitude sits at a code between a little inside the range and well beyond it.
  const float reach = static_cast<float>(-range.lowest);
  const bool wide = fmt == Fmt::q8g;
  const float first = wide ? 0.995f : 0.82f, step = wide ? 0.004f : 0.09f;
  for (int k = 0; k < (wide ? 4 : 12); ++k) {
    const float trial = top / (reach * (first + step * static_cast<float>(k)));
    attempt(trial);
    if (range.highest != -range.lowest) attempt(-trial);
  }
  if (best_scale == 0) return 0;
  const float coarse = f16_to_f32(best_scale);
  const float ratio = top / (reach * std::fabs(coarse));
  for (const float part : {-0.6f, -0.3f, 0.3f, 0.6f}) {
    attempt(coarse * ratio / (ratio + part * step));
  }
  for (int round = 0; round < 3; ++round) {
    const std::uint16_t before = best_scale;
    std::int8_t codes[group];
    round_codes(x, f16_to_f32(best_scale), range, codes);
    attempt(fitted_scale(x, weight, codes));
    if (best_scale == before) break;
  }
  return best_scale;
}

std::uint16_t search_group_scale(Fmt fmt, const float* x, std::uint16_t scale,
                                 std::int8_t* codes) noexcept {
  const double start = squared_error(x, f16_to_f32(scale), codes);
  const std::uint16_t found = start > 0 ? best_group_scale(fmt, x, nullptr) : std::uint16_t{0};
  if (found == 0) return scale;
  std::int8_t rounded[group];
  round_codes(x, f16_to_f32(found), group_codes(fmt), rounded);
  if (!(squared_error(x, f16_to_f32(found), rounded) < start)) return scale;
  std::memcpy(codes, rounded, sizeof rounded);
  return found;
}

void pack_group_row(Fmt fmt, const std::int8_t* codes, std::size_t cols,
                    std::uint8_t* payload) noexcept {
  const std::size_t padded = round_up(cols, group);
  if (fmt == Fmt::q8g) {
    std::memcpy(payload, codes, padded);
  } else if (fmt == Fmt::q4g) {
    for (std::size_t i = 0; i < padded / 2; ++i) {
      payload[i] = static_cast<std::uint8_t>((codes[2 * i] + 8) | (codes[2 * i + 1] + 8) << 4);
    }
  } else {
    for (std::size_t i = 0; i < padded / 8; ++i) {  // eight codes are three bytes
      std::uint32_t word = 0;
      for (std::size_t k = 0; k < 8; ++k) {
        word |= static_cast<std::uint32_t>(codes[8 * i + k] + 4) << (3 * k);
      }
      for (std::size_t b = 0; b < 3; ++b) {
        payload[3 * i + b] = static_cast<std::uint8_t>(word >> (8 * b));
      }
    }
    payload[3 * padded / 8] = 0;
  }
}

void unpack_group_row(Fmt fmt, const std::uint8_t* payload, std::size_t cols,
                      std::int8_t* codes) noexcept {
  const std::size_t padded = round_up(cols, group);
  if (fmt == Fmt::q8g) {
    std::memcpy(codes, payload, padded);
  } else if (fmt == Fmt::q4g) {
    for (std::size_t i = 0; i < padded / 2; ++i) {
      codes[2 * i] = static_cast<std::int8_t>((payload[i] & 15) - 8);
      codes[2 * i + 1] = static_cast<std::int8_t>((payload[i] >> 4) - 8);
    }
  } else {
    for (std::size_t i = 0; i < padded / 8; ++i) {
      std::uint32_t word = 0;
      for (std::size_t b = 0; b < 3; ++b) {
        word |= static_cast<std::uint32_t>(payload[3 * i + b]) << (8 * b);
      }
      for (std::size_t k = 0; k < 8; ++k) {
        codes[8 * i + k] = static_cast<std::int8_t>(static_cast<int>(word >> (3 * k) & 7u) - 4);
      }
    }
  }
}

void dequantize_group_row(const TrunkMatrix& w, std::size_t row, float* out) noexcept {
  const std::size_t row_bytes = format::trunk_row_bytes(w.fmt, w.n_cols);
  const std::uint8_t* payload = w.payload + row * row_bytes;
  for (std::size_t g = 0; g < w.groups(); ++g) {
    std::int8_t codes[group];
    const std::size_t first = g * group;
    const std::size_t offset = w.fmt == Fmt::q8g   ? first
                               : w.fmt == Fmt::q4g ? first / 2
                                                   : 3 * first / 8;
    unpack_group_row(w.fmt, payload + offset, group, codes);
    const float scale = f16_to_f32(load_le<std::uint16_t>(w.scales + 2 * (row * w.groups() + g)));
    const std::size_t count = std::min(group, w.n_cols - first);
    for (std::size_t i = 0; i < count; ++i) out[first + i] = scale * static_cast<float>(codes[i]);
  }
}

void quantize_groups(Fmt fmt, MatrixView<const float> w, std::uint8_t* payload,
                     std::uint8_t* scales, GroupScale choice) {
  if (!format::is_grouped(fmt)) {
    throw Error(fault(Errc::bad_argument, "fmt", static_cast<std::uint64_t>(fmt),
                      static_cast<std::uint64_t>(Fmt::q4g)),
                {}, "wanted Q8G, Q4G or Q3G");
  }
  const GroupCodes range = group_codes(fmt);
  const std::size_t groups = ceil_div(w.cols, group);
  const std::size_t row_bytes = format::trunk_row_bytes(fmt, w.cols);
  std::vector<std::int8_t> codes(groups * group);
  for (std::size_t r = 0; r < w.rows; ++r) {
    for (std::size_t g = 0; g < groups; ++g) {
      float x[group] = {};
      const std::size_t count = std::min(group, w.cols - g * group);
      std::memcpy(x, w.data + r * w.stride + g * group, count * sizeof(float));
      float top = 1e-8f;
      bool finite = true;
      for (std::size_t i = 0; i < count; ++i) {
        finite = finite && std::isfinite(x[i]);
        top = std::max(top, std::fabs(x[i]));
      }
      const float scale32 = top / static_cast<float>(range.divisor);
      std::uint16_t scale = f32_to_f16(scale32);
      if (!finite || !f16_is_finite(scale)) {
        throw Error(fault(Errc::out_of_range, "weights"), {},
                    "row " + std::to_string(r) + ", columns from " + std::to_string(g * group) +
                        (finite ? ": the group's scale exceeds the largest f16"
                                : ": a value is not finite"));
      }
      std::int8_t* c = codes.data() + g * group;
      const float low = static_cast<float>(range.lowest), high = static_cast<float>(range.highest);
      for (std::size_t i = 0; i < group; ++i) {
        c[i] = static_cast<std::int8_t>(round_even(std::min(std::max(x[i] / scale32, low), high)));
      }
      if (choice == GroupScale::search) scale = search_group_scale(fmt, x, scale, c);
      store_le(scales + 2 * (r * groups + g), scale);
    }
    pack_group_row(fmt, codes.data(), w.cols, payload + r * row_bytes);
  }
}

}  // namespace waste::quant
