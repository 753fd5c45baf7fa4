// waste calibrate: runs a model over text and stores what its matrices are fed.
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "open_model.hpp"
#include "progress.hpp"
#include "waste/convert/checkpoint.hpp"
#include "waste/io/file.hpp"
#include "waste/model/calibrate.hpp"
#include "waste/text/tokenizer.hpp"

namespace waste::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string text, out;
  model::CalibrateOptions options;
  std::uint64_t max_tokens = 0;
  bool no_trunk = false, json = false, quiet = false;
};

/// Text is read whole; a larger file is refused.
constexpr std::uint64_t max_text_bytes = std::uint64_t{1} << 30;

std::string blocks_text(std::size_t block) {
  return block <= 1 ? "diagonals" : "blocks of up to " + std::to_string(block) + " columns";
}

void run(Arguments& a) {
  a.options.trunk = !a.no_trunk;
  const OpenedModel opened = open_model(a.model);
  const TextModel& model = *opened.model;
  const JsonValue config = opened.container
                               ? opened.container->container().manifest().config
                               : convert::Checkpoint::open(opened.directory).container_config();
  const model::CalibrationPlan plan = model::plan_calibration(model.config(), a.options);
  if (!a.quiet) {
    std::fprintf(stderr, "memory: at most %.1f MB of moments besides the model: %s%s\n",
                 static_cast<double>(plan.bytes) / 1e6, blocks_text(plan.block).c_str(),
                 plan.expert_block == 0
                     ? ""
                     : ("; of single experts " + blocks_text(plan.expert_block)).c_str());
  }
  const Tokenizer tokenizer = Tokenizer::open(a.model.path);
  std::vector<std::uint32_t> tokens = tokenizer.encode(io::read_text(a.text, max_text_bytes));
  if (a.max_tokens != 0 && a.max_tokens < tokens.size()) tokens.resize(a.max_tokens);
  Progress progress("calibrate", a.quiet);
  a.options.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(static_cast<double>(done), static_cast<double>(total),
                    std::to_string(done) + " of " + std::to_string(total) + " tokens");
  };
  convert::Calibration found = model::calibrate(model, tokens, a.options);
  progress.finish();
  found.config_crc32 = convert::config_identity(config);
  convert::write_calibration(a.out, model.config(), found);

  std::size_t met = 0, of_experts = 0;
  for (const std::uint64_t n : found.uses) met += n != 0;
  for (const auto& [key, m] : found.moments) of_experts += key.expert != convert::MomentKey::all;
  const std::uint64_t bytes = io::File::open(a.out).size();
  if (a.json) {
    JsonValue out;
    out.set("tokens", found.tokens);
    out.set("experts", static_cast<std::uint64_t>(found.uses.size()));
    out.set("experts_met", static_cast<std::uint64_t>(met));
    out.set("moments", static_cast<std::uint64_t>(found.moments.size()));
    out.set("moments_of_experts", static_cast<std::uint64_t>(of_experts));
    out.set("block", static_cast<std::uint64_t>(plan.block));
    out.set("expert_block", static_cast<std::uint64_t>(plan.expert_block));
    out.set("memory_bytes", plan.bytes);
    out.set("file_bytes", bytes);
    std::printf("%s\n", dump_json(out).c_str());
    return;
  }
  std::printf(
      "%s: %llu tokens, %zu of %zu experts met, %zu moments, %zu of them of single experts, "
      "%.1f MB\n",
      a.out.c_str(), static_cast<unsigned long long>(found.tokens), met, found.uses.size(),
      found.moments.size(), of_experts, static_cast<double>(bytes) / 1e6);
}

}  // namespace

void add_calibrate(CLI::App& app, Context&) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "calibrate", "Run a model over text and store what waste convert --calibration wants");
  add_model_options(*cmd, a->model);
  cmd->add_option("TEXT", a->text, "the text; none that a later measurement uses")->required();
  cmd->add_option("--out", a->out, "the calibration file to write")->required();
  cmd->add_option("--window", a->options.window, "tokens of a window; each starts from nothing")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  cmd->add_option("--max-tokens", a->max_tokens, "only the first tokens of the text (0: all)")
      ->capture_default_str();
  cmd->add_option("--memory", a->options.memory_bytes,
                  "memory for moments, in bytes or as 512MiB, 8GB: how large their blocks are")
      ->transform(CLI::AsSizeValue(true))
      ->capture_default_str();
  cmd->add_flag("--no-trunk", a->no_trunk, "only the experts' inputs");
  cmd->add_flag("--json", a->json, "print one JSON object");
  cmd->add_flag("--quiet,-q", a->quiet, "nothing on standard error");
  cmd->footer(
      "Keeps, for the inputs x of every site of every layer, the sums of x x^T (in blocks along "
      "the\n"
      "diagonal, as large as --memory holds), the same for single experts that saw enough inputs,\n"
      "and how often each expert was used. The same for any --threads.");
  cmd->callback([a] { run(*a); });
}

}  // namespace waste::cli
