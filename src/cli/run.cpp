// waste run: continues a prompt, or answers it as a chat message.
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "open_model.hpp"
#include "printable.hpp"
#include "waste/model/generate.hpp"
#include "waste/text/chat.hpp"

namespace waste::cli {
namespace {

struct RunArguments {
  ModelArguments model;
  std::string prompt;
  std::string system;
  std::string load_session, save_session;
  model::GenerateOptions generate;
  bool raw = false, chat = false, markup = false, think = false, json = false;
};

/// The prompt's ids; in K3's markup the answer then also ends where its response element closes.
std::vector<std::uint32_t> encode_prompt(RunArguments& a, const Tokenizer& tokenizer) {
  if (!a.chat) {
    return tokenizer.encode(a.prompt, a.markup ? text::Mode::markup : text::Mode::plain);
  }
  const auto format = text::ChatFormat::find(a.model.path, tokenizer);
  if (!format) {
    throw Error(fault(Errc::unsupported, "--chat"), a.model.path,
                "neither a chat.json nor the control tokens of a known chat format are there");
  }
  if (format->is_k3()) a.generate.stop.push_back("<|close|>response<|sep|>");
  std::vector<text::Message> messages;
  if (!a.system.empty()) messages.push_back({"system", a.system, std::nullopt});
  messages.push_back({"user", a.prompt, std::nullopt});
  return format->encode(tokenizer, messages,
                        a.think ? text::Opening::thinking : text::Opening::response);
}

void print_json(const OpenedModel& opened, std::size_t prompt_tokens, const model::Generated& g) {
  JsonValue out;
  out.set("text", as_utf8(g.text));
  JsonValue ids = JsonValue::Array{};
  for (const std::uint32_t t : g.tokens) ids.push_back(t);
  out.set("tokens", std::move(ids));
  out.set("stop_reason", to_string(g.reason));
  out.set("stop", as_utf8(g.stop));
  out.set("prompt_tokens", static_cast<std::uint64_t>(prompt_tokens));
  out.set("prompt_seconds", g.prompt_seconds);
  out.set("seconds", g.seconds);
  out.set("tokens_per_second", g.tokens_per_second());
  out.set("cache", opened.cache_json());
  std::printf("%s\n", dump_json(out, 1).c_str());
}

/// A usage log that cannot be read or written costs the next run its warm start, not this one.
void finish_usage(const RunArguments& a, const OpenedModel& opened) {
  if (!a.model.learn || !opened.usage) return;
  if (const Fault f = opened.usage->finish()) {
    std::fprintf(stderr, "[not learned: %s]\n",
                 Error(f, (opened.directory / "usage.waste").string()).what());
  }
}

void run(RunArguments& a) {
  OpenedModel opened = open_model(a.model);
  const Tokenizer tokenizer = Tokenizer::open(a.model.path);
  std::vector<std::uint32_t> prompt = encode_prompt(a, tokenizer);
  Session session = opened.model->start(a.model.context);
  if (!a.load_session.empty()) {
    model::SavedSession saved = opened.model->load(a.load_session, a.model.context);
    session = std::move(saved.session);
    prompt.insert(prompt.begin(), saved.pending.begin(), saved.pending.end());
  }
  const auto show = [&](std::string_view text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    return written && std::fflush(stdout) == 0;
  };
  std::function<bool(std::string_view)> on_text;
  if (!a.json) on_text = show;
  model::Observer observer;
  const RoutingRecord record(a.model, opened.model->config(), observer);
  const model::Generated g =
      model::generate(*opened.model, session, tokenizer, prompt, a.generate, on_text, observer);
  if (!a.save_session.empty()) {
    // Of the answer's tokens generate() has fed all but the last, or all before an end of sequence.
    const bool all_fed = g.reason == model::StopReason::eos || g.tokens.empty();
    opened.model->save(session, a.save_session, std::span(g.tokens).last(all_fed ? 0 : 1));
  }
  record.write();
  for (const std::string& line : opened.fallbacks()) std::fprintf(stderr, "[%s]\n", line.c_str());
  finish_usage(a, opened);
  if (a.json) {
    print_json(opened, prompt.size(), g);
    return;
  }
  std::fputc('\n', stdout);
  std::fflush(stdout);
  if (g.reason == model::StopReason::cancelled) {
    throw Error(fault(Errc::io, "standard output"));
  }
  std::fprintf(stderr, "[stopped: %s%s%s; %zu tokens, %.1f tokens/s; prompt of %zu in %.2f s",
               std::string(to_string(g.reason)).c_str(), g.stop.empty() ? "" : " ", g.stop.c_str(),
               g.tokens.size(), g.tokens_per_second(), prompt.size(), g.prompt_seconds);
  const std::string cache = opened.cache_text();
  std::fprintf(stderr, "%s%s]\n", cache.empty() ? "" : "; expert cache: ", cache.c_str());
}

}  // namespace

void add_run(CLI::App& app, Context&) {
  auto a = std::make_shared<RunArguments>();
  CLI::App* sub = app.add_subcommand(
      "run",
      "Continue a prompt; the text goes to standard output as it is made, then a line on "
      "standard error says why it stopped, how fast it was and what the cache did");
  add_model_options(*sub, a->model);
  add_record_option(*sub, a->model);
  sub->add_option("PROMPT", a->prompt, "the text to continue, or the user's message with --chat")
      ->required();
  sub->add_option("-n,--tokens", a->generate.max_tokens, "at most so many tokens")
      ->capture_default_str();
  sub->add_option("--temperature", a->generate.sampler.temperature,
                  "0: always the likeliest token (greedy)")
      ->capture_default_str();
  sub->add_option("--top-k", a->generate.sampler.top_k, "sample among the K likeliest (0: all)")
      ->capture_default_str();
  sub->add_option("--top-p", a->generate.sampler.top_p,
                  "sample among the fewest likeliest that reach this probability")
      ->capture_default_str();
  sub->add_option("--seed", a->generate.sampler.seed,
                  "of the random draws; the same seed gives the same text")
      ->capture_default_str();
  sub->add_option("--stop", a->generate.stop, "stop before this text (may be repeated)")
      ->allow_extra_args(false);
  sub->add_flag("--ignore-eos", a->generate.ignore_eos, "go on after an end-of-sequence token");
  CLI::Option* load = sub->add_option(
      "--load-session", a->load_session,
      "go on after what this file remembers, with PROMPT; the same as one run with both texts");
  sub->add_option("--save-session", a->save_session,
                  "write what the model has read and said into this file, to go on from there; it "
                  "may be the one that was loaded");
  CLI::Option* raw =
      sub->add_flag("--raw", a->raw, "continue the prompt as plain text (the default)");
  CLI::Option* chat = sub->add_flag(
      "--chat", a->chat, "answer the prompt as a user's message, in the model's chat format");
  CLI::Option* markup =
      sub->add_flag("--markup", a->markup,
                    "control tokens written out in the prompt, <|...|>, are control tokens");
  raw->excludes(chat);
  markup->excludes(chat);
  load->excludes(chat);
  sub->add_option("--system", a->system, "a system message, with --chat")->needs(chat);
  sub->add_flag("--think", a->think, "open the answer with thinking, with --chat")->needs(chat);
  sub->add_flag("--learn", a->model.learn,
                "count which experts are used in the container's usage.waste; a run that finds one "
                "reads the experts used most in the background while it begins");
  sub->add_flag("--json", a->json, "print one JSON object instead, at the end");
  sub->footer(
      "Example:  waste run k3.waste \"Call me Ishmael.\" -n 200 --temperature 0.7 --top-p 0.9");
  sub->callback([a] { run(*a); });
}

}  // namespace waste::cli
