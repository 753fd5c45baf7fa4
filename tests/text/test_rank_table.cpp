#include "text_support.hpp"
#include "waste/text/rank_table.hpp"

using namespace waste;
using namespace waste::test;
using text::RankTable;

namespace {

void refuse(const std::string& text, Errc code, const std::string& says) {
  CAPTURE(text.substr(0, 200));
  const Error e = error_of([&] { (void)RankTable::parse(text, "ranks.model"); });
  CAPTURE(e.what());
  CHECK(to_string(e.code()) == to_string(code));
  CHECK(e.file() == "ranks.model");
  CHECK(std::string(e.what()).find(says) != std::string::npos);
}

/// The rank file of 256 bytes with line `number` (from 1) replaced.
std::string with_line(std::size_t number, const std::string& line) {
  std::string text = rank_file({"ab", "cd"});
  std::size_t begin = 0;
  for (std::size_t i = 1; i < number; ++i) begin = text.find('\n', begin) + 1;
  return text.replace(begin, text.find('\n', begin) - begin, line);
}

}  // namespace

TEST_CASE("a rank file reads back as it was written") {
  const std::vector<std::string> tokens = {"ab", "abc", std::string("\0\0\0", 3), "\xff\xfe",
                                           "longer than eight bytes"};
  std::string text = rank_file(tokens);
  for (const bool final_line_feed : {true, false}) {
    if (!final_line_feed) text.pop_back();
    const auto table = RankTable::parse(text, "ranks.model");
    REQUIRE(table.size() == 256 + tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto id = static_cast<text::TokenId>(256 + i);
      CHECK(table.token(id) == tokens[i]);
      CHECK(table.find(tokens[i]) == id);
    }
    CHECK(table.find("") == RankTable::none);
    CHECK(table.find("xy") == RankTable::none);
    CHECK(table.find("xyz") == RankTable::none);
    CHECK(table.find(std::string(5000, 'x')) == RankTable::none);
  }
}

TEST_CASE("a large vocabulary keeps every token apart") {
  std::vector<std::string> tokens;
  for (int i = 0; i < 60000; ++i) tokens.push_back("tok" + std::to_string(i));
  const auto table = RankTable::parse(rank_file(tokens), "ranks.model");
  bool same = true;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    same = same && table.find(tokens[i]) == 256 + i &&
           table.token(static_cast<text::TokenId>(256 + i)) == tokens[i];
  }
  CHECK(same);
}

TEST_CASE("a damaged rank file is refused by line, wanted and got") {
  refuse("", Errc::missing, "byte 0");
  refuse("\n", Errc::bad_field, "line 1");
  refuse(rank_file() + "\n", Errc::bad_field, "line 257");
  refuse(with_line(3, "Ag==2"), Errc::bad_field, "line 3 is not");
  refuse(with_line(3, ""), Errc::bad_field, "line 3 is not");
  refuse(with_line(3, " 2"), Errc::bad_field, "line 3 holds no canonical base64");
  for (const char* token : {"Ag=", "Ag", "Ag===", "A===", "====", "=Ag=", "A=g=", "Ah==", "A*==",
                            "Ag==Ag==", "Ag=A", "AgAA=", "QUJ=", "\xc3\x84g=="}) {
    refuse(with_line(3, std::string(token) + " 2"), Errc::bad_field,
           "line 3 holds no canonical base64");
  }
  for (const char* rank : {"", "-2", "+2", "02", "2 ", " 2", "2.0", "2e0", "0x2", "two", "2\r",
                           "12345678901", "2 2"}) {
    refuse(with_line(3, "Ag== " + std::string(rank)), Errc::bad_field,
           "line 3 wants a decimal number");
  }
  refuse(with_line(3, "Ag== 3"), Errc::mismatch, "got 3, wanted 2; line 3");
  refuse(with_line(3, "Ag== 1"), Errc::mismatch, "got 1, wanted 2; line 3");
  refuse(with_line(3, "Ag== 4294967298"), Errc::mismatch, "got 4294967298, wanted 2; line 3");
  refuse(with_line(3, "AA== 2"), Errc::duplicate, "line 3 repeats line 1");
  refuse(with_line(258, "YWI= 257"), Errc::duplicate, "line 258 repeats line 257");
  refuse(with_line(66, "QUFB 65"), Errc::missing, "byte 65");
  refuse(rank_file().substr(0, rank_file().find("Qg==")), Errc::missing, "byte 66");
  refuse(std::string(3, '\0') + rank_file(), Errc::bad_field, "line 1");
}

TEST_CASE("sizes of a rank file are bounded") {
  const std::string longest(RankTable::max_token_bytes, 'x');
  CHECK(RankTable::parse(rank_file({longest}), "ranks.model").size() == 257);
  refuse(rank_file({longest + "x"}), Errc::out_of_range, "got 4097, wanted at most 4096; line 257");
  refuse(rank_file() + std::string(6000, 'Q'), Errc::out_of_range,
         "line bytes: out of range, got 6000");
  refuse(std::string(RankTable::max_file_bytes + 1, 'A'), Errc::out_of_range, "size");
}

TEST_CASE("a token that grows byte by byte to the limit stays fast") {
  std::vector<std::string> tokens;
  for (std::size_t n = 2; n <= 1000; ++n) tokens.push_back("x" + std::string(n - 1, 'y'));
  const auto table = RankTable::parse(rank_file(tokens), "ranks.model");
  std::string piece;
  for (int i = 0; i < 300; ++i) piece += "x" + std::string(999, 'y');
  std::vector<text::TokenId> ids;
  table.encode_piece(piece, ids);
  CHECK(ids == std::vector<text::TokenId>(300, 256 + 998));
}

TEST_CASE("random damage to a rank file is an Error or a table, never anything else") {
  const std::string whole = rank_file({"ab", "abc", "abcd"});
  Random random{5};
  std::size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = whole;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
          break;
        default:
          text.resize(at + 1);
      }
    }
    try {
      const auto table = RankTable::parse(text, "ranks.model");
      std::vector<text::TokenId> ids;
      table.encode_piece("abcdabcd", ids);
      std::string back;
      for (const auto id : ids) back += table.token(id);
      REQUIRE(back == "abcdabcd");
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 2000);
}
