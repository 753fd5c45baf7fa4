#include "text_support.hpp"
#include "waste/text/pretokenize.hpp"
#include "waste/text/utf8.hpp"

using namespace waste;
using namespace waste::test;
using text::Mode;
using text::TokenId;
using Ids = std::vector<TokenId>;

namespace {

std::vector<std::uint32_t> piece_bytes(std::string_view text) {
  std::vector<std::uint32_t> out;
  for (const auto piece : text::pretokenize(text)) {
    out.push_back(static_cast<std::uint32_t>(piece.size()));
  }
  return out;
}

std::vector<text::Special> specials_of(const nlohmann::json& golden, TokenId first) {
  std::vector<text::Special> out;
  for (const auto& text : golden.at("specials")) out.push_back({first++, text.get<std::string>()});
  return out;
}

Tokenizer with_specials(const nlohmann::json& golden) {
  const std::string ranks = multi_ranks();
  const auto first = Tokenizer(ranks).ranks().size();
  return Tokenizer(ranks, specials_of(golden, first));
}

/// Every byte of a piece alone, merged by trying all pairs again and again.
Ids merge_slowly(const text::RankTable& ranks, std::string_view piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  if (ranks.find(piece) != text::RankTable::none) return {ranks.find(piece)};
  for (;;) {
    TokenId best = text::RankTable::none;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const TokenId id = ranks.find(parts[i] + parts[i + 1]);
      if (id < best) best = id, at = i;
    }
    if (best == text::RankTable::none) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<long>(at) + 1);
  }
  Ids out;
  for (const auto& part : parts) out.push_back(ranks.find(part));
  return out;
}

std::string random_bytes(Random& random, std::size_t most) {
  static const std::string common = " \n\r\t'sStT1aA\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xcc\x81";
  std::string out;
  for (std::size_t n = random() % (most + 1); n > 0; --n) {
    out += random() % 2 == 0 ? common[random() % common.size()] : static_cast<char>(random());
  }
  return out;
}

}  // namespace

TEST_CASE("pieces and ids equal tiktoken's on texts of fifty scripts") {
  const auto golden = tokenizer_golden("strings.json");
  const std::string tiny_text = tiny_ranks();
  INFO("when the example's rank file is made anew, make_tokenizer_goldens.py must run again");
  REQUIRE(crc_of(tiny_text) == golden.at("tiny_crc32").get<std::uint32_t>());
  REQUIRE(crc_of(multi_ranks()) == golden.at("multi_crc32").get<std::uint32_t>());
  const Tokenizer tiny(tiny_text), multi(multi_ranks());
  REQUIRE(golden.at("strings").size() >= 400);
  for (const auto& entry : golden.at("strings")) {
    const auto text = entry.at("text").get<std::string>();
    CAPTURE(entry.at("name").get<std::string>(), text);
    CHECK(piece_bytes(text) == entry.at("pieces").get<std::vector<std::uint32_t>>());
    CHECK(tiny.encode(text) == entry.at("tiny").get<Ids>());
    CHECK(multi.encode(text) == entry.at("multi").get<Ids>());
    CHECK(tiny.decode(tiny.encode(text)) == text);
    CHECK(multi.decode(multi.encode(text)) == text);
  }
}

TEST_CASE("pieces and ids equal tiktoken's on ten thousand random texts") {
  const auto golden = tokenizer_golden("random.json");
  std::vector<std::string> alphabet;
  const auto all = golden.at("alphabet").get<std::string>();
  for (std::size_t at = 0; at < all.size();) {
    const auto step = text::utf8_step(all, at);
    alphabet.push_back(all.substr(at, step.bytes));
    at += step.bytes;
  }
  const Tokenizer tiny(tiny_ranks()), multi(multi_ranks());
  std::uint64_t seed = 0;
  for (const auto& wanted : golden.at("crc32_of_pieces_tiny_multi")) {
    CAPTURE(seed);
    Random random{seed++};
    std::vector<std::uint32_t> cut, ids_tiny, ids_multi;
    for (auto n = golden.at("each").get<int>(); n > 0; --n) {
      std::string text, last;
      for (std::uint64_t left = 1 + random() % 24; left > 0; --left) {
        if (last.empty() || random() % 4 != 0) last = alphabet[random() % alphabet.size()];
        text += last;
      }
      const auto bytes = piece_bytes(text);
      cut.insert(cut.end(), bytes.begin(), bytes.end());
      tiny.encode(text, Mode::plain, ids_tiny);
      multi.encode(text, Mode::plain, ids_multi);
    }
    CHECK(crc_of(cut) == wanted.at(0).get<std::uint32_t>());
    CHECK(crc_of(ids_tiny) == wanted.at(1).get<std::uint32_t>());
    CHECK(crc_of(ids_multi) == wanted.at(2).get<std::uint32_t>());
  }
}

