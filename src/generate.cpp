#include "waste/model/generate.hpp"

#include <algorithm>
#include <chrono>

namespace waste::model {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Lets text through until a stop string is complete; holds back what may be the beginning of one.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
  }

  /// The text that may be shown after `piece` more; stopped() when a stop string ended it.
  std::string push(std::string_view piece) {
    held_ += piece;
    std::size_t end = std::string::npos;
    for (const std::string& s : stops_) {
      const std::size_t at = held_.find(s);
      if (at < end) {
        end = at;
        stop_ = s;
      }
    }
    stopped_ = end != std::string::npos;
    if (!stopped_) end = held_.size() - partial();
    std::string out = held_.substr(0, end);
    held_.erase(0, end);
    return out;
  }
  std::string finish() { return std::move(held_); }
  bool stopped() const noexcept { return stopped_; }
  const std::string& stop() const noexcept { return stop_; }

 private:
  /// The length of the longest end of held_ that begins a stop string.
  std::size_t partial() const {
    std::size_t best = 0;
    for (const std::string& s : stops_) {
      for (std::size_t n = std::min(s.size() - 1, held_.size()); n > best; --n) {
        if (held_.compare(held_.size() - n, n, s, 0, n) == 0) {
          best = n;
          break;
        }
      }
    }
    return best;
  }

  std::vector<std::string> stops_;
  std::string held_, stop_;
  bool stopped_ = false;
};

}  // namespace

std::string_view to_string(StopReason reason) noexcept {
  constexpr std::string_view names[] = {"eos", "length", "stop string", "context", "cancelled"};
  return names[static_cast<std::size_t>(reason)];
}

Generated generate(const TextModel& model, Session& session, const Tokenizer& tokenizer,
                   std::span<const std::uint32_t> prompt, const GenerateOptions& options,
                   const std::function<bool(std::string_view)>& on_text, const Observer& observer) {
  if (prompt.empty()) {
    throw Error(fault(Errc::bad_argument, "prompt"), {}, "it must have at least one token");
  }
  Sampler sampler(options.sampler, model.options().exec);
  text::StreamDecoder decoder(tokenizer);
  StopFilter filter(options.stop);
  Generated out;
  const auto show = [&](const std::string& text) {
    out.text += text;
    return text.empty() || !on_text || on_text(text);
  };

  auto start = Clock::now();
  std::vector<float> logits(model.config().vocab_size);
  model.forward(session, prompt, {logits.data(), 1, logits.size()}, observer);
  out.prompt_seconds = since(start);
  start = Clock::now();
  for (;;) {
    if (out.tokens.size() >= options.max_tokens) break;  // length
    const std::uint32_t token = sampler.next(logits);
    if (tokenizer.is_eos(token) && !options.ignore_eos) {
      out.reason = StopReason::eos;
      out.stop = tokenizer.decode({&token, 1});
      break;
    }
    out.tokens.push_back(token);
    const bool go_on = show(filter.push(decoder.push(token)));
    if (filter.stopped()) {
      out.reason = StopReason::stop_string;
      out.stop = filter.stop();
      break;
    }
    if (!go_on) {
      out.reason = StopReason::cancelled;
      break;
    }
    if (out.tokens.size() >= options.max_tokens) break;
    if (session.room() == 0) {
      out.reason = StopReason::context;
      break;
    }
    model.forward(session, {&token, 1}, {logits.data(), 1, logits.size()}, observer);
    ++out.steps;
  }
  out.seconds = since(start);
  if (!filter.stopped()) {
    show(filter.push(decoder.finish()));
    if (!filter.stopped()) show(filter.finish());
  }
  return out;
}

}  // namespace waste::model
