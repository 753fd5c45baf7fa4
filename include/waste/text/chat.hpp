// Chat messages as token ids: the K3 markup, or a container's own chat.json.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "waste/text/tokenizer.hpp"

namespace waste::text {

struct Message {
  std::string role;  ///< "system", "user", "assistant"; in K3 markup any other text as well
  std::string content;
  std::optional<std::string> thinking;  ///< of an assistant message; nullopt leaves the element out
};

/// A fragment of a rendered chat, encoded alone: markup comes from the format, plain from messages.
struct Segment {
  Mode mode = Mode::plain;
  std::string text;
  bool operator==(const Segment&) const = default;
};

/// What follows the messages: nothing, or an open assistant message for the model to continue, in
/// its response or in its thinking.
enum class Opening : std::uint8_t { none, response, thinking };

/// How messages become text. Nothing that a message holds (role, content, thinking) can become a
/// control token: it only ever stands in plain segments.
class ChatFormat {
 public:
  /// K3's markup, with control tokens between `|`:
  ///
  ///     <|open|>message role="ROLE"<|sep|>CONTENT<|close|>message<|sep|><|end_of_msg|>
  ///
  /// where an assistant's CONTENT is
  ///
  ///     [<|open|>think<|sep|>THINKING<|close|>think<|sep|>]<|open|>response<|sep|>CONTENT<|close|>response<|sep|>
  ///
  /// and ROLE has & and then " escaped (&amp; &quot;). The opening is `<|open|>message
  /// role="assistant"<|sep|>` and an open `think` or `response`. Tool calls and images have no part
  /// here.
  static ChatFormat k3();
  /// chat.json: `{"system": [before, after], "user": [...], "assistant": [...], "open": text}`, all
  /// optional. Throws Error naming the key.
  static ChatFormat parse(std::string_view json, std::string_view file);
  /// The format of a container or checkpoint directory: chat.json where there is one (read as k3()
  /// where it says the same), else k3() where the tokenizer has its four control tokens, else none.
  static std::optional<ChatFormat> find(const std::filesystem::path& dir,
                                        const Tokenizer& tokenizer);

  /// The fragments in order; empty ones left out. Throws Error: bad_argument for a role that the
  /// format does not know, or thinking of another role than assistant; unsupported for thinking, or
  /// an opening, that a chat.json has no text for.
  std::vector<Segment> render(std::span<const Message> messages, Opening opening) const;

  /// render, each segment encoded alone. Throws Error also when the tokenizer lacks a control token
  /// of the K3 markup (missing).
  std::vector<TokenId> encode(const Tokenizer& tokenizer, std::span<const Message> messages,
                              Opening opening) const;

  bool is_k3() const noexcept { return k3_; }

 private:
  struct Around {
    std::string before, after;
    bool operator==(const Around&) const = default;
  };

  bool k3_ = false;
  std::array<std::optional<Around>, 3> roles_;  // system, user, assistant
  std::optional<std::string> open_;
};

}  // namespace waste::text