TEST_CASE("every code point falls into the classes that tiktoken's engine gives it") {
  // A character is told from its neighbours in five texts; what a class answers is written down
  // here from the pattern alone.
  const auto golden = tokenizer_golden("classes.json");
  std::map<std::string, std::vector<bool>> is;
  for (const char* name : {"han", "upper", "lower", "letter", "number", "space"}) {
    auto& member = is[name];
    member.assign(0x110000, false);
    const auto ranges = golden.at(name).get<std::vector<std::uint32_t>>();
    REQUIRE(ranges.size() % 2 == 0);
    for (std::size_t i = 0; i < ranges.size(); i += 2) {
      std::fill(member.begin() + ranges[i], member.begin() + ranges[i + 1] + 1, true);
    }
  }
  std::size_t wrong = 0;
  std::uint32_t first_wrong = 0;
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    if (c == 0x33000) c = 0xe0000;  // nothing is assigned between
    if (c > 0xe0200 && c % 251 != 0) continue;
    const std::string s = utf8(c);
    const auto bytes = static_cast<std::uint32_t>(s.size());
    const bool upper = is["upper"][c], lower = is["lower"][c], han = is["han"][c];
    const bool number = is["number"][c], space = is["space"][c], letter = is["letter"][c];
    const bool line = c == '\n' || c == '\r';
    using Cut = std::vector<std::uint32_t>;
    // After "a", which only a lower-case class continues; before "a", which goes on after any class
    // that can lead or be upper case.
    Cut after = lower ? Cut{1 + bytes} : Cut{1, bytes};
    Cut before = Cut{bytes, 1};
    if (lower || upper) before = {bytes + 1};
    if (!line && !letter && !number && !han) before = {bytes + 1};
    if (han && !letter && !number) before = {bytes, 1};
    // Between digits: only a number joins them.
    Cut digits = number && !han ? Cut{2 + bytes} : Cut{1, bytes, 1};
    if (han && number) digits = {2 + bytes};
    if (letter && !han) digits = {1, bytes, 1};
    // Behind a Han character: only another one joins it.
    Cut behind_han = han ? Cut{3 + bytes} : Cut{3, bytes};
    // Spaces before a line feed join it; other things do not.
    Cut before_line = space ? Cut{bytes + 1} : Cut{bytes, 1};
    if (!space && !letter && !number && !upper && !lower && !han) before_line = {bytes + 1};
    const bool good = piece_bytes("a" + s) == after && piece_bytes(s + "a") == before &&
                      piece_bytes("1" + s + "2") == digits &&
                      piece_bytes("\xe4\xb8\xad" + s) == behind_han &&
                      piece_bytes(s + "\n") == before_line;
    if (!good && wrong++ == 0) first_wrong = c;
  }
  CAPTURE(first_wrong);
  CHECK(wrong == 0);
}

TEST_CASE("texts beyond the cut at 400,000 characters equal tiktoken's, in linear time") {
  const auto golden = tokenizer_golden("long.json");
  const Tokenizer multi = with_specials(golden);
  for (const auto& entry : golden.at("texts")) {
    const auto unit = entry.at("unit").get<std::string>();
    CAPTURE(unit);
    std::string text;
    for (auto n = entry.at("times").get<std::size_t>(); n > 0; --n) text += unit;
    const Ids ids = multi.encode(text, Mode::markup);
    CHECK(ids.size() == entry.at("count").get<std::size_t>());
    CHECK(crc_of(ids) == entry.at("crc32").get<std::uint32_t>());
    CHECK(multi.decode(ids) == text);
  }
}

TEST_CASE("markup mode yields control tokens, plain mode never does") {
  const auto golden = tokenizer_golden("markup.json");
  const Tokenizer multi = with_specials(golden);
  const TokenId first = multi.bos();
  for (const auto& entry : golden.at("texts")) {
    const auto text = entry.at("text").get<std::string>();
    CAPTURE(text);
    const Ids plain = multi.encode(text, Mode::plain);
    const Ids markup = multi.encode(text, Mode::markup);
    CHECK(plain == entry.at("plain").get<Ids>());
    CHECK(markup == entry.at("markup").get<Ids>());
    CHECK(std::all_of(plain.begin(), plain.end(), [&](TokenId id) { return id < first; }));
    CHECK(multi.decode(plain) == text);
    CHECK(multi.decode(markup) == text);
  }
}

TEST_CASE("the earliest special wins, the longest of those that start together") {
  const Tokenizer t(rank_file(), {{300, "ab"},
                                  {301, "abcd"},
                                  {302, "bcde"},
                                  {303, "x"},
                                  {304, "xx"},
                                  {305, "xxy"},
                                  {306, "\xff\xfe"}});
  const auto encode = [&](std::string_view text) { return t.encode(text, Mode::markup); };
  CHECK(encode("abcde") == Ids{301, 'e'});
  CHECK(encode("abcx") == Ids{300, 'c', 303});
  CHECK(encode("abc") == Ids{300, 'c'});
  CHECK(encode("bcde") == Ids{302});
  CHECK(encode("bcd") == Ids{'b', 'c', 'd'});
  CHECK(encode("xxx") == Ids{304, 303});
  CHECK(encode("xxxy") == Ids{304, 303, 'y'});
  CHECK(encode("xxy") == Ids{305});
  CHECK(encode("a\xff\xfe") == Ids{'a', 306});
  CHECK(encode("\xff") == Ids{0xff});
  CHECK(t.special("abcd") == TokenId{301});
  CHECK_FALSE(t.special("abc").has_value());
  CHECK_FALSE(t.special("").has_value());
}

