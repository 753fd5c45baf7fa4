#include "waste/text/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "waste/format/constants.hpp"
#include "waste/text/pretokenize.hpp"
#include "waste/text/utf8.hpp"

namespace waste::text {
namespace {

/// Finds the earliest special of a text, the longest of several.
class SpecialFinder {
 public:
  struct Found {
    std::size_t at = std::string_view::npos;
    std::size_t bytes = 0;
    TokenId id = 0;
  };

  explicit SpecialFinder(std::span<const Special> specials) {
    for (const Special& s : specials) by_text_.push_back(&s);
    std::sort(by_text_.begin(), by_text_.end(),
              [](const Special* a, const Special* b) { return a->text < b->text; });
    for (const Special* s : by_text_) starts_[static_cast<unsigned char>(s->text[0])] = true;
  }

  const Special* exactly(std::string_view text) const noexcept {
    const auto it =
        std::lower_bound(by_text_.begin(), by_text_.end(), text,
                         [](const Special* s, std::string_view t) { return s->text < t; });
    return it != by_text_.end() && (*it)->text == text ? *it : nullptr;
  }

  Found first(std::string_view text) const noexcept {
    if (by_text_.empty()) return {};
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (!starts_[static_cast<unsigned char>(text[at])]) continue;
      if (const Special* s = longest(text.substr(at))) return {at, s->text.size(), s->id};
    }
    return {};
  }

 private:
  /// The longest special that `text` begins with: the range of specials that share its first
  /// `depth` bytes narrows byte by byte; the one that ends at `depth` comes first in it.
  const Special* longest(std::string_view text) const noexcept {
    const Special* best = nullptr;
    auto low = by_text_.begin();
    auto high = by_text_.end();
    for (std::size_t depth = 0; low != high; ++depth) {
      if ((*low)->text.size() == depth) {
        best = *low;
        ++low;
      }
      if (depth == text.size()) break;
      const auto want = static_cast<unsigned char>(text[depth]);
      const auto byte = [depth](const Special* s) {
        return static_cast<unsigned char>(s->text[depth]);
      };
      low = std::partition_point(low, high, [&](const Special* s) { return byte(s) < want; });
      high = std::partition_point(low, high, [&](const Special* s) { return byte(s) == want; });
    }
    return best;
  }

  std::vector<const Special*> by_text_;  // ascending by bytes
  std::array<bool, 256> starts_{};
};

std::vector<Special> checked(std::vector<Special> specials, std::uint32_t ranks) {
  constexpr std::string_view source = "special tokens";
  if (specials.size() > Tokenizer::max_specials) {
    throw Error(fault(Errc::out_of_range, "count", specials.size(), Tokenizer::max_specials),
                source);
  }
  std::sort(specials.begin(), specials.end());
  for (std::size_t i = 0; i < specials.size(); ++i) {
    const Special& s = specials[i];
    if (s.text.empty()) throw Error(fault(Errc::bad_field, "text"), source, "empty");
    if (s.text.size() > Tokenizer::max_special_bytes) {
      throw Error(
          fault(Errc::out_of_range, "text bytes", s.text.size(), Tokenizer::max_special_bytes),
          source);
    }
    if (s.id < ranks) {
      throw Error(fault(Errc::out_of_range, "id", s.id, ranks), source,
                  "ids of special tokens begin after the ranks");
    }
    if (s.id >= format::limits::vocabulary) {
      throw Error(fault(Errc::out_of_range, "id", s.id, format::limits::vocabulary - 1), source);
    }
    if (i > 0 && specials[i - 1].id == s.id) {
      throw Error(fault(Errc::duplicate, "id"), source, std::to_string(s.id));
    }
  }
  std::vector<std::string_view> texts;
  for (const Special& s : specials) texts.push_back(s.text);
  std::sort(texts.begin(), texts.end());
  const auto twice = std::adjacent_find(texts.begin(), texts.end());
  if (twice != texts.end()) throw Error(fault(Errc::duplicate, "text"), source, *twice);
  return specials;
}

}  // namespace

