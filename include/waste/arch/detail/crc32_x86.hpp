// crc32 by carry-less multiplication: 128-, 256- and 512-bit folding.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "waste/arch/detail/crc32_poly.hpp"

namespace waste::arch::detail {

/// Each function folds whole steps of `data` into one 128-bit block that is congruent to
/// everything before it: `crc` (complemented already) enters with the first bytes, the block is
/// written to `rest`, and the number of bytes folded is returned. bytes is at least the first step.
/// Chains are independent, four or more, as a carry-less multiply takes 4 to 9 cycles.

#define WASTE_CRC_PCLMUL __attribute__((target("pclmul,sse4.1")))
#define WASTE_CRC_VPCLMUL __attribute__((target("avx2,pclmul,vpclmulqdq")))
#define WASTE_CRC_AVX512 __attribute__((target("avx512f,avx2,pclmul,vpclmulqdq")))

inline constexpr std::size_t crc_pclmul_step = 64;
inline constexpr std::size_t crc_vpclmul_step = 256;
inline constexpr std::size_t crc_avx512_step = 256;

WASTE_CRC_PCLMUL inline __m128i crc_fold128(__m128i x, __m128i k, __m128i data) noexcept {
  return _mm_xor_si128(
      _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), data);
}
WASTE_CRC_PCLMUL inline __m128i crc_constants128(CrcFold k) noexcept {
  return _mm_set_epi64x(static_cast<long long>(k.high), static_cast<long long>(k.low));
}

WASTE_CRC_PCLMUL inline std::size_t crc_pclmul(std::uint32_t crc, const std::uint8_t* data,
                                               std::size_t bytes, std::uint8_t* rest) noexcept {
  const auto* const in = reinterpret_cast<const __m128i*>(data);
  __m128i x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm_loadu_si128(in + i);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  const __m128i step = crc_constants128(crc_fold_by<512>);
  std::size_t done = 64;
  for (; bytes - done >= 64; done += 64) {
    for (std::size_t i = 0; i < 4; ++i) {
      x[i] = crc_fold128(x[i], step, _mm_loadu_si128(in + done / 16 + i));
    }
  }
  const __m128i one = crc_constants128(crc_fold_by<128>);
  for (int i = 1; i < 4; ++i) x[i] = crc_fold128(x[i - 1], one, x[i]);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), x[3]);
  return done;
}

WASTE_CRC_VPCLMUL inline __m256i crc_fold256(__m256i x, __m256i k, __m256i data) noexcept {
  return _mm256_xor_si256(
      _mm256_xor_si256(_mm256_clmulepi64_epi128(x, k, 0x00), _mm256_clmulepi64_epi128(x, k, 0x11)),
      data);
}
WASTE_CRC_VPCLMUL inline __m256i crc_constants256(CrcFold k) noexcept {
  return _mm256_broadcastsi128_si256(crc_constants128(k));
}

WASTE_CRC_VPCLMUL inline std::size_t crc_vpclmul(std::uint32_t crc, const std::uint8_t* data,
                                                 std::size_t bytes, std::uint8_t* rest) noexcept {
  const auto* const in = reinterpret_cast<const __m256i*>(data);
  __m256i x[8];
  for (int i = 0; i < 8; ++i) x[i] = _mm256_loadu_si256(in + i);
  const __m128i first = _mm_cvtsi32_si128(static_cast<int>(crc));
  x[0] = _mm256_xor_si256(x[0], _mm256_zextsi128_si256(first));
  const __m256i step = crc_constants256(crc_fold_by<2048>);
  std::size_t done = 256;
  for (; bytes - done >= 256; done += 256) {
    for (std::size_t i = 0; i < 8; ++i) {
      x[i] = crc_fold256(x[i], step, _mm256_loadu_si256(in + done / 32 + i));
    }
  }
  const __m256i one = crc_constants256(crc_fold_by<256>);
  for (int i = 1; i < 8; ++i) x[i] = crc_fold256(x[i - 1], one, x[i]);
  const __m128i last = crc_fold128(_mm256_castsi256_si128(x[7]), crc_constants128(crc_fold_by<128>),
                                   _mm256_extracti128_si256(x[7], 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), last);
  return done;
}

WASTE_CRC_AVX512 inline __m512i crc_fold512(__m512i x, __m512i k, __m512i data) noexcept {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),
                                   _mm512_clmulepi64_epi128(x, k, 0x11), data, 0x96);
}
WASTE_CRC_AVX512 inline __m512i crc_constants512(CrcFold k) noexcept {
  return _mm512_broadcast_i32x4(crc_constants128(k));
}

WASTE_CRC_AVX512 inline std::size_t crc_avx512(std::uint32_t crc, const std::uint8_t* data,
                                               std::size_t bytes, std::uint8_t* rest) noexcept {
  __m512i x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm512_loadu_si512(data + 64 * i);
  const __m128i first = _mm_cvtsi32_si128(static_cast<int>(crc));
  x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(first));
  const __m512i step = crc_constants512(crc_fold_by<2048>);
  std::size_t done = 256;
  for (; bytes - done >= 256; done += 256) {
    for (std::size_t i = 0; i < 4; ++i) {
      x[i] = crc_fold512(x[i], step, _mm512_loadu_si512(data + done + 64 * i));
    }
  }
  const __m512i one = crc_constants512(crc_fold_by<512>);
  for (int i = 1; i < 4; ++i) x[i] = crc_fold512(x[i - 1], one, x[i]);
  const __m128i k = crc_constants128(crc_fold_by<128>);
  __m128i last = _mm512_castsi512_si128(x[3]);
  last = crc_fold128(last, k, _mm512_extracti32x4_epi32(x[3], 1));
  last = crc_fold128(last, k, _mm512_extracti32x4_epi32(x[3], 2));
  last = crc_fold128(last, k, _mm512_extracti32x4_epi32(x[3], 3));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), last);
  return done;
}

}  // namespace waste::arch::detail
