#include <cstdio>
#include <exception>

#include "commands.hpp"
#include "waste/version.hpp"

int main(int argc, char** argv) {
  CLI::App app("waste: convert, verify and run WASTE containers", "waste");
  app.set_version_flag("--version", waste::version_string);
  app.require_subcommand(1);
  waste::cli::Context context;
  for (const waste::cli::AddCommand add : waste::cli::commands) add(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : waste::cli::exit_usage;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "waste: %s\n", e.what());
    return waste::cli::exit_failed;
  }
  return context.exit_code;
}
