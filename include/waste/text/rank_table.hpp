// The vocabulary of a tiktoken rank file, and byte-pair merging in rank order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"

namespace waste::text {

using TokenId = std::uint32_t;

/// Tokens by rank (their id) and ranks by token bytes. Immutable after parsing; safe to share
/// between threads.
class RankTable {
 public:
  static constexpr std::size_t max_file_bytes = std::size_t{128} << 20;
  static constexpr std::size_t max_tokens = std::size_t{1} << 22;
  static constexpr std::size_t max_token_bytes = 4096;
  static constexpr TokenId none = 0xffffffffu;

  /// Reads lines `base64(token bytes) SP rank LF` (the last LF may be absent); rank is the line's
  /// number from 0 without sign or leading zeros; base64 is canonical (padded, no stray bits).
  /// Refused, throwing Error with `file` and the line's number: a file, count or token beyond the
  /// limits above, an empty file, line or token, bad base64, a rank other than the next one (gaps,
  /// repeats, disorder), a token that occurred before, any of the 256 single bytes absent.
  /// Memory: about the size of the text.
  static RankTable parse(std::string_view text, std::string_view file);

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ends_.size()); }
  /// The bytes of a token; id < size().
  std::string_view token(TokenId id) const noexcept {
    const std::size_t begin = id == 0 ? 0 : ends_[id - 1];
    return {bytes_.data() + begin, ends_[id] - begin};
  }
  /// The token with exactly these bytes, or none.
  TokenId find(std::string_view token) const noexcept;

  /// Appends the ids of one piece: the whole piece where it is a token; else its bytes, of which
  /// the adjacent pair whose bytes joined have the lowest rank (the leftmost of equals) is joined
  /// until no joined pair is a token. O(n log n) in the bytes of the piece, of which there must be
  /// fewer than 2^32 - 1 (Error, bad_argument).
  void encode_piece(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  void add(std::string_view token, std::string_view file);
  std::size_t slot_of(std::string_view token) const noexcept;
  void grow();
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& out) const;

  std::string bytes_;                // all tokens, end to end
  std::vector<std::uint32_t> ends_;  // one past each token in bytes_
  std::vector<TokenId> slots_;       // open addressing, a power of two, at most half full
  std::vector<TokenId> byte_pairs_;  // the token of each two bytes: 256 * first + second
  std::array<TokenId, 256> single_{};
  std::size_t longest_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace waste::text
