// A sequence on disk: what a model has read of it, to go on later without reading it again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/model_config.hpp"
#include "waste/model/session.hpp"

namespace waste::model {

inline constexpr std::uint32_t session_magic = 0x53414457;  ///< "WDAS"
inline constexpr std::uint32_t session_version = 2;         ///< 1 is the C engine's, not read here
inline constexpr std::size_t session_header_bytes = 64;

/// A session file, little-endian:
///
///     0 u32 magic   4 u32 version     8 u32 layers       12 u32 hidden_size
///    16 u32 kda_heads  20 u32 kda_head_dim  24 u32 short_conv_kernel_size
///    28 u32 kv_lora_rank + qk_rope_head_dim
///    32 u64 position  40 u32 pending tokens  44 u32 fingerprint of the model
///    48 u32 crc32 of all that follows the header  52 u64 zero
///    60 u32 crc32 of these first 60 bytes
///
/// then the pending tokens, u32 each, and of each layer in f32: KDA [heads][dim][dim] and
/// [3][kernel - 1][channels] (oldest input first); MLA [position][rank + rope]. The size is exact.
struct SavedSession {
  Session session;
  /// Tokens that belong to the sequence and have not been fed yet: feed them first.
  std::vector<std::uint32_t> pending;
};

/// Writes a session of a model with this configuration; `fingerprint` is TextModel::fingerprint().
/// Replaces `path` as a whole or not at all. Throws Error: bad_argument for a broken session or
/// one of another configuration, out_of_range for more than 2^16 pending tokens or one that is not
/// in the vocabulary, io and no_space.
void save_session(const Session& session, const format::ModelConfig& config,
                  std::uint32_t fingerprint, std::span<const std::uint32_t> pending,
                  const std::filesystem::path& path);

/// Reads one into a session for at most `context` positions. No more memory than that session needs
/// is taken, whatever the file says. Throws Error naming file and field: what File does; truncated,
/// bad_magic, bad_version; checksum for any damaged byte; mismatch for a session of another model;
/// out_of_range for a position beyond `context` or a pending token out of the vocabulary;
/// bad_field for values that are not finite; changed.
SavedSession load_session(const format::ModelConfig& config, std::uint32_t fingerprint,
                          std::size_t context, const std::filesystem::path& path);

}  // namespace waste::model
