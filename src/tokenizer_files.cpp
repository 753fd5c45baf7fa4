#include <algorithm>

#include "waste/format/constants.hpp"
#include "waste/format/json.hpp"
#include "waste/io/file.hpp"
#include "waste/text/tokenizer.hpp"

namespace waste::text {
namespace {

// Released files: 20 KB of specials, 30 KB of tokenizer_config with its template.
constexpr std::uint64_t max_side_file_bytes = 16u << 20;

TokenId checked_id(const JsonValue* value, const char* field, std::string_view file,
                   const std::string& where) {
  if (value == nullptr) throw Error(fault(Errc::missing, field), file, where);
  const auto* id = value->as_unsigned();
  if (id == nullptr) throw Error(fault(Errc::bad_field, field), file, where + " wants an integer");
  if (*id >= format::limits::vocabulary) {
    throw Error(fault(Errc::out_of_range, field, *id, format::limits::vocabulary - 1), file, where);
  }
  return static_cast<TokenId>(*id);
}

std::string checked_text(const JsonValue* value, const char* field, std::string_view file,
                         const std::string& where) {
  if (value == nullptr) throw Error(fault(Errc::missing, field), file, where);
  const auto* text = value->as_string();
  if (text == nullptr) throw Error(fault(Errc::bad_field, field), file, where + " wants a string");
  return *text;
}

/// Adds the ids of `eos_token_id` (a number or a list; absent or null adds none) once each.
void add_eos(const JsonValue& config, std::string_view file, std::vector<TokenId>& out) {
  const JsonValue* eos = config.find("eos_token_id");
  if (eos == nullptr || eos->is_null()) return;
  const auto add = [&](const JsonValue& value, const std::string& where) {
    const TokenId id = checked_id(&value, "eos_token_id", file, where);
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  };
  if (const auto* list = eos->as_array()) {
    if (list->size() > 1024) {
      throw Error(fault(Errc::out_of_range, "eos_token_id", list->size(), 1024), file);
    }
    for (std::size_t i = 0; i < list->size(); ++i) add((*list)[i], "element " + std::to_string(i));
  } else {
    add(*eos, "the value");
  }
}

JsonValue read_json(const std::filesystem::path& path, std::uint64_t max_bytes) {
  JsonLimits limits;
  limits.bytes = max_bytes;
  const std::string name = path.string();
  JsonValue value = parse_json(io::read_text(path, max_bytes), name, limits);
  if (!value.is_object()) throw Error(fault(Errc::bad_field, "top level"), name, "wants an object");
  return value;
}

bool has_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Tokenizer with_ranks(const std::filesystem::path& path, std::vector<Special> specials,
                     std::vector<TokenId> eos_ids) {
  const std::string text = io::read_text(path, RankTable::max_file_bytes);
  return Tokenizer(text, std::move(specials), std::move(eos_ids), path.string());
}

Tokenizer open_container(const std::filesystem::path& dir) {
  std::vector<TokenId> eos_ids;
  const auto manifest_path = dir / "manifest.json";
  const JsonValue manifest = read_json(manifest_path, format::limits::manifest_bytes);
  if (const auto* config = manifest.find("config"))
    add_eos(*config, manifest_path.string(), eos_ids);
  std::vector<Special> specials;
  if (const auto path = dir / "specials.json"; has_file(path)) {
    specials = parse_specials(io::read_text(path, max_side_file_bytes), path.string());
  }
  return with_ranks(dir / "tokenizer.model", std::move(specials), std::move(eos_ids));
}

Tokenizer open_checkpoint(const std::filesystem::path& dir) {
  std::vector<TokenId> eos_ids;
  if (const auto path = dir / "config.json"; has_file(path)) {
    const JsonValue config = read_json(path, max_side_file_bytes);
    if (const auto* inner = config.find("text_config")) add_eos(*inner, path.string(), eos_ids);
    add_eos(config, path.string(), eos_ids);
  }
  if (const auto path = dir / "generation_config.json"; has_file(path)) {
    add_eos(read_json(path, max_side_file_bytes), path.string(), eos_ids);
  }
  std::vector<Special> specials;
  if (const auto path = dir / "tokenizer_config.json"; has_file(path)) {
    specials = parse_added_tokens(io::read_text(path, max_side_file_bytes), path.string());
  }
  const auto released = dir / "tiktoken.model";
  return with_ranks(has_file(released) ? released : dir / "tokenizer.model", std::move(specials),
                    std::move(eos_ids));
}

}  // namespace

Tokenizer Tokenizer::open(const std::filesystem::path& dir) {
  return has_file(dir / "manifest.json") ? open_container(dir) : open_checkpoint(dir);
}

std::vector<Special> parse_specials(std::string_view json, std::string_view file) {
  const JsonValue value = parse_json(json, file);
  const auto* list = value.as_array();
  if (list == nullptr) throw Error(fault(Errc::bad_field, "top level"), file, "wants a list");
  if (list->size() > Tokenizer::max_specials) {
    throw Error(fault(Errc::out_of_range, "count", list->size(), Tokenizer::max_specials), file);
  }
  std::vector<Special> out;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = "element " + std::to_string(i);
    const JsonValue& item = (*list)[i];
    if (!item.is_object()) {
      throw Error(fault(Errc::bad_field, "element"), file, where + " wants an object");
    }
    out.push_back({checked_id(item.find("id"), "id", file, where),
                   checked_text(item.find("text"), "text", file, where)});
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<Special> parse_added_tokens(std::string_view json, std::string_view file) {
  const JsonValue value = parse_json(json, file);
  if (!value.is_object()) throw Error(fault(Errc::bad_field, "top level"), file, "wants an object");
  const JsonValue* added = value.find("added_tokens_decoder");
  if (added == nullptr || added->is_null()) return {};
  const auto* members = added->as_object();
  if (members == nullptr) {
    throw Error(fault(Errc::bad_field, "added_tokens_decoder"), file, "wants an object");
  }
  if (members->size() > Tokenizer::max_specials) {
    throw Error(fault(Errc::out_of_range, "count", members->size(), Tokenizer::max_specials), file);
  }
  std::vector<Special> out;
  for (const auto& [key, item] : *members) {
    const std::string where = "added_tokens_decoder[\"" + key + "\"]";
    const bool decimal =
        !key.empty() && key.size() <= 9 && (key[0] != '0' || key.size() == 1) &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!decimal) throw Error(fault(Errc::bad_field, "id"), file, where + " wants a decimal key");
    const JsonValue id(static_cast<std::uint64_t>(std::stoul(key)));
    out.push_back({checked_id(&id, "id", file, where),
                   checked_text(item.find("content"), "content", file, where)});
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string dump_specials(std::vector<Special> specials) {
  std::sort(specials.begin(), specials.end());
  JsonValue list(JsonValue::Array{});
  for (Special& s : specials) {
    JsonValue item(JsonValue::Object{});
    item.set("id", s.id);
    item.set("text", std::move(s.text));
    list.push_back(std::move(item));
  }
  return dump_json(list, 1) + "\n";
}

}  // namespace waste::text
