#include "waste/text/chat.hpp"

#include <utility>

#include "waste/format/json.hpp"
#include "waste/io/file.hpp"

namespace waste::text {
namespace {

constexpr std::uint64_t max_chat_bytes = 1u << 20;
constexpr std::string_view role_names[] = {"system", "user", "assistant"};
constexpr std::size_t assistant = 2;

constexpr std::string_view open_tag = "<|open|>";
constexpr std::string_view close_tag = "<|close|>";
constexpr std::string_view separator = "<|sep|>";
constexpr std::string_view end_of_message = "<|end_of_msg|>";
constexpr std::string_view control_tokens[] = {open_tag, close_tag, separator, end_of_message};

std::string escaped(std::string_view attribute) {
  std::string out;
  for (const char c : attribute) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

/// Collects segments; empty ones are dropped.
class Renderer {
 public:
  void markup(std::string_view text) { add(Mode::markup, text); }
  void plain(std::string_view text) { add(Mode::plain, text); }
  void open(std::string_view element) { tag(open_tag, element); }
  void close(std::string_view element) { tag(close_tag, element); }
  void element(std::string_view name, std::string_view content) {
    open(name);
    plain(content);
    close(name);
  }
  std::vector<Segment> take() { return std::move(out_); }

 private:
  void tag(std::string_view kind, std::string_view element) {
    markup(kind);
    plain(element);
    markup(separator);
  }
  void add(Mode mode, std::string_view text) {
    if (!text.empty()) out_.push_back({mode, std::string(text)});
  }
  std::vector<Segment> out_;
};

std::string message_element(std::string_view role) {
  return "message role=\"" + escaped(role) + "\"";
}

void render_k3(const Message& message, Renderer& out) {
  out.open(message_element(message.role));
  if (message.role == role_names[assistant]) {
    if (message.thinking) out.element("think", *message.thinking);
    out.element("response", message.content);
  } else {
    out.plain(message.content);
  }
  out.close("message");
  out.markup(end_of_message);
}

/// The K3 markup as the texts a chat.json holds.
std::string k3_before(std::string_view role) {
  std::string out = "<|open|>" + message_element(role) + "<|sep|>";
  if (role == role_names[assistant]) out += "<|open|>response<|sep|>";
  return out;
}
std::string k3_after(std::string_view role) {
  const std::string message = "<|close|>message<|sep|><|end_of_msg|>";
  return role == role_names[assistant] ? "<|close|>response<|sep|>" + message : message;
}

std::string wanted_text(const JsonValue& value, const char* field, std::string_view file) {
  const auto* text = value.as_string();
  if (text == nullptr) throw Error(fault(Errc::bad_field, field), file, "wants a string");
  return *text;
}

}  // namespace

ChatFormat ChatFormat::k3() {
  ChatFormat format;
  format.k3_ = true;
  return format;
}

ChatFormat ChatFormat::parse(std::string_view json, std::string_view file) {
  JsonLimits limits;
  limits.bytes = max_chat_bytes;
  const JsonValue value = parse_json(json, file, limits);
  if (!value.is_object()) throw Error(fault(Errc::bad_field, "top level"), file, "wants an object");
  ChatFormat format;
  bool same_as_k3 = true;
  for (std::size_t role = 0; role < format.roles_.size(); ++role) {
    const char* name = role_names[role].data();
    const JsonValue* pair = value.find(name);
    if (pair == nullptr || pair->is_null()) {
      same_as_k3 = false;
      continue;
    }
    const auto* list = pair->as_array();
    if (list == nullptr || list->size() != 2) {
      throw Error(fault(Errc::bad_field, name), file, "wants [text before, text after]");
    }
    format.roles_[role] = {wanted_text((*list)[0], name, file),
                           wanted_text((*list)[1], name, file)};
    same_as_k3 = same_as_k3 && format.roles_[role] ==
                                   Around{k3_before(role_names[role]), k3_after(role_names[role])};
  }
  if (const JsonValue* open = value.find("open"); open != nullptr && !open->is_null()) {
    format.open_ = wanted_text(*open, "open", file);
  }
  if (same_as_k3 && format.open_ == k3_before(role_names[assistant])) return k3();
  return format;
}

std::optional<ChatFormat> ChatFormat::find(const std::filesystem::path& dir,
                                           const Tokenizer& tokenizer) {
  const auto path = dir / "chat.json";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    return parse(io::read_text(path, max_chat_bytes), path.string());
  }
  for (const std::string_view token : control_tokens) {
    if (!tokenizer.special(token)) return std::nullopt;
  }
  return k3();
}

std::vector<Segment> ChatFormat::render(std::span<const Message> messages, Opening opening) const {
  Renderer out;
  for (const Message& message : messages) {
    if (message.thinking && message.role != role_names[assistant]) {
      throw Error(fault(Errc::bad_argument, "thinking"), {}, "only an assistant message holds any");
    }
    if (k3_) {
      render_k3(message, out);
      continue;
    }
    std::size_t role = 0;
    while (role < roles_.size() && message.role != role_names[role]) ++role;
    if (role == roles_.size() || !roles_[role]) {
      throw Error(fault(Errc::bad_argument, "role"), {}, "chat.json has no text for this role");
    }
    if (message.thinking) {
      throw Error(fault(Errc::unsupported, "thinking"), {}, "chat.json has no text for it");
    }
    out.markup(roles_[role]->before);
    out.plain(message.content);
    out.markup(roles_[role]->after);
  }
  if (opening == Opening::none) return out.take();
  if (k3_) {
    out.open(message_element(role_names[assistant]));
    out.open(opening == Opening::thinking ? "think" : "response");
  } else {
    if (opening == Opening::thinking || !open_) {
      throw Error(fault(Errc::unsupported, "open"), {}, "chat.json has no text for this opening");
    }
    out.markup(*open_);
  }
  return out.take();
}

std::vector<TokenId> ChatFormat::encode(const Tokenizer& tokenizer,
                                        std::span<const Message> messages, Opening opening) const {
  if (k3_) {
    for (const std::string_view token : control_tokens) {
      if (!tokenizer.special(token)) {
        throw Error(fault(Errc::missing, "control token of the chat markup"), {}, token);
      }
    }
  }
  std::vector<TokenId> ids;
  for (const Segment& segment : render(messages, opening)) {
    tokenizer.encode(segment.text, segment.mode, ids);
  }
  return ids;
}

}  // namespace waste::text
