// waste eval and waste logits: how well a model predicts a text, and its raw output.
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "open_model.hpp"
#include "progress.hpp"
#include "waste/io/file.hpp"
#include "waste/model/evaluate.hpp"
#include "waste/model/sampler.hpp"
#include "waste/text/tokenizer.hpp"

namespace waste::cli {
namespace {

struct EvalArguments {
  ModelArguments model;
  std::string file;
  std::size_t window = 256;
  std::uint64_t max_tokens = 0;
  bool json = false;
};

/// Text is read whole; a larger file is refused.
constexpr std::uint64_t max_text_bytes = std::uint64_t{1} << 30;

void eval(const EvalArguments& a) {
  const OpenedModel opened = open_model(a.model);
  const Tokenizer tokenizer = Tokenizer::open(a.model.path);
  const std::string text = io::read_text(a.file, max_text_bytes);
  std::vector<std::uint32_t> tokens = tokenizer.encode(text);
  std::uint64_t bytes = text.size();
  if (a.max_tokens != 0 && a.max_tokens < tokens.size()) {
    tokens.resize(a.max_tokens);
    bytes = tokenizer.decode(tokens).size();
  }
  Progress progress("eval", a.json && isatty(STDERR_FILENO) == 0);
  const model::Evaluation e = model::evaluate(
      *opened.model, tokens, bytes, a.window, opened.threads,
      [&](std::uint64_t done, std::uint64_t total) {
        progress.update(static_cast<double>(done), static_cast<double>(total),
                        std::to_string(done) + " of " + std::to_string(total) + " tokens");
      });
  progress.finish();
  const double speed = static_cast<double>(e.predicted) / e.seconds;
  if (a.json) {
    JsonValue out;
    out.set("bits_per_byte", e.bits_per_byte());
    out.set("perplexity", e.perplexity());
    out.set("mean_nll", e.mean_nll());
    out.set("tokens", e.tokens);
    out.set("bytes", e.bytes);
    out.set("window", e.window);
    out.set("windows", e.windows);
    out.set("predicted", e.predicted);
    out.set("seconds", e.seconds);
    out.set("tokens_per_second", speed);
    out.set("cache", opened.cache_json());
    std::printf("%s\n", dump_json(out, 1).c_str());
    return;
  }
  std::printf("bits per byte  %.4f\nperplexity     %.3f per token\n", e.bits_per_byte(),
              e.perplexity());
  std::printf("text           %llu bytes, %llu tokens, %llu windows of %llu\n",
              static_cast<unsigned long long>(e.bytes), static_cast<unsigned long long>(e.tokens),
              static_cast<unsigned long long>(e.windows),
              static_cast<unsigned long long>(e.window));
  std::printf("speed          %.0f tokens/s, %.1f s\n", speed, e.seconds);
  const std::string cache = opened.cache_text();
  if (!cache.empty()) std::printf("expert cache   %s\n", cache.c_str());
}

struct LogitsArguments {
  ModelArguments model;
  std::vector<std::uint32_t> tokens;
  std::string out;
  std::size_t greedy = 0;
  bool all = false, json = false;
};

void logits(const LogitsArguments& a) {
  const OpenedModel opened = open_model(a.model);
  const TextModel& model = *opened.model;
  const std::size_t vocab = model.config().vocab_size;
  Session session = model.start(a.model.context);
  const std::size_t rows = a.all ? a.tokens.size() : 1;
  std::vector<float> values(rows * vocab);
  model.forward(session, a.tokens, {values.data(), rows, vocab});
  if (!a.out.empty()) {
    io::write_atomically(
        a.out, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  std::vector<float> last(values.end() - static_cast<std::ptrdiff_t>(vocab), values.end());
  const std::uint32_t argmax = model::Sampler::greedy(last);
  const float largest = last[argmax];
  JsonValue ids = JsonValue::Array{};
  std::string line;
  std::uint32_t next = argmax;
  for (std::size_t i = 0; i < a.greedy; ++i) {
    ids.push_back(next);
    if (!line.empty()) line += ',';
    line += std::to_string(next);
    if (i + 1 == a.greedy) break;
    model.forward(session, {&next, 1}, {last.data(), 1, vocab});
    next = model::Sampler::greedy(last);
  }
  if (a.json) {
    JsonValue out;
    out.set("tokens", static_cast<std::uint64_t>(a.tokens.size()));
    out.set("vocab_size", static_cast<std::uint64_t>(vocab));
    out.set("argmax", argmax);
    out.set("largest", static_cast<double>(largest));
    if (a.greedy != 0) out.set("greedy", std::move(ids));
    if (!a.out.empty()) out.set("out", a.out);
    out.set("cache", opened.cache_json());
    std::printf("%s\n", dump_json(out, 1).c_str());
  } else if (a.greedy != 0) {
    std::printf("%s\n", line.c_str());
  } else {
    std::printf("largest logit %.9g at token %u of %zu\n", static_cast<double>(largest), argmax,
                vocab);
  }
}

}  // namespace

void add_eval(CLI::App& app, Context&) {
  auto e = std::make_shared<EvalArguments>();
  CLI::App* eval_app =
      app.add_subcommand("eval", "Measure bits per byte and perplexity on a text file");
  add_model_options(*eval_app, e->model);
  add_delay_option(*eval_app, e->model);
  eval_app->add_option("FILE", e->file, "the text")->required();
  eval_app->add_option("--window", e->window, "tokens of a window")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  eval_app->add_option("--max-tokens", e->max_tokens, "only the first tokens of the text (0: all)")
      ->capture_default_str();
  eval_app->add_flag("--json", e->json, "print one JSON object");
  eval_app->footer(
      "The n tokens of the text are cut into (n-1)/T whole windows of T tokens. Each window "
      "starts\n"
      "from an empty sequence and every token in it predicts the next one of the text.\n"
      "  mean nll = mean of -ln p(next token)\n"
      "  bits per byte = mean nll / ln 2 * n / bytes of the text\n"
      "  perplexity = e^(mean nll)");
  eval_app->callback([e] { eval(*e); });

  auto l = std::make_shared<LogitsArguments>();
  CLI::App* logits_app =
      app.add_subcommand("logits", "Write the logits after a sequence of token ids");
  add_model_options(*logits_app, l->model);
  logits_app->add_option("--tokens", l->tokens, "token ids, 1,2,3 (see waste tokenize)")
      ->required()
      ->delimiter(',');
  logits_app->add_option("--out", l->out,
                         "write the logits after the last token here: f32, little-endian, "
                         "vocab_size of them, nothing else");
  logits_app->add_flag("--all", l->all,
                       "with --out: the logits after every token, [tokens][vocab]");
  logits_app->add_option("--greedy", l->greedy, "print so many ids of the greedy continuation");
  logits_app->add_flag("--json", l->json, "print one JSON object");
  logits_app->callback([l] { logits(*l); });
}

}  // namespace waste::cli
