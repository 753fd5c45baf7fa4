// The fixed numbers of WASTE container format 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace waste::format {

inline constexpr std::uint64_t format_version = 0;

inline constexpr std::uint32_t record_magic = 0x50584557u;      ///< "WEXP"
inline constexpr std::uint32_t codebook_magic = 0x4B424357u;    ///< "WCBK"
inline constexpr std::uint32_t usage_magic = 0x47535557u;       ///< "WUSG"
inline constexpr std::uint32_t substitute_magic = 0x42555357u;  ///< "WSUB"

inline constexpr std::size_t page_bytes = 4096;
inline constexpr std::size_t record_header_bytes = 48;
inline constexpr std::size_t codebook_header_bytes = 16;
inline constexpr std::size_t vec_dim = 8;
inline constexpr std::size_t index_block = 64;  ///< what a writer writes; a reader honours 0 too
inline constexpr std::size_t group = 128;       ///< columns that share one trunk scale
inline constexpr std::size_t max_stages = 8;

/// Tensor formats by their number in files.
enum class Fmt : std::uint8_t {
  f32 = 0,
  f16 = 1,
  q8g = 2,
  q4g = 3,
  vq3r = 4,
  vq2r = 5,
  sub1 = 6,
  q3g = 7,
  vq4p = 8,
};

constexpr std::string_view to_string(Fmt fmt) noexcept {
  switch (fmt) {
    case Fmt::f32:
      return "F32";
    case Fmt::f16:
      return "F16";
    case Fmt::q8g:
      return "Q8G";
    case Fmt::q4g:
      return "Q4G";
    case Fmt::vq3r:
      return "VQ3R";
    case Fmt::vq2r:
      return "VQ2R";
    case Fmt::sub1:
      return "SUB1";
    case Fmt::q3g:
      return "Q3G";
    case Fmt::vq4p:
      return "VQ4P";
  }
  return "unknown";
}

/// The three matrices of an expert, in file order. Codebook ids count kinds in this order.
enum class Kind : std::uint8_t { gate = 0, up = 1, down = 2 };
inline constexpr std::size_t kinds = 3;

constexpr std::string_view to_string(Kind kind) noexcept {
  constexpr std::string_view names[] = {"gate", "up", "down"};
  return names[static_cast<std::size_t>(kind)];
}

/// Bounds enforced on every dimension a manifest or config may state. Generous against the
/// largest released model (K3: 93 layers, 896 experts, hidden 7168, vocabulary 163,840).
namespace limits {
inline constexpr std::uint64_t layers = 4096;
inline constexpr std::uint64_t experts = 65535;  ///< expert_id is a u16
inline constexpr std::uint64_t dimension = 1u << 20;
inline constexpr std::uint64_t vocabulary = 1u << 24;
inline constexpr std::uint64_t manifest_bytes = 32u << 20;
inline constexpr std::uint64_t json_depth = 64;
inline constexpr std::uint64_t record_bytes = std::uint64_t{1} << 32;
inline constexpr std::uint64_t tensor_dims = 8;
inline constexpr std::uint64_t tensor_elements = std::uint64_t{1} << 46;
inline constexpr std::uint64_t name_bytes = 1024;
inline constexpr std::uint64_t codebooks = 1u << 20;  ///< records of codebooks.bin
}  // namespace limits

}  // namespace waste::format
