// The subcommands of the command `waste`: each adds itself to the CLI11 application.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

namespace waste::cli {

/// Exit codes of the command.
inline constexpr int exit_ok = 0;
inline constexpr int exit_failed = 1;  ///< an error, printed on standard error
inline constexpr int exit_found = 2;   ///< `verify` found damage
inline constexpr int exit_usage = 64;  ///< the command line cannot be understood

/// The exit code of the subcommand that ran.
struct Context {
  int exit_code = exit_ok;
};

/// Adds one subcommand (or a family of them) to `app`; its callback sets context.exit_code.
using AddCommand = void (*)(CLI::App& app, Context& context);

void add_convert(CLI::App& app, Context& context);    // convert.cpp
void add_calibrate(CLI::App& app, Context& context);  // calibrate.cpp
void add_verify(CLI::App& app, Context& context);     // verify.cpp
void add_info(CLI::App& app, Context& context);       // info.cpp
void add_plan(CLI::App& app, Context& context);       // plan.cpp
void add_run(CLI::App& app, Context& context);        // run.cpp: run
void add_eval(CLI::App& app, Context& context);       // eval.cpp: eval, logits
void add_trace(CLI::App& app, Context& context);      // trace.cpp
void add_report(CLI::App& app, Context& context);     // report.cpp
void add_tokenize(CLI::App& app, Context& context);   // tokenize.cpp: tokenize, detokenize
void add_synth(CLI::App& app, Context& context);      // synth.cpp
void add_bench(CLI::App& app, Context& context);      // bench.cpp

/// Adds `kernels` to its parent, the subcommand bench (bench_kernels.cpp).
CLI::App* add_bench_kernels(CLI::App& parent, Context& context);

/// In the order that `waste --help` shows them.
extern const std::vector<AddCommand> commands;

}  // namespace waste::cli
