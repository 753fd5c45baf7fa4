// waste bench kernels: the cases of bench/, where the command was built with Google Benchmark.
#include <cstdio>
#include <memory>

#include "commands.hpp"

#ifdef WASTE_BENCH_KERNELS
#include "registry.hpp"

namespace waste::cli {

CLI::App* add_bench_kernels(CLI::App& parent, Context& context) {
  auto options = std::make_shared<bench::Options>();
  CLI::App* sub = parent.add_subcommand(
      "kernels", "Time every kernel on every tier of this machine, beside the read bandwidth");
  sub->add_option("--filter", options->filter,
                  "Regular expression that may match any part of a case's name, "
                  "op/format/shape/tier/precision/cache/threads")
      ->capture_default_str();
  sub->add_option("--json", options->json,
                  "Write one JSON object a line to this file, - for standard output; waste report "
                  "--kernels draws it");
  sub->add_option("--svg", options->svg, "Write the roofline to this file");
  sub->add_option("--min-time", options->min_time_s, "Seconds of one repetition of a case")
      ->check(CLI::Range(1e-6, 3600.0))
      ->capture_default_str();
  sub->add_option("--repetitions", options->repetitions,
                  "Repetitions of a case; the fastest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_flag("--list", options->list, "Print the names of the cases and measure nothing");
  sub->add_flag("--quiet,-q", options->quiet, "Nothing on standard error");
  sub->footer(
      "Every result is checked against the reference after it was timed: exit code 1 where one is "
      "wrong.\nExample:  waste bench kernels --filter 'vq_matvec/VQ3R.*/ram' --json kernels.jsonl");
  sub->callback([options, &context] {
    if (!bench::run(*options)) {
      std::fprintf(stderr, "waste: a kernel's result was wrong\n");
      context.exit_code = exit_failed;
    }
  });
  return sub;
}

}  // namespace waste::cli
#else
#include "waste/core/error.hpp"

namespace waste::cli {

CLI::App* add_bench_kernels(CLI::App& parent, Context&) {
  CLI::App* sub = parent.add_subcommand("kernels", "Time every kernel (not in this build)");
  sub->prefix_command();
  sub->callback([] {
    throw Error(fault(Errc::unsupported, "bench kernels"), {},
                "this waste was built without Google Benchmark: configure with -Dbench=enabled");
  });
  return sub;
}

}  // namespace waste::cli
#endif
