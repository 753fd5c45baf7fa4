// g++ 12's AVX-512 headers pass variables that they leave undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "waste/io/crc32.hpp"

#include <array>

#include "waste/arch/detail/crc32_poly.hpp"
#include "waste/core/half.hpp"

#if defined(__x86_64__)
#include "waste/arch/detail/crc32_x86.hpp"
#elif defined(__aarch64__)
#include <sys/auxv.h>

#include "waste/arch/detail/crc32_arm.hpp"
#endif

namespace waste::io {
namespace {

namespace detail = arch::detail;
using Bytes = std::span<const std::uint8_t>;

/// tables[k][b]: what byte b does to a remainder that k more bytes follow.
constexpr auto make_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t c = b;
    for (int bit = 0; bit < 8; ++bit) c = detail::crc_times_x(c);
    tables[0][b] = c;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t c = tables[k - 1][b];
      tables[k][b] = tables[0][c & 0xffu] ^ (c >> 8);
    }
  }
  return tables;
}
constexpr auto tables = make_tables();

/// Eight bytes a step through eight tables; `crc` is complemented on both sides of the call.
std::uint32_t continue_by_table(std::uint32_t crc, const std::uint8_t* data,
                                std::size_t bytes) noexcept {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    const std::uint64_t x = load_le<std::uint64_t>(data) ^ crc;
    crc = 0;
#pragma GCC unroll 8
    for (std::size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][x >> (8 * k) & 0xffu];
  }
  for (; bytes > 0; ++data, --bytes) crc = tables[0][(crc ^ *data) & 0xffu] ^ (crc >> 8);
  return crc;
}

std::uint32_t slice8(Bytes bytes, std::uint32_t crc) noexcept {
  return ~continue_by_table(~crc, bytes.data(), bytes.size());
}

#if defined(__x86_64__)

/// The folded block stands for all bytes before the rest: 16 bytes of a message that begins there.
template <std::size_t Step, std::size_t (*Fold)(std::uint32_t, const std::uint8_t*, std::size_t,
                                                std::uint8_t*) noexcept>
std::uint32_t folded(Bytes bytes, std::uint32_t crc) noexcept {
  if (bytes.size() < Step) return slice8(bytes, crc);
  std::uint8_t block[16];
  const std::size_t done = Fold(~crc, bytes.data(), bytes.size(), block);
  const std::uint32_t at = continue_by_table(0, block, sizeof block);
  return ~continue_by_table(at, bytes.data() + done, bytes.size() - done);
}
constexpr auto pclmul = folded<detail::crc_pclmul_step, detail::crc_pclmul>;

/// What a wide fold leaves over (and short input) goes through the narrow one.
template <std::size_t Step, std::size_t (*Fold)(std::uint32_t, const std::uint8_t*, std::size_t,
                                                std::uint8_t*) noexcept>
std::uint32_t wide(Bytes bytes, std::uint32_t crc) noexcept {
  const std::size_t whole = bytes.size() / Step * Step;
  if (whole != 0) crc = folded<Step, Fold>(bytes.first(whole), crc);
  return pclmul(bytes.subspan(whole), crc);
}

#elif defined(__aarch64__)

std::uint32_t arm(Bytes bytes, std::uint32_t crc) noexcept {
  return ~detail::crc_arm(~crc, bytes.data(), bytes.size());
}

#endif

struct Kernels {
  std::array<Crc32Kernel, 4> list{};
  std::size_t count = 0;

  void add(const char* name, std::uint32_t (*update)(Bytes, std::uint32_t) noexcept) noexcept {
    list[count++] = {name, update};
  }
  Kernels() noexcept {
    add("slice8", slice8);
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) return;
    add("pclmul", pclmul);
    if (!__builtin_cpu_supports("vpclmulqdq") || !__builtin_cpu_supports("avx2")) return;
    add("vpclmul", wide<detail::crc_vpclmul_step, detail::crc_vpclmul>);
    if (!__builtin_cpu_supports("avx512f")) return;
    add("avx512", wide<detail::crc_avx512_step, detail::crc_avx512>);
#elif defined(__aarch64__)
    if ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) add("arm", arm);
#endif
  }
};

const Kernels& kernels() noexcept {
  static const Kernels kernels;
  return kernels;
}

}  // namespace

std::span<const Crc32Kernel> crc32_kernels() noexcept {
  return {kernels().list.data(), kernels().count};
}

std::uint32_t crc32(Bytes bytes, std::uint32_t crc) noexcept {
  static const auto update = crc32_kernels().back().update;
  return update(bytes, crc);
}

std::uint32_t combine_crc32(std::uint32_t crc_a, std::uint32_t crc_b,
                            std::uint64_t bytes_b) noexcept {
  // 2^32 - 1 bit positions cycle, and 8 bytes_b might not fit: reduce the exponent first.
  const std::uint64_t bits = 8 * (bytes_b % 0xffffffffu);
  return detail::crc_shift(crc_a, bits) ^ crc_b;
}

}  // namespace waste::io
