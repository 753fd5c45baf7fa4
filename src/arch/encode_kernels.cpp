// g++ 12's AVX-512 headers pass variables that they leave undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "waste/kernels/encode_kernels.hpp"

#include "waste/kernels/feed_error.hpp"
#include "waste/kernels/vq_search.hpp"

#define WASTE_JOIN_(a, b) a##b
#define WASTE_JOIN(a, b) WASTE_JOIN_(a, b)

namespace waste::kernels {
namespace {

using Tier = arch::WASTE_TIER;

WASTE_FLATTEN void search(const SearchBooks& books, const std::int16_t* targets, std::size_t count,
                          std::size_t beam, std::uint8_t* indices) noexcept {
  vq_search{}(Tier{}, books, targets, count, beam, indices);
}

WASTE_FLATTEN void feed(const float* v, std::size_t rows, const float* factor, std::size_t stride,
                        std::size_t count, float* z, std::size_t z_stride) noexcept {
  feed_error{}(Tier{}, v, rows, factor, stride, count, z, z_stride);
}

}  // namespace

extern const EncodeKernels WASTE_JOIN(encode_kernels_, WASTE_TIER);
const EncodeKernels WASTE_JOIN(encode_kernels_, WASTE_TIER) = {.search = search, .feed = feed};

}  // namespace waste::kernels
