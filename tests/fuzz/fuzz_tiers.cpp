// Kernels of every tier that runs here against the slow reference and each other, over any bytes as
// indices, codes, scales and codebooks: expert matrices, trunk matrices, MXFP4 rows, half floats.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "fuzz_target.hpp"
#include "waste/core/aligned_buffer.hpp"
#include "waste/kernels/kernel_table.hpp"
#include "waste/quant/mxfp4.hpp"
#include "waste/quant/reference.hpp"

namespace {

using namespace waste;
using Bytes = std::vector<std::uint8_t>;

/// The input over and over, each time through with another mask.
class Stream {
 public:
  explicit Stream(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::uint8_t byte() noexcept {
    if (bytes_.empty()) return 0;
    const std::size_t n = at_++;
    return static_cast<std::uint8_t>(bytes_[n % bytes_.size()] ^ n / bytes_.size() * 0x5b);
  }
  Bytes take(std::size_t n) {
    Bytes out(n);
    for (auto& b : out) b = byte();
    return out;
  }
  /// Any f16 but those that validators refuse: infinities and NaN lose their highest exponent bit.
  std::uint16_t f16() noexcept {
    const auto bits = static_cast<std::uint16_t>(byte() | byte() << 8);
    return f16_is_finite(bits) ? bits : static_cast<std::uint16_t>(bits & ~0x4000);
  }
  Bytes f16s(std::size_t n) {
    Bytes out(2 * n);
    for (std::size_t i = 0; i < n; ++i) store_le<std::uint16_t>(&out[2 * i], f16());
    return out;
  }
  std::vector<float> vector(std::size_t n) {
    std::vector<float> out(n);
    for (float& v : out) v = static_cast<float>(static_cast<std::int8_t>(byte())) / 16;
    return out;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

bool fused(arch::Tier tier) noexcept {
#if defined(__aarch64__)
  return tier == tier;
#else
  return tier != arch::Tier::baseline;
#endif
}

bool same_bits(std::span<const float> a, std::span<const float> b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  });
}

/// Runs `product(kernels, y)` on every tier: fused ones give the same bits, all of them what
/// `want` says within `slack`, where there is one.
template <class Product>
void on_every_tier(std::size_t size, std::span<const double> want, std::span<const double> slack,
                   const Product& product) {
  std::vector<float> first;
  for (const arch::Tier tier : arch::runnable_tiers()) {
    std::vector<float> y(size, -777.0f);
    product(*kernels::kernel_table(tier).matrix, y.data());
    for (std::size_t i = 0; i < want.size(); ++i) {
      WASTE_FUZZ_CHECK(std::abs(y[i] - want[i]) <= slack[i]);
    }
    for (const float v : y) WASTE_FUZZ_CHECK(std::isfinite(v));
    if (!fused(tier)) continue;
    if (first.empty()) first = y;
    WASTE_FUZZ_CHECK(same_bits(y, first));
  }
}

/// Of some thousand f32 operations on numbers whose absolute values add up to `sum`.
double slack_of(double sum) noexcept { return 3e-5 * sum + 1e-36; }

void expert(Stream& in, std::size_t which, std::size_t rows, std::size_t positions) {
  format::ExpertQuant q = which % 9 == 8 ? format::vq4p : format::vq3r;
  if (which % 9 < 8) q.stages = static_cast<std::uint32_t>(which % 9 + 1);
  q.index_block = (which & 16) != 0 ? 0 : 64;
  const std::size_t cols = 8 * positions;
  const Bytes indices = in.take(format::IndexLayout(q, rows, cols).bytes());
  const Bytes scales = in.f16s(rows);
  AlignedBuffer<float> books(q.stages * (std::size_t{1} << q.index_bits) * 8, 64);
  for (float& v : books) v = f16_to_f32(in.f16());
  const std::vector<float> x = in.vector(cols);
  const VqMatrix w{indices.data(), scales.data(), books.data(), rows, cols, q};
  std::vector<double> want(rows), slack(rows);
  quant::reference::matvec(w, x, want);
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;  // stages may cancel: their sizes count, not their sum's
    for (std::size_t v = 0; v < positions; ++v) {
      for (std::size_t s = 0; s < q.stages; ++s) {
        const float* entry = &books[(s * w.table_entries() + w.index(r, v, s)) * 8];
        for (std::size_t d = 0; d < 8; ++d) sum += std::abs(double{entry[d]} * x[8 * v + d]);
      }
    }
    slack[r] = slack_of(sum * std::abs(w.scale(r)));
  }
  using kernels::Precision;
  for (const Precision p : {Precision::exact, Precision::hilo14, Precision::split8}) {
    const kernels::TableLayout layout(p, q, cols);
    on_every_tier(rows, p == Precision::exact ? want : std::vector<double>(), slack,
                  [&](const kernels::MatrixKernels& k, float* y) {
                    AlignedBuffer<std::uint8_t> table(layout.bytes(), 64);
                    k.vq_table_build(p, q, books.data(), x.data(), cols, table.data(), 0,
                                     layout.chunks);
                    k.vq_matvec(p, w, table.data(), y, 0, rows);
                  });
  }
  on_every_tier(rows, want, slack, [&](const kernels::MatrixKernels& k, float* y) {
    k.vq_matmul(w, x.data(), cols, 1, y, rows, 0, rows);
  });
}

void trunk(Stream& in, std::size_t which, std::size_t rows, std::size_t cols) {
  constexpr format::Fmt formats[] = {format::Fmt::f32, format::Fmt::f16, format::Fmt::q8g,
                                     format::Fmt::q4g, format::Fmt::q3g};
  const format::Fmt fmt = formats[which % 5];
  const std::size_t bytes = rows * format::trunk_row_bytes(fmt, cols);
  Bytes payload = fmt == format::Fmt::f16 ? in.f16s(bytes / 2) : in.take(bytes);
  if (fmt == format::Fmt::f32) {  // of ordinary size, so that no sum overflows
    for (std::size_t i = 0; i < bytes; i += 4) {
      const auto bits = load_le<std::uint32_t>(&payload[i]);
      store_le<std::uint32_t>(&payload[i], (bits & 0xbfffffffu) | (bits & 0x40000000u) >> 8);
    }
  }
  const Bytes scales = in.f16s(rows * format::trunk_row_scale_bytes(fmt, cols) / 2);
  const std::vector<float> x = in.vector(cols);
  const TrunkMatrix w{fmt, payload.data(), scales.data(), rows, cols};
  std::vector<double> want(rows), slack(rows);
  quant::reference::matvec(w, x, want);
  for (std::size_t r = 0; r < rows; ++r) {
    slack[r] = slack_of(quant::reference::magnitude(w, x, r));
  }
  on_every_tier(rows, want, slack, [&](const kernels::MatrixKernels& k, float* y) {
    k.trunk_matvec(w, x.data(), y, 0, rows);
  });
  std::vector<float> whole(rows * cols), row(cols);
  quant::reference::dequantize(w, MatrixView<float>(whole.data(), rows, cols));
  for (const arch::Tier tier : arch::runnable_tiers()) {
    for (std::size_t r = 0; r < rows; ++r) {
      kernels::kernel_table(tier).matrix->trunk_row(w, r, row.data());
      // A code 0 under a negative scale may be either zero.
      WASTE_FUZZ_CHECK(std::equal(row.begin(), row.end(), &whole[r * cols]));
    }
  }
}

void mxfp4(Stream& in, std::size_t groups) {
  const Bytes packed = in.take(16 * groups), scale = in.take(groups);
  std::vector<float> want(32 * groups), got(32 * groups);
  const Fault f = quant::decode_mxfp4(packed.data(), scale.data(),
                                      MatrixView<float>(want.data(), 1, 32 * groups));
  const bool refused = std::any_of(scale.begin(), scale.end(), [](auto e) { return e == 255; });
  WASTE_FUZZ_CHECK(!refused || f);
  WASTE_FUZZ_CHECK(f || std::all_of(want.begin(), want.end(), [](float v) { return v - v == 0; }));
  if (f) return;
  for (const arch::Tier tier : arch::runnable_tiers()) {
    kernels::kernel_table(tier).matrix->mxfp4_row(packed.data(), scale.data(), 32 * groups,
                                                  got.data());
    WASTE_FUZZ_CHECK(same_bits(got, want));
  }
}

void halves(Stream& in, std::size_t n) {
  const Bytes from = in.take(2 * n);
  std::vector<float> f16(n), bf16(n), got(n);
  for (std::size_t i = 0; i < n; ++i) {
    f16[i] = f16_to_f32(load_le<std::uint16_t>(&from[2 * i]));
    bf16[i] = bf16_to_f32(load_le<std::uint16_t>(&from[2 * i]));
  }
  for (const arch::Tier tier : arch::runnable_tiers()) {
    const auto& k = *kernels::kernel_table(tier).matrix;
    k.f16_to_f32(from.data(), n, got.data());
    WASTE_FUZZ_CHECK(same_bits(got, f16));
    k.bf16_to_f32(from.data(), n, got.data());
    WASTE_FUZZ_CHECK(same_bits(got, bf16));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input head(data, size);
  const std::size_t which = head.take(1), rows = 1 + head.take(1) % 70,
                    width = 1 + head.take(1) % 40;
  Stream in(head.rest());
  switch (which >> 5 & 3) {
    case 0:
      expert(in, which, rows, width);
      break;
    case 1:
      trunk(in, which, 1 + rows % 9, 1 + width * 7);
      break;
    case 2:
      mxfp4(in, width);
      break;
    case 3:
      halves(in, rows);
      break;
  }
  return 0;
}
