// Continues a prompt token by token, and says why it stopped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "waste/model/kimi.hpp"
#include "waste/model/sampler.hpp"
#include "waste/text/tokenizer.hpp"

namespace waste::model {

enum class StopReason : std::uint8_t {
  eos,          ///< the model ended the text
  length,       ///< as many tokens as were asked for
  stop_string,  ///< a stop string appeared
  context,      ///< the session's context is full
  cancelled,    ///< the caller said so
};
/// "eos", "length", "stop string", "context", "cancelled".
std::string_view to_string(StopReason reason) noexcept;

struct GenerateOptions {
  std::size_t max_tokens = 128;
  SamplerOptions sampler;
  std::vector<std::string>
      stop;                 ///< the text ends before the first of them; empty ones are ignored
  bool ignore_eos = false;  ///< end-of-sequence tokens continue like any other
};

struct Generated {
  std::vector<std::uint32_t> tokens;  ///< without the end-of-sequence token
  std::string text;                   ///< of tokens, up to a stop string
  StopReason reason = StopReason::length;
  std::string stop;           ///< the stop string or end-of-sequence token that ended it
  std::size_t steps = 0;      ///< forward passes after the prompt's
  double prompt_seconds = 0;  ///< of the prompt's pass
  double seconds = 0;         ///< of the steps
  double tokens_per_second() const noexcept {
    return seconds > 0 ? static_cast<double>(steps) / seconds : 0;
  }
};

/// Feeds `prompt` at the session's position, then samples. `on_text` gets the text as it is made,
/// whole characters, nothing that may still become part of a stop string; it may return false to
/// cancel, and may be empty. `observer` looks on at every pass. Every sampled token but the last
/// has been fed to the session when this returns. Throws Error: bad_argument for an empty prompt,
/// and as TextModel::forward.
Generated generate(const TextModel& model, Session& session, const Tokenizer& tokenizer,
                   std::span<const std::uint32_t> prompt, const GenerateOptions& options,
                   const std::function<bool(std::string_view)>& on_text = {},
                   const Observer& observer = {});

}  // namespace waste::model
