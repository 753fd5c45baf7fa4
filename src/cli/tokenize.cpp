#include <cstdio>
#include <iterator>
#include <memory>

#include "commands.hpp"
#include "waste/format/json.hpp"
#include "waste/text/tokenizer.hpp"
#include "waste/text/utf8.hpp"

namespace waste::cli {
namespace {

struct TokenizeArguments {
  std::string dir, text = "-";
  bool plain = false, json = false;
};

struct DetokenizeArguments {
  std::string dir;
  std::vector<text::TokenId> ids;
  bool json = false;
};

std::string read_standard_input() {
  std::string out;
  char block[65536];
  for (std::size_t n = 0; (n = std::fread(block, 1, sizeof block, stdin)) > 0;)
    out.append(block, n);
  if (std::ferror(stdin) != 0) throw Error(fault(Errc::io, "standard input"));
  return out;
}

void print(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) {
    throw Error(fault(Errc::io, "standard output"));
  }
}

void tokenize(const TokenizeArguments& a) {
  const Tokenizer tokenizer = Tokenizer::open(a.dir);
  const std::string text = a.text == "-" ? read_standard_input() : a.text;
  const auto ids = tokenizer.encode(text, a.plain ? text::Mode::plain : text::Mode::markup);
  if (a.json) {
    JsonValue::Array list(ids.begin(), ids.end());
    JsonValue out(JsonValue::Object{});
    out.set("bytes", static_cast<std::uint64_t>(text.size()));
    out.set("tokens", static_cast<std::uint64_t>(ids.size()));
    out.set("ids", std::move(list));
    print(dump_json(out) + "\n");
    return;
  }
  std::string line;
  for (const text::TokenId id : ids) {
    if (!line.empty()) line += ' ';
    line += std::to_string(id);
  }
  print(line + "\n");
}

/// `bytes` with U+FFFD for each byte that is in no character.
std::string as_utf8(std::string_view bytes, bool& exact) {
  std::string out;
  exact = true;
  for (std::size_t at = 0; at < bytes.size();) {
    const text::Utf8Step step = text::utf8_step(bytes, at);
    if (step.valid) {
      out += bytes.substr(at, step.bytes);
    } else {
      out += "\xef\xbf\xbd";
      exact = false;
    }
    at += step.bytes;
  }
  return out;
}

std::string hex(std::string_view bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

void detokenize(const DetokenizeArguments& a) {
  const std::string bytes = Tokenizer::open(a.dir).decode(a.ids);
  if (!a.json) {
    print(bytes);
    return;
  }
  bool exact = false;
  JsonValue out(JsonValue::Object{});
  out.set("text", as_utf8(bytes, exact));
  if (!exact) out.set("hex", hex(bytes));
  print(dump_json(out) + "\n");
}

}  // namespace

void add_tokenize(CLI::App& app, Context&) {
  constexpr const char* dir_help =
      "a container (tokenizer.model, specials.json) or a checkpoint (tiktoken.model, "
      "tokenizer_config.json)";
  auto t = std::make_shared<TokenizeArguments>();
  CLI::App* tokenize_app = app.add_subcommand(
      "tokenize", "Print the token ids of a text on one line, separated by spaces");
  tokenize_app->add_option("DIR", t->dir, dir_help)->required();
  tokenize_app->add_option("TEXT", t->text,
                           "the text; - or nothing reads standard input to its end");
  tokenize_app->add_flag("--plain", t->plain,
                         "text only: <|...|> in it never becomes a control token");
  tokenize_app->add_flag("--json", t->json, "print {bytes, tokens, ids}");
  tokenize_app->callback([t] { tokenize(*t); });

  auto d = std::make_shared<DetokenizeArguments>();
  CLI::App* detokenize_app =
      app.add_subcommand("detokenize", "Write the text of token ids, exactly, without a line feed");
  detokenize_app->add_option("DIR", d->dir, dir_help)->required();
  detokenize_app->add_option("IDS", d->ids, "token ids, separated by spaces or commas")
      ->required()
      ->delimiter(',');
  detokenize_app->add_flag(
      "--json", d->json,
      "print {text}; and {hex}, where U+FFFD stands for bytes that are no UTF-8");
  detokenize_app->callback([d] { detokenize(*d); });
}

}  // namespace waste::cli
