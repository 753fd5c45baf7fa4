#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <regex>

#include "registry.hpp"
#include "report.hpp"
#include "waste/core/error.hpp"
#include "waste/core/parallel.hpp"
#include "waste/io/file.hpp"

namespace waste::bench {
namespace {

const char usage[] =
    "[--filter REGEX] [--json FILE] [--svg FILE] [--min-time SECONDS] [--repetitions N] [--list]\n"
    "Cases are named op/format/shape/tier/precision/cache/threads; the filter may match any part.\n"
    "A case's time is the fastest of all its runs; cases that compare take turns.\n";

double number(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(value > 0) || !(value <= 1e6)) {
    throw Error(fault(Errc::bad_argument, "option"), {}, flag + " wants a number above 0");
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options out;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) {
        throw Error(fault(Errc::bad_argument, "option"), {}, flag + " wants a value");
      }
      return argv[++i];
    };
    if (flag == "--filter") {
      out.filter = value();
    } else if (flag == "--json") {
      out.json = value();
    } else if (flag == "--svg") {
      out.svg = value();
    } else if (flag == "--min-time") {
      out.min_time_s = number(flag, value());
    } else if (flag == "--repetitions") {
      out.repetitions = static_cast<unsigned>(std::max(1.0, number(flag, value())));
    } else if (flag == "--list") {
      out.list = true;
    } else {
      throw Error(fault(Errc::bad_argument, "option"), {}, "unknown " + flag + "\n" + usage);
    }
  }
  return out;
}

std::regex expression(const std::string& filter) {
  try {
    return std::regex(filter, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& e) {
    throw Error(fault(Errc::bad_argument, "filter"), {}, filter + ": " + e.what());
  }
}

/// Keeps the fastest single run of each case; prints nothing itself.
class FastestRun : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

/// Times the cases in turn: Google Benchmark chooses the iterations and mixes the repetitions.
std::vector<double> time_cases(const std::vector<Case*>& cases) {
  std::vector<double> best(cases.size(), 1e300);
  benchmark::ClearRegisteredBenchmarks();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    benchmark::RegisterBenchmark(std::to_string(i).c_str(), [&, i](benchmark::State& state) {
      for (auto _ : state) {
        const auto start = std::chrono::steady_clock::now();
        cases[i]->run();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        state.SetIterationTime(taken.count());
        best[i] = std::min(best[i], taken.count() * 1e9);
      }
    })->UseManualTime();
  }
  FastestRun reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return best;
}

}  // namespace

std::string Labels::name() const {
  return op + "/" + format + "/" + shape + "/" + tier + "/" + precision + "/" + cache + "/" +
         std::to_string(threads);
}

std::vector<Group>& groups() {
  static std::vector<Group> list;
  return list;
}
bool add(Group group) {
  groups().push_back(std::move(group));
  return true;
}

std::size_t ram_bytes() {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::size_t known = cache > 0 ? static_cast<std::size_t>(cache) : std::size_t{32} << 20;
  return std::clamp<std::size_t>(6 * known, std::size_t{128} << 20, std::size_t{512} << 20);
}
unsigned all_threads() { return available_threads(); }

bool run(const Options& options) {
  [[maybe_unused]] static const bool added = [] {
    add_read();
    add_vq();
    add_trunk();
    add_bytes();
    add_expert();
    add_step();
    return true;
  }();
  const std::regex filter = expression(options.filter);
  // What is measured of each group: what the filter matches, and the read bandwidth.
  std::vector<std::vector<std::size_t>> chosen;
  std::size_t matched = 0;
  for (const Group& group : groups()) {
    auto& cases = chosen.emplace_back();
    for (std::size_t i = 0; i < group.labels.size(); ++i) {
      const bool wanted = std::regex_search(group.labels[i].name(), filter);
      if (wanted || (group.labels[i].op == "read" && !options.list)) cases.push_back(i);
      matched += wanted;
    }
  }
  if (!matched) {
    throw Error(fault(Errc::bad_argument, "filter"), {}, options.filter + " matches no case");
  }
  if (options.list) {
    for (std::size_t g = 0; g < chosen.size(); ++g) {
      for (const std::size_t i : chosen[g]) {
        std::printf("%s\n", groups()[g].labels[i].name().c_str());
      }
    }
    return true;
  }

  std::vector<std::string> args = {"bench",
                                   "--benchmark_min_time=" + std::to_string(options.min_time_s),
                                   "--benchmark_repetitions=" + std::to_string(options.repetitions),
                                   "--benchmark_enable_random_interleaving=true"};
  std::vector<char*> pointers;
  for (auto& a : args) pointers.push_back(a.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());

  std::vector<Result> results;
  for (std::size_t g = 0; g < chosen.size(); ++g) {
    if (chosen[g].empty()) continue;
    const Group& group = groups()[g];
    if (!options.quiet) {
      std::fprintf(stderr, "%s and %zu more\n", group.labels[chosen[g][0]].name().c_str(),
                   chosen[g].size() - 1);
    }
    std::vector<Case> cases = group.make();
    std::vector<Case*> timed;
    for (const std::size_t i : chosen[g]) timed.push_back(&cases[i]);
    const std::vector<double> ns = time_cases(timed);
    for (std::size_t k = 0; k < timed.size(); ++k) {
      const Case& c = *timed[k];
      Result r;
      r.labels = group.labels[chosen[g][k]];
      r.ns = ns[k];
      r.weights = c.weights;
      r.payload_bytes = c.payload_bytes;
      c.run();  // the cases of a group share their output
      r.rel_error = c.error ? c.error() : 0;
      r.failed = !(r.rel_error <= c.tolerance);
      results.push_back(std::move(r));
    }
  }
  relate(results);
  if (options.json == "-") {
    std::printf("%s", json_lines(results).c_str());
  } else {
    print_table(results);
    if (!options.json.empty()) io::write_atomically(options.json, json_lines(results));
  }
  if (!options.svg.empty()) io::write_atomically(options.svg, roofline(results));
  return std::none_of(results.begin(), results.end(), [](const Result& r) { return r.failed; });
}

int run(int argc, char** argv) {
  try {
    return run(parse(argc, argv)) ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}

}  // namespace waste::bench
