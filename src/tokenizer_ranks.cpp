#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <utility>

#include "waste/text/rank_table.hpp"

namespace waste::text {
namespace {

__extension__ using Wide = unsigned __int128;

std::uint64_t fold(std::uint64_t a, std::uint64_t b) noexcept {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

/// A hash keyed by a secret of the process, so that no file can be made to collide. It decides
/// nothing but where a token is kept.
std::uint64_t hash(std::string_view bytes, std::uint64_t seed) noexcept {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15u;
  std::uint64_t h = seed ^ (bytes.size() * odd);
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    h = fold(h ^ word, odd ^ (seed << 1));
    bytes.remove_prefix(8);
  }
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  return fold(h ^ word, seed | 1);
}

std::uint64_t process_seed() {
  static const std::uint64_t seed = [] {
    std::random_device device;
    return (static_cast<std::uint64_t>(device()) << 32 | device()) | 1;
  }();
  return seed;
}

int base64_digit(char c) noexcept {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

/// Canonical base64 only: padded to fours, unused bits zero.
bool decode_base64(std::string_view text, std::string& out) {
  out.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    std::size_t digits = 4;
    while (last && digits > 2 && text[i + digits - 1] == '=') --digits;
    std::uint32_t bits = 0;
    for (std::size_t d = 0; d < 4; ++d) {
      const int digit = d < digits ? base64_digit(text[i + d]) : 0;
      if (digit < 0) return false;
      bits = bits << 6 | static_cast<std::uint32_t>(digit);
    }
    const std::uint32_t unused = digits == 4 ? 0 : digits == 3 ? 0xffu : 0xffffu;
    if ((bits & unused) != 0) return false;
    for (std::size_t b = 0; b + 1 < digits; ++b) {
      out.push_back(static_cast<char>(bits >> (16 - 8 * b) & 0xff));
    }
  }
  return true;
}

/// A decimal number as the format writes it: digits, no sign, no leading zero, at most ten.
std::optional<std::uint64_t> decimal(std::string_view text) noexcept {
  if (text.empty() || text.size() > 10 || (text.size() > 1 && text[0] == '0')) return {};
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return {};
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

std::string at_line(std::size_t tokens) { return "line " + std::to_string(tokens + 1); }

std::size_t byte_of(char c) noexcept { return static_cast<unsigned char>(c); }

}  // namespace

RankTable RankTable::parse(std::string_view text, std::string_view file) {
  if (text.size() > max_file_bytes) {
    throw Error(fault(Errc::out_of_range, "size", text.size(), max_file_bytes), file);
  }
  RankTable table;
  table.seed_ = process_seed();
  table.slots_.assign(1024, none);
  table.byte_pairs_.assign(65536, none);
  table.single_.fill(none);
  constexpr std::size_t max_line = (max_token_bytes + 2) / 3 * 4 + 1 + 10;
  std::string token;
  while (!text.empty()) {
    const std::size_t tokens = table.size();
    if (tokens == max_tokens) {
      throw Error(fault(Errc::out_of_range, "tokens", tokens + 1, max_tokens), file);
    }
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > max_line) {
      throw Error(fault(Errc::out_of_range, "line bytes", end, max_line), file, at_line(tokens));
    }
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) {
      throw Error(fault(Errc::bad_field, "line"), file,
                  at_line(tokens) + " is not `base64 SP rank`");
    }
    if (!decode_base64(line.substr(0, space), token)) {
      throw Error(fault(Errc::bad_field, "token"), file,
                  at_line(tokens) + " holds no canonical base64");
    }
    if (token.size() > max_token_bytes) {
      throw Error(fault(Errc::out_of_range, "token bytes", token.size(), max_token_bytes), file,
                  at_line(tokens));
    }
    const auto rank = decimal(line.substr(space + 1));
    if (!rank) {
      throw Error(fault(Errc::bad_field, "rank"), file,
                  at_line(tokens) + " wants a decimal number after the space");
    }
    if (*rank != tokens)
      throw Error(fault(Errc::mismatch, "rank", *rank, tokens), file, at_line(tokens));
    table.add(token, file);
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (table.single_[byte] == none) {
      throw Error(fault(Errc::missing, "token of a single byte"), file,
                  "byte " + std::to_string(byte) + " could not be encoded");
    }
  }
  return table;
}

void RankTable::add(std::string_view token, std::string_view file) {
  const TokenId id = size();
  if (2 * (std::size_t{id} + 1) > slots_.size()) grow();
  const std::size_t slot = slot_of(token);
  if (slots_[slot] != none) {
    throw Error(fault(Errc::duplicate, "token"), file,
                at_line(id) + " repeats " + at_line(slots_[slot]));
  }
  slots_[slot] = id;
  bytes_ += token;
  ends_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  longest_ = std::max(longest_, token.size());
  if (token.size() == 1) single_[byte_of(token[0])] = id;
  if (token.size() == 2) byte_pairs_[256 * byte_of(token[0]) + byte_of(token[1])] = id;
}