TEST_CASE("any bytes survive encoding and decoding, in both modes and streamed") {
  const auto golden = tokenizer_golden("markup.json");
  const Tokenizer multi = with_specials(golden), tiny(tiny_ranks());
  Random random{7};
  for (int round = 0; round < 4000; ++round) {
    const std::string bytes = random_bytes(random, 200);
    CAPTURE(round, bytes);
    const Ids plain = multi.encode(bytes), markup = multi.encode(bytes, Mode::markup);
    REQUIRE(multi.decode(plain) == bytes);
    REQUIRE(multi.decode(markup) == bytes);
    REQUIRE(tiny.decode(tiny.encode(bytes)) == bytes);
    std::vector<bool> inside(bytes.size() + 1, false);  // a well-formed character
    for (std::size_t at = 0; at < bytes.size();) {
      const auto step = text::utf8_step(bytes, at);
      for (std::size_t i = 1; i < step.bytes; ++i) inside[at + i] = true;
      at += step.bytes;
    }
    std::string joined;
    text::StreamDecoder stream(multi);
    std::size_t decoded = 0;
    for (const TokenId id : plain) {
      joined += stream.push(id);
      decoded += multi.ranks().token(id).size();
      REQUIRE_FALSE(inside[joined.size()]);
      REQUIRE(decoded - joined.size() <= 3);
    }
    REQUIRE(joined + stream.finish() == bytes);
    std::string pieces;
    for (const auto piece : text::pretokenize(bytes)) pieces += piece;
    REQUIRE(pieces == bytes);
  }
}

TEST_CASE("ill-formed bytes are cut as U+FFFD is, each on its own") {
  const std::string replacement = "\xef\xbf\xbd";
  Random random{11};
  for (int round = 0; round < 2000; ++round) {
    // Lone surrogates, overlong forms, stray continuations, cut-off characters, 0xFE, 0xFF.
    static const std::vector<std::string> bad = {
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xc0\x80", "\xe0\x80\x80", "\xf4\x90\x80\x80",
        "\x80",         "\xbf",         "\xfe",     "\xff",         "\xf8",
        "\xc1"};
    static const std::vector<std::string> good = {
        "a", "A", " ", "\n", "'s", "1", "\xe4\xb8\xad", "\xcc\x81", "!"};
    std::string text, replaced;
    std::vector<std::size_t>
        origin;  // for each byte of `replaced`, the byte of `text` it stands for
    for (std::uint64_t n = 1 + random() % 8; n > 0; --n) {
      if (random() % 2 == 0) {
        for (const char c : bad[random() % bad.size()]) {
          origin.insert(origin.end(), 3, text.size());
          text += c, replaced += replacement;
        }
      } else {
        for (const char c : good[random() % good.size()]) {
          origin.push_back(text.size());
          text += c, replaced += c;
        }
      }
    }
    std::vector<std::uint32_t> wanted;
    std::size_t at = 0;
    for (const auto n : piece_bytes(replaced)) {
      const std::size_t end = at + n == replaced.size() ? text.size() : origin[at + n];
      wanted.push_back(static_cast<std::uint32_t>(end - origin[at]));
      at += n;
    }
    CAPTURE(round, text);
    REQUIRE(piece_bytes(text) == wanted);
  }
}

TEST_CASE("short and long pieces are merged alike, the leftmost lowest pair first") {
  Random random{3};
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens;
    for (int n = 0; n < 40; ++n) {  // of two letters, so that many pairs overlap
      std::string token;
      for (std::uint64_t length = 2 + random() % 6; length > 0; --length)
        token += "ab"[random() % 2];
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    }
    const auto ranks = text::RankTable::parse(rank_file(tokens), "ranks");
    for (const std::size_t bytes : {1, 2, 3, 7, 31, 63, 64, 65, 66, 129, 300}) {
      std::string piece;
      while (piece.size() < bytes) piece += "ab"[random() % 2];
      Ids got;
      ranks.encode_piece(piece, got);
      CAPTURE(round, piece);
      REQUIRE(got == merge_slowly(ranks, piece));
    }
  }
}

TEST_CASE("cuts that the pattern alone decides") {
  using Pieces = std::vector<std::string_view>;
  CHECK(text::pretokenize("") == Pieces{});
  CHECK(text::pretokenize("getHTTPResponse's 1234  x\n\n ") ==
        Pieces{"get", "HTTPResponse's", " ", "123", "4", " ", " x", "\n\n", " "});
  CHECK(text::pretokenize("it'\xc5\xbfx") == Pieces{"it'\xc5\xbf", "x"});  // long s is an s
  CHECK(text::pretokenize("a\xe1\xa0\x8e") == Pieces{"a", "\xe1\xa0\x8e"});
}
