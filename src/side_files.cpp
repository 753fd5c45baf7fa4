#include <algorithm>
#include <charconv>

#include "waste/convert/converter.hpp"
#include "waste/io/file.hpp"

namespace waste::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t max_side_bytes = 64u << 20;

bool there(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

JsonValue read_object(const fs::path& path) {
  JsonValue v = parse_json(io::read_text(path, max_side_bytes), path.string());
  if (!v.is_object())
    throw Error(fault(Errc::bad_field, "file"), path.string(), "wanted an object");
  return v;
}

/// [{"id", "text"}, ...] sorted by id, of {"ID": {"content": TEXT, ...}, ...}.
JsonValue specials_of(const JsonValue& added, const std::string& file) {
  if (!added.is_object()) {
    throw Error(fault(Errc::bad_field, "added_tokens_decoder"), file, "wanted an object");
  }
  std::vector<std::pair<std::uint32_t, std::string>> tokens;
  for (const auto& [key, value] : *added.as_object()) {
    std::uint32_t id = 0;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    const JsonValue* content = value.find("content");
    if (ec != std::errc() || end != key.data() + key.size() || !content || !content->is_string()) {
      throw Error(fault(Errc::bad_field, "added_tokens_decoder"), file,
                  "entry \"" + key + "\" wants a number as its key and a content string");
    }
    tokens.emplace_back(id, *content->as_string());
  }
  std::sort(tokens.begin(), tokens.end());
  for (std::size_t i = 1; i < tokens.size(); ++i) {  // "7" and "07"
    if (tokens[i].first == tokens[i - 1].first) {
      throw Error(fault(Errc::duplicate, "added_tokens_decoder"), file,
                  "id " + std::to_string(tokens[i].first));
    }
  }
  JsonValue out(JsonValue::Array{});
  for (auto& [id, text] : tokens) {
    JsonValue one;
    one.set("id", id);
    one.set("text", std::move(text));
    out.push_back(std::move(one));
  }
  return out;
}

/// The tower's shape, then what its input needs.
JsonValue vision_of(const Checkpoint& source) {
  JsonValue out;
  for (const auto& [key, value] : *source.raw_config().find("vision_config")->as_object()) {
    if (!key.starts_with("_")) out.set(key, value);
  }
  out.set("vt_rms_eps", 1.1920928955078125e-07);
  if (const JsonValue* id = source.raw_config().find("media_placeholder_token_id")) {
    out.set("media_placeholder_token_id", *id);
  }
  out.set("max_patches", 1024);
  const JsonValue half(JsonValue::Array{0.5, 0.5, 0.5});
  JsonValue media;
  const fs::path preprocessor = source.directory() / "preprocessor_config.json";
  if (there(preprocessor)) {
    media = read_object(preprocessor);
    if (const JsonValue* inner = media.find("media_proc_cfg"); inner && inner->is_object()) {
      media = JsonValue(*inner);
    }
  }
  for (const char* key :
       {"image_mean", "image_std", "patch_size", "in_patch_limit", "patch_limit_on_one_side"}) {
    if (const JsonValue* v = media.find(key)) {
      out.set(key, *v);
    } else if (std::string_view(key).starts_with("image_")) {
      out.set(key, half);
    }
  }
  return out;
}

}  // namespace

std::vector<SideFile> side_files(const Checkpoint& source) {
  const fs::path& dir = source.directory();
  std::vector<SideFile> out;
  const auto copy = [&](const char* from, const char* to) {
    if (!there(dir / from)) return false;
    out.push_back({to, io::read_text(dir / from, max_side_bytes)});
    return true;
  };
  // Of other families, a tokenizer.model is a SentencePiece file and no list of ranks.
  if (!copy("tiktoken.model", "tokenizer.model") && source.model().family == format::Family::kimi) {
    copy("tokenizer.model", "tokenizer.model");
  }
  copy("chat.json", "chat.json");
  copy("generation_config.json", "generation_config.json");
  const bool has_template = copy("chat_template.jinja", "chat_template.jinja");
  const fs::path tokenizer = dir / "tokenizer_config.json";
  if (there(tokenizer)) {
    const JsonValue config = read_object(tokenizer);
    if (const JsonValue* added = config.find("added_tokens_decoder")) {
      out.push_back({"specials.json", dump_json(specials_of(*added, tokenizer.string()), 1)});
    }
    const JsonValue* text = config.find("chat_template");
    if (!has_template && text && text->is_string()) {
      out.push_back({"chat_template.jinja", *text->as_string()});
    }
  }
  if (const JsonValue* vision = source.raw_config().find("vision_config");
      vision && vision->is_object()) {
    out.push_back({"vision.json", dump_json(vision_of(source), 1)});
  }
  return out;
}

}  // namespace waste::convert