std::size_t RankTable::slot_of(std::string_view bytes) const noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash(bytes, seed_) & mask;
  while (slots_[slot] != none && token(slots_[slot]) != bytes) slot = (slot + 1) & mask;
  return slot;
}

void RankTable::grow() {
  slots_.assign(2 * slots_.size(), none);
  for (TokenId id = 0; id < size(); ++id) slots_[slot_of(token(id))] = id;
}

TokenId RankTable::find(std::string_view bytes) const noexcept {
  if (bytes.size() <= 2) {
    if (bytes.size() == 2) return byte_pairs_[256 * byte_of(bytes[0]) + byte_of(bytes[1])];
    return bytes.empty() ? none : single_[byte_of(bytes[0])];
  }
  return bytes.size() > longest_ ? none : slots_[slot_of(bytes)];
}

void RankTable::encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  if (piece.size() >= 0xffffffffu) throw Error(fault(Errc::bad_argument, "piece bytes"));
  if (const TokenId whole = find(piece); whole != none) {
    out.push_back(whole);
  } else if (piece.size() <= 64) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out);
  }
}

// A few parts: a scan for the least rank beats a heap.
void RankTable::merge_short(std::string_view piece, std::vector<TokenId>& out) const {
  std::array<std::uint8_t, 65> begin;  // of each part, and the end of the last
  std::array<TokenId, 64> joined;      // of each part with the one after it
  std::size_t parts = piece.size();
  for (std::size_t i = 0; i <= parts; ++i) begin[i] = static_cast<std::uint8_t>(i);
  const auto join = [&](std::size_t i) {
    return i + 1 < parts ? find(piece.substr(begin[i], begin[i + 2] - begin[i])) : none;
  };
  for (std::size_t i = 0; i < parts; ++i) joined[i] = join(i);
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < parts; ++i) {
      if (joined[i] < joined[best]) best = i;
    }
    if (joined[best] == none) break;
    for (std::size_t i = best + 1; i < parts; ++i) {
      begin[i] = begin[i + 1];
      if (i + 1 < parts) joined[i] = joined[i + 1];
    }
    --parts;
    joined[best] = join(best);
    if (best > 0) joined[best - 1] = join(best - 1);
  }
  for (std::size_t i = 0; i < parts; ++i) {
    out.push_back(find(piece.substr(begin[i], begin[i + 1] - begin[i])));
  }
}

// Many parts: a list of them, and a heap of joins. A join whose parts have changed since it was
// queued has another rank by now and is passed over.
void RankTable::merge_long(std::string_view piece, std::vector<TokenId>& out) const {
  struct Part {
    std::uint32_t previous, next;  // where those parts begin; piece.size() after the last
    TokenId joined;                // with the next part
  };
  const auto size = static_cast<std::uint32_t>(piece.size());
  std::vector<Part> parts(piece.size() + 1);
  const auto join = [&](std::uint32_t i) {
    const std::uint32_t next = parts[i].next;
    return next < size ? find(piece.substr(i, parts[next].next - i)) : none;
  };
  using Join = std::pair<TokenId, std::uint32_t>;  // rank, where it begins: the leftmost of equals
  std::vector<Join> queued;
  queued.reserve(piece.size());
  for (std::uint32_t i = 0; i < size; ++i) parts[i] = {i - 1, i + 1, none};
  for (std::uint32_t i = 0; i < size; ++i) {
    parts[i].joined = join(i);
    if (parts[i].joined != none) queued.emplace_back(parts[i].joined, i);
  }
  std::priority_queue<Join, std::vector<Join>, std::greater<>> heap({}, std::move(queued));
  while (!heap.empty()) {
    const auto [rank, i] = heap.top();
    heap.pop();
    if (parts[i].joined != rank) continue;
    const std::uint32_t gone = parts[i].next;
    parts[i].next = parts[gone].next;
    parts[gone].joined = none;
    if (parts[i].next < size) parts[parts[i].next].previous = i;
    const auto requeue = [&](std::uint32_t at) {
      parts[at].joined = join(at);
      if (parts[at].joined != none) heap.emplace(parts[at].joined, at);
    };
    requeue(i);
    if (i > 0) requeue(parts[i].previous);
  }
  for (std::uint32_t i = 0; i < size; i = parts[i].next) {
    out.push_back(find(piece.substr(i, parts[i].next - i)));
  }
}

}  // namespace waste::text
