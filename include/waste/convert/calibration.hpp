// Calibration files: what a model's matrices are fed on some text, and which experts it uses.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/json.hpp"
#include "waste/format/model_config.hpp"
#include "waste/io/file.hpp"
#include "waste/quant/input_moments.hpp"

namespace waste::convert {

/// Where in a layer an input vector appears. Matrices that are fed the same vectors share a site.
enum class Site : std::uint8_t {
  attention = 0,      ///< self_attn: q, k, v, f_a, b, g (KDA); q or q_a, kv_a, g (MLA)
  decay = 1,          ///< f_b_proj
  low_gate = 2,       ///< g_b_proj
  low_query = 3,      ///< q_b_proj
  latent = 4,         ///< kv_b_proj: the normed rows of the cache
  attention_out = 5,  ///< o_proj
  mlp = 6,            ///< gate_proj and up_proj of a dense layer
  mlp_down = 7,       ///< its down_proj
  moe = 8,            ///< router, routed_expert_down_proj, gate and up of the shared experts
  shared_down = 9,    ///< down of the shared experts
  latent_up = 10,     ///< routed_expert_up_proj
  expert = 11,        ///< gate and up of routed experts
  expert_down = 12,   ///< their down
};
inline constexpr std::uint8_t sites = 13;

struct MomentKey {
  static constexpr std::uint16_t all = 0xffff;  ///< not one expert's: of all that passes the site

  std::uint16_t layer = 0;
  Site site = Site::attention;
  std::uint16_t expert = all;
  auto operator<=>(const MomentKey&) const = default;
};

/// The site of a trunk tensor by its name without tensor_prefix; nothing for the embedding, the
/// head and tensors that are no matrices.
std::optional<MomentKey> site_of(std::string_view name);

/// Every site of a model with the columns of its vectors, `expert` of each key `all`.
std::map<MomentKey, std::uint32_t> calibration_sites(const format::ModelConfig& model);

/// Sums that moments of `cols` columns in blocks of at most `block` keep (quant::InputMoments).
std::uint64_t moment_sums(std::uint64_t cols, std::uint64_t block) noexcept;

/// What a calibration run has seen.
struct Calibration {
  std::uint32_t config_crc32 = 0;  ///< config_identity() of the model
  std::uint64_t tokens = 0;
  std::vector<std::uint64_t> uses;                   ///< [MoE layer][expert]: tokens routed there
  std::map<MomentKey, quant::InputMoments> moments;  ///< with a count of 1 or more each
};

/// Names a model's shape and rules: crc32 of the text of the config as a manifest holds it.
std::uint32_t config_identity(const JsonValue& container_config);

/// Writes a calibration file atomically (temporary file, fsync, rename). Layout, little-endian:
///
///      0  u32  magic 0x4C414357 "WCAL"
///      4  u32  version 1
///      8  u64  bytes of the file
///     16  u64  tokens of the text
///     24  u32  crc32 of the model's config (config_identity)
///     28  u32  MoE layers
///     32  u32  experts a layer
///     36  u32  entries (E)
///     40  u32  crc32 of this header, 0 here, and the table
///     44  u32  0
///     48  table: u64 uses [MoE layers][experts], then E entries of 32 bytes, ascending by
///         (layer, site, expert): u16 layer, u16 expert (0xffff: all), u8 site, u8[3] 0,
///         u32 cols, u32 block, u64 inputs seen, u32 crc32 of its sums, u32 0
///     then the sums of each entry without gaps, f64, as quant::InputMoments::sums() has them
///
/// Throws Error: bad_argument for moments that `model` has no site or no expert for, of other
/// columns or of no inputs, and for uses of another size; io, no_space.
void write_calibration(const std::filesystem::path& path, const format::ModelConfig& model,
                       const Calibration& calibration);

/// An open calibration file: its table in memory, moments read on demand from any thread.
class CalibrationFile {
 public:
  /// Reads and checks header and table: the size, the crc, every entry one of `model`'s sites with
  /// its columns, in order, once. Allocates no more than the file is long. Throws Error naming the
  /// file: not_found, truncated, bad_magic, bad_version, checksum, mismatch (another model: its
  /// dimensions or `config_crc32`), bad_field, out_of_range.
  static CalibrationFile open(const std::filesystem::path& path, const format::ModelConfig& model,
                              std::uint32_t config_crc32);

  const std::filesystem::path& path() const noexcept { return file_.path(); }
  std::uint64_t tokens() const noexcept { return tokens_; }
  /// crc32 of header and table, and through the crcs in it of every byte of the file.
  std::uint32_t identity() const noexcept { return identity_; }
  std::span<const MomentKey> keys() const noexcept { return keys_; }

  /// Tokens that were routed to each expert of a MoE layer, [experts]. Throws Error(bad_argument)
  /// for another layer.
  std::span<const std::uint64_t> uses(LayerId layer) const;

  bool has(const MomentKey& key) const noexcept { return find(key) != keys_.size(); }
  /// Columns of a block and inputs seen; 0 where there is no entry.
  std::uint32_t block(const MomentKey& key) const noexcept;
  std::uint64_t count(const MomentKey& key) const noexcept;
  /// Throws Error: missing where has() is false, checksum, out_of_range for sums that no inputs
  /// have (not finite, a negative diagonal), and read errors.
  quant::InputMoments moments(const MomentKey& key) const;

 private:
  struct Entry {
    std::uint32_t cols = 0, block = 0, crc32 = 0;
    std::uint64_t count = 0, off = 0;
  };
  std::size_t find(const MomentKey& key) const noexcept;

  io::File file_;
  std::uint64_t tokens_ = 0;
  std::uint32_t identity_ = 0, first_moe_ = 0, experts_ = 0;
  std::vector<std::uint64_t> uses_;
  std::vector<MomentKey> keys_;
  std::vector<Entry> entries_;  ///< of keys_
};

}  // namespace waste::convert