struct Tokenizer::Tables {
  Tables(RankTable r, std::vector<Special> s, std::vector<TokenId> e)
      : ranks(std::move(r)),
        specials(checked(std::move(s), ranks.size())),
        eos_ids(std::move(e)),
        finder(specials) {}

  RankTable ranks;
  std::vector<Special> specials;  // ascending by id
  std::vector<TokenId> eos_ids;
  SpecialFinder finder;  // points into specials
};

Tokenizer::Tokenizer(std::string_view ranks, std::vector<Special> specials,
                     std::vector<TokenId> eos_ids, std::string_view file)
    : tables_(std::make_shared<const Tables>(RankTable::parse(ranks, file), std::move(specials),
                                             std::move(eos_ids))) {}

std::vector<TokenId> Tokenizer::encode(std::string_view text, Mode mode) const {
  std::vector<TokenId> out;
  encode(text, mode, out);
  return out;
}

void Tokenizer::encode(std::string_view text, Mode mode, std::vector<TokenId>& out) const {
  const Tables& t = *tables_;
  const auto encode_plain = [&](std::string_view part) {
    PieceCursor cursor(part);
    for (auto piece = cursor.next(); !piece.empty(); piece = cursor.next()) {
      t.ranks.encode_piece(piece, out);
    }
  };
  while (!text.empty()) {
    std::string_view chunk = text.substr(0, utf8_prefix_bytes(text, chunk_characters));
    text.remove_prefix(chunk.size());
    while (mode == Mode::markup && !chunk.empty()) {
      const auto found = t.finder.first(chunk);
      if (found.at == std::string_view::npos) break;
      if (found.at > 0) encode_plain(chunk.substr(0, found.at));
      out.push_back(found.id);
      chunk.remove_prefix(found.at + found.bytes);
    }
    if (!chunk.empty()) encode_plain(chunk);
  }
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialText specials) const {
  const Tables& t = *tables_;
  std::string out;
  for (const TokenId id : ids) {
    if (id < t.ranks.size()) {
      out += t.ranks.token(id);
      continue;
    }
    if (id >= format::limits::vocabulary) {
      throw Error(fault(Errc::out_of_range, "token id", id, format::limits::vocabulary - 1));
    }
    if (specials == SpecialText::skip) continue;
    const auto it = std::lower_bound(t.specials.begin(), t.specials.end(), id,
                                     [](const Special& s, TokenId want) { return s.id < want; });
    if (it != t.specials.end() && it->id == id) {
      out += it->text;
    } else {
      out += "<|reserved_token_" + std::to_string(id) + "|>";
    }
  }
  return out;
}

const RankTable& Tokenizer::ranks() const noexcept { return tables_->ranks; }
std::span<const Special> Tokenizer::specials() const noexcept { return tables_->specials; }
std::optional<TokenId> Tokenizer::special(std::string_view text) const noexcept {
  const Special* found = tables_->finder.exactly(text);
  return found == nullptr ? std::optional<TokenId>() : found->id;
}
bool Tokenizer::is_special(TokenId id) const noexcept { return id >= tables_->ranks.size(); }
TokenId Tokenizer::bos() const noexcept { return tables_->ranks.size(); }
std::span<const TokenId> Tokenizer::eos_ids() const noexcept { return tables_->eos_ids; }
bool Tokenizer::is_eos(TokenId id) const noexcept {
  return std::find(tables_->eos_ids.begin(), tables_->eos_ids.end(), id) != tables_->eos_ids.end();
}

std::string StreamDecoder::push(TokenId id) {
  held_ += tokenizer_.decode({&id, 1}, specials_);
  const std::size_t ready = held_.size() - utf8_unfinished(held_);
  std::string out = held_.substr(0, ready);
  held_.erase(0, ready);
  return out;
}

std::string StreamDecoder::finish() { return std::exchange(held_, {}); }

}  // namespace waste::text
