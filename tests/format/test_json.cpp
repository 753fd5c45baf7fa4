// Strict JSON: what is read, what is refused and where, and what is written.
#include <fstream>
#include <limits>
#include <string>

#include "support/catch.hpp"
#include "waste/format/json.hpp"

namespace {

using waste::Errc;
using waste::Error;
using waste::JsonLimits;
using waste::JsonValue;
using waste::parse_json;

struct Refused {
  std::string field;
  std::string message;
};

Refused refused(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "some.json", limits);
  } catch (const Error& e) {
    CHECK(e.code() == Errc::bad_json);
    CHECK(e.file() == "some.json");
    return {e.fault().field, e.what()};
  }
  return {"accepted", ""};
}

TEST_CASE("every kind of value is read exactly", "[json]") {
  const JsonValue v = parse_json(
      R"( {"z": null, "a": [true, false, 0, -1, 18446744073709551615, -9223372036854775808, 1.5e3],
          "s": "a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é", "o": {}, "l": []} )",
      "x");
  REQUIRE(v.is_object());
  const auto& o = *v.as_object();
  REQUIRE(o.size() == 5);
  CHECK(o[0].first == "z");
  CHECK(o[1].first == "a");
  CHECK(v.find("z")->is_null());
  CHECK(v.find("absent") == nullptr);
  const auto& a = *v.find("a")->as_array();
  REQUIRE(a.size() == 7);
  CHECK(*a[0].as_bool());
  CHECK_FALSE(*a[1].as_bool());
  CHECK(*a[2].as_unsigned() == 0);
  CHECK(*a[3].as_negative() == -1);
  CHECK(*a[4].as_unsigned() == std::numeric_limits<std::uint64_t>::max());
  CHECK(*a[5].as_negative() == std::numeric_limits<std::int64_t>::min());
  CHECK(*a[6].as_double() == 1500.0);
  CHECK_FALSE(a[6].is_unsigned());
  CHECK(*v.find("s")->as_string() == "a\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80\xc3\xa9");
  CHECK(v.find("o")->as_object()->empty());
  CHECK(v.find("l")->as_array()->empty());
}

TEST_CASE("integers beyond 64 bits are floats, so that no integer field takes them", "[json]") {
  CHECK(parse_json("18446744073709551616", "x").as_double() != nullptr);
  CHECK(parse_json("-9223372036854775809", "x").as_double() != nullptr);
  CHECK(parse_json("1.0", "x").as_unsigned() == nullptr);
  CHECK(parse_json("1e0", "x").as_unsigned() == nullptr);
}

TEST_CASE("what is not strict JSON is refused by name", "[json]") {
  const struct {
    const char* text;
    const char* field;
  } cases[] = {
      {"", "syntax"},
      {" ", "syntax"},
      {"{", "syntax"},
      {"[1,]", "syntax"},
      {"{\"a\":1,}", "syntax"},
      {"[1 2]", "syntax"},
      {"{\"a\" 1}", "syntax"},
      {"{a:1}", "syntax"},
      {"'a'", "syntax"},
      {"NaN", "syntax"},
      {"Infinity", "syntax"},
      {"-Infinity", "syntax"},
      {"nul", "syntax"},
      {"True", "syntax"},
      {"01", "trailing bytes"},
      {"+1", "syntax"},
      {".5", "syntax"},
      {"1.", "syntax"},
      {"0x10", "trailing bytes"},
      {"12abc", "trailing bytes"},
      {"1e", "syntax"},
      {"// c\n1", "syntax"},
      {"/* c */1", "syntax"},
      {"\"a", "syntax"},
      {"\"\t\"", "syntax"},
      {"\"\\x41\"", "syntax"},
      {"\"\\ud800\"", "syntax"},
      {"\"\\udc00\"", "syntax"},
      {"\"\\ud800\\u0041\"", "syntax"},
      {"{} x", "trailing bytes"},
      {"{}{}", "trailing bytes"},
      {"{}]", "trailing bytes"},
      {"1e999", "number"},
      {"[-1e999]", "number"},
      {"\xef\xbb\xbf{}", "byte-order mark"},
      {"\xff\xfe{}", "UTF-8"},
      {"\"\xc0\x80\"", "UTF-8"},          // overlong NUL
      {"\"\xe0\x80\x80\"", "UTF-8"},      // overlong
      {"\"\xed\xa0\x80\"", "UTF-8"},      // surrogate
      {"\"\xf4\x90\x80\x80\"", "UTF-8"},  // above U+10FFFF
      {"\"\xe2\x82\"", "UTF-8"},          // cut
      {"\"\x80\"", "UTF-8"},
      {"{\"a\":1,\"a\":1}", "duplicate key"},
      {"{\"a\":1,\"b\":{\"c\":0,\"d\":0,\"c\":1}}", "duplicate key"},
      {"{\"a\":1,\"\\u0061\":2}", "duplicate key"},
  };
  for (const auto& c : cases) {
    INFO(c.text);
    CHECK(refused(c.text).field == c.field);
  }
  CHECK(refused(std::string("{}\0", 3)).field == "NUL byte");
  CHECK(refused(std::string("{}\0{}", 5)).field == "NUL byte");
}

