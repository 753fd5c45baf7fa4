#include <algorithm>

#include "text_support.hpp"

using namespace waste;
using namespace waste::test;
using Ids = std::vector<text::TokenId>;

namespace {

void refuse_specials(const std::string& json, Errc code, const std::string& says) {
  CAPTURE(json);
  const Error e = error_of([&] { (void)text::parse_specials(json, "specials.json"); });
  CAPTURE(e.what());
  CHECK(to_string(e.code()) == to_string(code));
  CHECK(std::string(e.what()).find(says) != std::string::npos);
}

void refuse_added(const std::string& json, Errc code, const std::string& says) {
  CAPTURE(json);
  const Error e = error_of([&] { (void)text::parse_added_tokens(json, "tokenizer_config.json"); });
  CAPTURE(e.what());
  CHECK(to_string(e.code()) == to_string(code));
  CHECK(std::string(e.what()).find(says) != std::string::npos);
}

void refuse_table(std::vector<text::Special> specials, Errc code, const std::string& says) {
  const Error e = error_of([&] { (void)Tokenizer(rank_file(), std::move(specials)); });
  CAPTURE(e.what());
  CHECK(to_string(e.code()) == to_string(code));
  CHECK(std::string(e.what()).find(says) != std::string::npos);
}

}  // namespace

TEST_CASE("a container directory opens: ranks, specials, eos of the manifest's config") {
  const auto dir = scratch_dir("container");
  write_file(dir / "manifest.json",
             R"({"format_version":0,"config":{"eos_token_id":[258,257,258]}})");
  write_file(dir / "tokenizer.model", rank_file());
  const auto bare = Tokenizer::open(dir);
  CHECK(bare.specials().empty());
  write_file(dir / "specials.json",
             "[{\"id\":258,\"text\":\"<|end|>\"},{\"id\":256,\"text\":\"[B\\u00d6S]\"}]");
  const auto t = Tokenizer::open(dir);
  CHECK(t.bos() == 256);
  CHECK(Ids(t.eos_ids().begin(), t.eos_ids().end()) == Ids{258, 257});
  CHECK(t.is_eos(257));
  CHECK_FALSE(t.is_eos(256));
  REQUIRE(t.specials().size() == 2);
  CHECK(t.specials()[0] == text::Special{256, "[B\xc3\x96S]"});
  CHECK(t.encode("[B\xc3\x96S]a<|end|>", text::Mode::markup) == Ids{256, 'a', 258});
  CHECK(t.decode(Ids{256, 'a', 257, 258}) == "[B\xc3\x96S]a<|reserved_token_257|><|end|>");
  CHECK(t.decode(Ids{256, 'a', 257, 258}, text::SpecialText::skip) == "a");
  CHECK(t.is_special(257));
  CHECK_FALSE(t.is_special(255));
  CHECK(error_of([&] { (void)t.decode(Ids{1u << 24}); }).code() == Errc::out_of_range);
}

TEST_CASE("a checkpoint directory opens: tiktoken.model, added tokens, eos of both configs") {
  const auto dir = scratch_dir("checkpoint");
  write_file(dir / "tiktoken.model", rank_file({"ab"}));
  CHECK(Tokenizer::open(dir).eos_ids().empty());
  write_file(
      dir / "tokenizer_config.json",
      R"({"added_tokens_decoder":{"1000":{"content":"<x>","special":true},"257":{"content":"[BOS]"}}})");
  write_file(dir / "config.json", R"({"eos_token_id":300,"text_config":{"eos_token_id":258}})");
  write_file(dir / "generation_config.json", R"({"eos_token_id":[259,258]})");
  const auto t = Tokenizer::open(dir);
  CHECK(Ids(t.eos_ids().begin(), t.eos_ids().end()) == Ids{258, 300, 259});
  CHECK(t.special("<x>") == text::TokenId{1000});
  CHECK(t.special("[BOS]") == t.bos());
  CHECK(t.encode("ab<x>", text::Mode::markup) == Ids{256, 1000});
  CHECK(t.encode("ab<x>") == Ids{256, '<', 'x', '>'});
}

TEST_CASE("the bundled checkpoint opens") {
  const auto t = Tokenizer::open(source_root() / "examples" / "tiny_k3" / "checkpoint");
  CHECK(t.special("[BOS]") == t.bos());
  CHECK(t.special("<|end_of_msg|>").has_value());
  CHECK(t.is_eos(*t.special("<|end_of_msg|>")));
}

TEST_CASE("missing and unreadable side files are named") {
  const auto dir = scratch_dir("broken");
  const auto what = [&] {
    return std::string(error_of([&] { (void)Tokenizer::open(dir); }).what());
  };
  CHECK(error_of([&] { (void)Tokenizer::open(dir); }).code() == Errc::not_found);
  CHECK(what().find("tokenizer.model") != std::string::npos);
  write_file(dir / "tokenizer.model", rank_file() + "AAA= 256\nAAE= 256\n");
  CHECK(what().find("tokenizer.model: rank: mismatch, got 256, wanted 257; line 258") !=
        std::string::npos);
  write_file(dir / "tokenizer.model", rank_file());
  for (const char* eos : {"\"2\"", "-1", "1.5", "16777216", "[1,[2]]", "{}", "true", "[null]"}) {
    CAPTURE(eos);
    write_file(dir / "config.json", std::string("{\"eos_token_id\":") + eos + "}");
    CHECK(what().find("config.json: eos_token_id") != std::string::npos);
  }
  write_file(dir / "config.json", R"({"eos_token_id":null})");
  CHECK(Tokenizer::open(dir).eos_ids().empty());
  write_file(dir / "config.json", "[]");
  CHECK(what().find("config.json: top level") != std::string::npos);
  write_file(dir / "config.json", "{");
  CHECK(error_of([&] { (void)Tokenizer::open(dir); }).code() == Errc::bad_json);
}

