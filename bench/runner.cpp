#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <regex>

#include "registry.hpp"
#include "report.hpp"
#include "waste/core/error.hpp"
#include "waste/core/parallel.hpp"

namespace waste::bench {
namespace {

struct Options {
  std::string filter = ".*", json, svg, min_time = "0.02";
  std::string repetitions = "7";
  bool list = false;
};

const char usage[] =
    "bench_kernels [--filter REGEX] [--json FILE] [--svg FILE] [--min-time SECONDS]\n"
    "              [--repetitions N] [--list]\n"
    "Cases are named op/format/shape/tier/precision/cache/threads; the filter may match any part.\n"
    "A case's time is the fastest of all its runs; cases that compare take turns.\n";

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
      out.min_time = value();
    } else if (flag == "--repetitions") {
      out.repetitions = value();
    } else if (flag == "--list") {
      out.list = true;
    } else {
      throw Error(fault(Errc::bad_argument, "option"), {}, "unknown " + flag + "\n" + usage);
    }
  }
  return out;
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

int run(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    add_read();
    add_vq();
    add_trunk();
    add_bytes();
    add_expert();
    add_step();
    const std::regex filter(options.filter, std::regex::ECMAScript | std::regex::icase);
    // The read bandwidth is always measured: everything from RAM is compared with it.
    const auto wanted = [&](const Labels& l) {
      return l.op == "read" || std::regex_search(l.name(), filter);
    };

    std::vector<std::string> args = {argv[0], "--benchmark_min_time=" + options.min_time,
                                     "--benchmark_repetitions=" + options.repetitions,
                                     "--benchmark_enable_random_interleaving=true"};
    std::vector<char*> pointers;
    for (auto& a : args) pointers.push_back(a.data());
    int count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());

    std::vector<Result> results;
    for (const Group& group : groups()) {
      std::vector<std::size_t> chosen;
      for (std::size_t i = 0; i < group.labels.size(); ++i) {
        if (wanted(group.labels[i])) chosen.push_back(i);
      }
      if (options.list) {
        for (const std::size_t i : chosen) std::printf("%s\n", group.labels[i].name().c_str());
        continue;
      }
      if (chosen.empty()) continue;
      std::fprintf(stderr, "%s and %zu more\n", group.labels[chosen[0]].name().c_str(),
                   chosen.size() - 1);
      std::vector<Case> cases = group.make();
      std::vector<Case*> timed;
      for (const std::size_t i : chosen) timed.push_back(&cases[i]);
      const std::vector<double> ns = time_cases(timed);
      for (std::size_t k = 0; k < chosen.size(); ++k) {
        const Case& c = *timed[k];
        Result r;
        r.labels = group.labels[chosen[k]];
        r.ns = ns[k];
        r.weights = c.weights;
        r.payload_bytes = c.payload_bytes;
        c.run();  // the cases of a group share their output
        r.rel_error = c.error ? c.error() : 0;
        r.failed = !(r.rel_error <= c.tolerance);
        results.push_back(std::move(r));
      }
    }
    if (options.list) return 0;
    relate(results);
    print_table(results);
    if (!options.json.empty()) write_json(results, options.json);
    if (!options.svg.empty()) write_roofline(results, options.svg);
    return std::any_of(results.begin(), results.end(), [](const Result& r) { return r.failed; });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}

}  // namespace waste::bench
