// waste synth: random containers of real shapes, to measure on.
#include <cstdio>
#include <map>
#include <memory>

#include "commands.hpp"
#include "progress.hpp"
#include "waste/convert/synthetic.hpp"

namespace waste::cli {
namespace {

const std::map<std::string, convert::SyntheticShape> shapes = {
    {"kimi-linear", convert::SyntheticShape::kimi_linear}, {"k3", convert::SyntheticShape::k3}};
const std::map<std::string, format::ExpertQuant> formats = {
    {"vq3r", format::vq3r}, {"vq4p", format::vq4p}, {"vq2r", format::vq2r}};

struct Arguments {
  std::string directory, shape = "kimi-linear", format = "vq3r";
  convert::SyntheticOptions options;
  bool quiet = false;
};

void run(Arguments& a) {
  a.options.shape = shapes.at(a.shape);
  a.options.quant = formats.at(a.format);
  Progress line("synth", a.quiet);
  a.options.progress = [&](std::uint64_t done, std::uint64_t total) {
    line.update(static_cast<double>(done), static_cast<double>(total),
                std::to_string(done / 1000000) + " of " + std::to_string(total / 1000000) + " MB");
  };
  convert::write_synthetic(a.directory, a.options);
  line.finish();
}

}  // namespace

void add_synth(CLI::App& app, Context&) {
  auto a = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand(
      "synth", "Write a random container with a real model's dimensions, for measuring speed");
  sub->add_option("OUT", a->directory, "directory to create")->required();
  sub->add_option("--shape", a->shape, "whose dimensions")
      ->check(CLI::IsMember({"kimi-linear", "k3"}))
      ->capture_default_str();
  sub->add_option("--layers", a->options.layers,
                  "layers, the first of them dense (default: as many as the model has)");
  sub->add_option("--experts", a->options.experts,
                  "experts a layer (default: as many as the model has)");
  sub->add_option("--vocab", a->options.vocab,
                  "vocabulary (default: the model's 163840, which makes embedding and head large)");
  sub->add_option("--format", a->format, "format of the experts")
      ->check(CLI::IsMember({"vq3r", "vq4p", "vq2r"}))
      ->capture_default_str();
  sub->add_flag("--substitutes", a->options.substitutes,
                "also write substitutes of about 1 bit a weight, for --substitute-after");
  sub->add_option("--seed", a->options.seed, "the same seed gives the same bytes")
      ->capture_default_str();
  sub->add_option("--jobs,-j", a->options.jobs, "threads (0: all)")->capture_default_str();
  sub->add_flag("--quiet,-q", a->quiet, "no progress on standard error");
  sub->footer("Example:  waste synth kl8.waste --layers 8 --experts 64 --vocab 8192");
  sub->callback([a] { run(*a); });
}

}  // namespace waste::cli