TEST_CASE("specials.json is validated and comes back sorted") {
  const auto specials =
      text::parse_specials(R"([{"id":9,"text":"b"},{"id":7,"text":"a","more":1}])", "s");
  CHECK(specials == std::vector<text::Special>{{7, "a"}, {9, "b"}});
  CHECK(text::parse_specials(text::dump_specials(specials), "s") == specials);
  CHECK(text::dump_specials({{9, "\xc3\xa9"}}).find("\\u00e9") != std::string::npos);
  // Ids that repeat: the text decides. (Up to sixteen elements std::sort happens to be stable.)
  std::vector<text::Special> repeated;
  for (char c = 'a'; c <= 'z'; ++c) repeated.push_back({7, std::string(1, c)});
  repeated.push_back({3, "z"});
  std::vector<text::Special> ordered = repeated;
  std::rotate(ordered.begin(), ordered.end() - 1, ordered.end());
  std::reverse(repeated.begin(), repeated.end());
  CHECK(text::parse_specials(text::dump_specials(repeated), "s") == ordered);
  CHECK(text::parse_specials("[]", "s").empty());
  refuse_specials("{}", Errc::bad_field, "top level");
  refuse_specials("[1]", Errc::bad_field, "element 0");
  refuse_specials(R"([{"text":"a"}])", Errc::missing, "id: missing; element 0");
  refuse_specials(R"([{"id":1}])", Errc::missing, "text: missing; element 0");
  refuse_specials(R"([{"id":"1","text":"a"}])", Errc::bad_field, "id");
  refuse_specials(R"([{"id":1.5,"text":"a"}])", Errc::bad_field, "id");
  refuse_specials(R"([{"id":-1,"text":"a"}])", Errc::bad_field, "id");
  refuse_specials(R"([{"id":16777216,"text":"a"}])", Errc::out_of_range,
                  "got 16777216, wanted at most 16777215");
  refuse_specials(R"([{"id":1,"text":2}])", Errc::bad_field, "text");
  refuse_specials(R"([{"id":1,"text":"a"}]x)", Errc::bad_json, "specials.json");
  std::string many = "[";
  for (int i = 0; i <= 65536; ++i) many += (i > 0 ? ",0" : "0");
  refuse_specials(many + "]", Errc::out_of_range, "count");
}

TEST_CASE("added_tokens_decoder is validated and comes back sorted by number") {
  const auto added = text::parse_added_tokens(
      R"({"added_tokens_decoder":{"1000":{"content":"b"},"999":{"content":"a"}},"x":1})", "t");
  CHECK(added == std::vector<text::Special>{{999, "a"}, {1000, "b"}});
  CHECK(text::parse_added_tokens("{}", "t").empty());
  refuse_added("[]", Errc::bad_field, "top level");
  refuse_added(R"({"added_tokens_decoder":[]})", Errc::bad_field, "added_tokens_decoder");
  for (const char* key : {"", "-1", "01", "1x", " 1", "1e2", "9999999999"}) {
    refuse_added(std::string(R"({"added_tokens_decoder":{")") + key + R"(":{"content":"a"}}})",
                 Errc::bad_field, "wants a decimal key");
  }
  refuse_added(R"({"added_tokens_decoder":{"99999999":{"content":"a"}}})", Errc::out_of_range,
               "id");
  refuse_added(R"({"added_tokens_decoder":{"5":{}}})", Errc::missing, "content");
  refuse_added(R"({"added_tokens_decoder":{"5":{"content":5}}})", Errc::bad_field, "content");
  refuse_added(R"({"added_tokens_decoder":{"5":"a"}})", Errc::missing, "content");
}

TEST_CASE("specials that would make ids or texts ambiguous are refused") {
  refuse_table({{256, ""}}, Errc::bad_field, "text");
  refuse_table({{256, std::string(257, 'x')}}, Errc::out_of_range, "got 257, wanted at most 256");
  refuse_table({{255, "a"}}, Errc::out_of_range, "got 255, wanted 256");
  refuse_table({{1u << 24, "a"}}, Errc::out_of_range, "id");
  refuse_table({{256, "a"}, {256, "b"}}, Errc::duplicate, "id");
  refuse_table({{256, "a"}, {257, "a"}}, Errc::duplicate, "text");
  refuse_table(std::vector<text::Special>(65537), Errc::out_of_range, "count");
}

TEST_CASE("tokenizers of the C engine's containers agree with their sources") {
  const auto shared = shared_dir();
  if (shared.empty()) {
    waste::test::skipped("WASTE_SHARED is unset: containers of another writer were not tokenized with");
    return;
  }
  const auto source = Tokenizer::open(shared / "interop" / "source-k3");
  const auto container = Tokenizer::open(shared / "interop" / "k3.waste");
  const std::string text = "In the beginning<|open|>there was[EOS] the theme.";
  CHECK(source.encode(text, text::Mode::markup) == container.encode(text, text::Mode::markup));
  CHECK(container.decode(container.encode(text, text::Mode::markup)) == text);
  CHECK(std::vector<text::Special>(source.specials().begin(), source.specials().end()) ==
        std::vector<text::Special>(container.specials().begin(), container.specials().end()));
}
