// Text to token ids and back: pre-tokenizer, rank-order merges, special tokens.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/text/rank_table.hpp"

namespace waste::text {

/// A control token: an id after the ranks, and the text that stands for it in markup. Ordered by
/// id, then text: lists that a Tokenizer has yet to check may have an id twice.
struct Special {
  TokenId id = 0;
  std::string text;
  auto operator<=>(const Special&) const = default;
};

/// What a text may become. In plain mode nothing in it yields a control token, so text from
/// anywhere is safe; in markup mode the texts of special tokens become their ids: the earliest
/// first, the longest where several start at one place.
enum class Mode : std::uint8_t { plain, markup };

/// Whether decoding writes the texts of special tokens.
enum class SpecialText : std::uint8_t { show, skip };

/// A tokenizer of the tiktoken kind. Copies share the tables; const and safe to share between
/// threads. `decode(encode(text)) == text` for any bytes, UTF-8 or not, in both modes.
class Tokenizer {
 public:
  /// The released code cuts its input at every so many characters before anything else, control
  /// tokens included; ill-formed bytes count one each.
  static constexpr std::size_t chunk_characters = 400'000;
  static constexpr std::size_t max_specials = 65'536;
  static constexpr std::size_t max_special_bytes = 256;

  /// Opens a directory. With manifest.json (a container): tokenizer.model, specials.json where
  /// present, eos_token_id of the manifest's config. Otherwise (a source checkpoint):
  /// tiktoken.model or else tokenizer.model, added_tokens_decoder of tokenizer_config.json, and
  /// eos_token_id of config.json (of its text_config first) and of generation_config.json, where
  /// present. Throws Error naming file, field or line, wanted and got.
  static Tokenizer open(const std::filesystem::path& dir);

  /// From memory: `ranks` is the content of a rank file (see RankTable::parse), `file` its name in
  /// messages. Throws Error; a special is refused (bad_field, duplicate, out_of_range) when it has
  /// an empty text, more than max_special_bytes, a text or id of another one, or an id that is a
  /// rank or beyond format::limits::vocabulary.
  explicit Tokenizer(std::string_view ranks, std::vector<Special> specials = {},
                     std::vector<TokenId> eos_ids = {}, std::string_view file = "tokenizer.model");

  std::vector<TokenId> encode(std::string_view text, Mode mode = Mode::plain) const;
  /// Appends to `out`.
  void encode(std::string_view text, Mode mode, std::vector<TokenId>& out) const;

  /// The bytes of `ids`, which need not be UTF-8 as a whole. An id after the ranks that no special
  /// names reads `<|reserved_token_ID|>`. Throws Error (out_of_range) for an id beyond
  /// format::limits::vocabulary.
  std::string decode(std::span<const TokenId> ids, SpecialText specials = SpecialText::show) const;

  const RankTable& ranks() const noexcept;
  std::span<const Special> specials() const noexcept;                    ///< ascending by id
  std::optional<TokenId> special(std::string_view text) const noexcept;  ///< its id
  bool is_special(TokenId id) const noexcept;         ///< not a rank: named, reserved or unknown
  TokenId bos() const noexcept;                       ///< [BOS]: the first id after the ranks
  std::span<const TokenId> eos_ids() const noexcept;  ///< each ends a generation
  bool is_eos(TokenId id) const noexcept;

 private:
  struct Tables;
  std::shared_ptr<const Tables> tables_;
};

/// Decodes one id after another for printing: bytes that may still become one character are held
/// back until they are one, or cannot be. All outputs joined are `decode` of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, SpecialText specials = SpecialText::show)
      : tokenizer_(std::move(tokenizer)), specials_(specials) {}

  /// What may be printed now, possibly nothing.
  std::string push(TokenId id);
  /// What was held back to the end: bytes that are no character.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  SpecialText specials_;
  std::string held_;
};

/// specials.json: `[{"id": int, "text": str}, ...]`; comes back in order. Throws Error naming the
/// element and field.
std::vector<Special> parse_specials(std::string_view json, std::string_view file);
/// `added_tokens_decoder` of a tokenizer_config.json: `{"ID": {"content": str, ...}, ...}`;
/// in order; none where the key is absent. Throws Error.
std::vector<Special> parse_added_tokens(std::string_view json, std::string_view file);
/// The text of a specials.json: in order, indented, ending in a line feed.
std::string dump_specials(std::vector<Special> specials);

}  // namespace waste::text

namespace waste {
using text::Tokenizer;
}  // namespace waste