TEST_CASE("messages name file, place and reason", "[json]") {
  // What follows the place is the reader's own wording.
  CHECK_THAT(refused("{\n  \"a\": 1,\n  \"b\": nope\n}").message,
             Catch::Matchers::StartsWith("some.json: syntax: not valid JSON; line 3, column 9: "));
  CHECK(refused("{}\n!").message == "some.json: trailing bytes: not valid JSON; line 2, column 1");
  CHECK(refused("[1,\n1e400]").message ==
        "some.json: number: not valid JSON; line 2, column 5: too large for a 64-bit float");
  CHECK(refused("[\"a\",\n\"\xff\"]").message ==
        "some.json: UTF-8: not valid JSON; line 2, column 2");
  CHECK(refused("{\"k\":1,\n\"k\":2}").message ==
        "some.json: duplicate key: not valid JSON; line 2, column 6: \"k\" in the object ending "
        "here");
}

TEST_CASE("limits hold exactly", "[json]") {
  JsonLimits limits;
  limits.depth = 3;
  CHECK(refused("[[[]]]", limits).field == "accepted");
  CHECK(refused("[[[[]]]]", limits).field == "depth");
  CHECK(refused("[[{\"a\":{}}]]", limits).field == "depth");
  limits = {};
  limits.values = 4;
  CHECK(refused("[1,2,3]", limits).field == "accepted");
  CHECK(refused("[1,2,3,4]", limits).field == "number of values");
  CHECK(refused("[[],[],[],[]]", limits).field == "number of values");
  limits = {};
  limits.bytes = 4;
  CHECK(refused("[10]", limits).field == "accepted");
  CHECK(refused("[100]", limits).field == "size");
  limits = {};
  limits.string_bytes = 3;
  CHECK(refused("[\"abc\"]", limits).field == "accepted");
  CHECK(refused("[\"abcd\"]", limits).field == "string length");
  CHECK(refused("{\"abcd\":1}", limits).field == "string length");
  // Depth is bounded before the stack is, whatever the nesting.
  CHECK(refused(std::string(1000000, '[')).field == "depth");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  CHECK(refused(objects).field == "depth");
}

TEST_CASE("a message stays short whatever the file holds", "[json]") {
  const auto r = refused("\"" + std::string(1 << 20, 'x'));
  CHECK(r.field == "syntax");
  CHECK(r.message.size() < 300);
}

TEST_CASE("dump writes ASCII in key order", "[json]") {
  JsonValue v;
  v.set("b", 1);
  v.set("a", JsonValue::Array{JsonValue(true), JsonValue(), JsonValue(-5.0),
                              JsonValue("x\n\"\\\x01\x7f")});
  v.set("e", JsonValue::Object{});
  v.set("l", JsonValue::Array{});
  v.set("u", "\xc3\xa9\xf0\x9f\x98\x80");
  v.set("b", 2);
  CHECK(
      waste::dump_json(v) ==
      R"({"b":2,"a":[true,null,-5.0,"x\n\"\\\u0001\u007f"],"e":{},"l":[],"u":"\u00e9\ud83d\ude00"})");
  CHECK(
      waste::dump_json(v, 1) ==
      "{\n \"b\": 2,\n \"a\": [\n  true,\n  null,\n  -5.0,\n  \"x\\n\\\"\\\\\\u0001\\u007f\"\n ],\n"
      " \"e\": {},\n \"l\": [],\n \"u\": \"\\u00e9\\ud83d\\ude00\"\n}");
}

TEST_CASE("numbers are written as Python writes them and read back equal", "[json]") {
  const struct {
    double value;
    const char* text;
  } cases[] = {{1e-5, "1e-05"},
               {0.0001, "0.0001"},
               {2.446, "2.446"},
               {-5.0, "-5.0"},
               {1e15, "1000000000000000.0"},
               {1e16, "1e+16"},
               {1.5e300, "1.5e+300"},
               {0.1, "0.1"},
               {5e-324, "5e-324"},
               {-0.0, "-0.0"},
               {1.1920928955078125e-07, "1.1920928955078125e-07"}};
  for (const auto& c : cases) {
    CHECK(waste::dump_json(JsonValue(c.value)) == c.text);
    CHECK(parse_json(c.text, "x") == JsonValue(c.value));
  }
  CHECK(waste::dump_json(JsonValue(std::uint64_t{18446744073709551615u})) ==
        "18446744073709551615");
  CHECK(waste::dump_json(JsonValue(std::numeric_limits<std::int64_t>::min())) ==
        "-9223372036854775808");
}

TEST_CASE("dump refuses what JSON cannot say", "[json]") {
  const auto code = [](const JsonValue& v) {
    try {
      waste::dump_json(v);
    } catch (const Error& e) {
      return e.code();
    }
    return Errc::ok;
  };
  CHECK(code(JsonValue(std::numeric_limits<double>::infinity())) == Errc::bad_argument);
  CHECK(code(JsonValue(std::numeric_limits<double>::quiet_NaN())) == Errc::bad_argument);
  CHECK(code(JsonValue("\xff")) == Errc::bad_argument);
  CHECK(code(JsonValue("\xed\xa0\x80")) == Errc::bad_argument);
  JsonValue deep(1);
  for (int i = 0; i < 1000; ++i) {
    JsonValue outer = JsonValue::Array{};
    outer.push_back(std::move(deep));
    deep = std::move(outer);
  }
  CHECK(code(deep) == Errc::bad_argument);
}

}  // namespace
