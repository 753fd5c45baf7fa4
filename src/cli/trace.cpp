// waste trace: what each cache policy would have kept of a recorded run.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "chart.hpp"
#include "commands.hpp"
#include "waste/engine/trace_replay.hpp"
#include "waste/format/json.hpp"
#include "waste/io/file.hpp"

namespace waste::cli {
namespace {

constexpr std::size_t apart = 100;  ///< tokens at the end that are also reported apart

struct TraceArguments {
  std::string file, svg;
  std::vector<std::uint64_t> records;
  std::vector<std::string> policies;
  bool json = false;
};

struct Row {
  std::string policy;
  std::uint64_t records = 0;
  double hit_rate = 0, hit_rate_last = 0;
};

Row make_row(const engine::RoutingTrace& trace, std::string policy, std::uint64_t records,
             const std::vector<std::uint32_t>& hits) {
  Row row{std::move(policy), records, 0, 0};
  const std::size_t n = trace.tokens(), first = n > apart ? n - apart : 0;
  std::uint64_t all = 0, last = 0;
  for (std::size_t t = 0; t < n; ++t) {
    all += hits[t];
    if (t >= first) last += hits[t];
  }
  row.hit_rate = static_cast<double>(all) / static_cast<double>(trace.demands(0, n));
  row.hit_rate_last = static_cast<double>(last) / static_cast<double>(trace.demands(first, n));
  return row;
}

void print_json(const TraceArguments& a, const engine::RoutingTrace& trace,
                const std::vector<Row>& rows) {
  JsonValue out;
  out.set("trace", a.file);
  out.set("tokens", std::uint64_t{trace.tokens()});
  out.set("layers", std::uint64_t{trace.layers});
  out.set("experts", std::uint64_t{trace.experts});
  out.set("working_set_records", trace.working_set());
  JsonValue results = JsonValue::Array{};
  for (const Row& row : rows) {
    JsonValue r;
    r.set("policy", row.policy);
    r.set("cache", row.records);
    r.set("hit_rate", row.hit_rate);
    r.set("hit_rate_last_100", row.hit_rate_last);
    results.push_back(std::move(r));
  }
  out.set("results", std::move(results));
  std::printf("%s\n", dump_json(out, 1).c_str());
}

void print_table(const TraceArguments& a, const engine::RoutingTrace& trace,
                 const std::vector<Row>& rows) {
  std::printf("%s: %zu tokens, %zu layers of up to %zu experts; one token reads %llu records\n",
              a.file.c_str(), trace.tokens(), trace.layers, trace.experts,
              static_cast<unsigned long long>(trace.working_set()));
  std::printf("  %-12s %8s %8s %9s %9s\n", "policy", "records", "sets", "hits", "last 100");
  for (const Row& row : rows) {
    std::printf("  %-12s %8llu %8.2f %7.1f %% %7.1f %%\n", row.policy.c_str(),
                static_cast<unsigned long long>(row.records),
                static_cast<double>(row.records) / static_cast<double>(trace.working_set()),
                100.0 * row.hit_rate, 100.0 * row.hit_rate_last);
  }
}

void write_svg(const TraceArguments& a, const engine::RoutingTrace& trace,
               const std::vector<Row>& rows) {
  const auto set = static_cast<double>(trace.working_set());
  Chart chart;
  chart.title = "Hit rate against cache size: " + a.file;
  chart.x = {"records in the cache", 0, set};
  chart.y = {"share of demands answered from the cache", 0, 1};
  for (const Row& row : rows) {
    if (chart.series.empty() || chart.series.back().label != row.policy) {
      chart.series.push_back({row.policy, {}});
    }
    const auto records = static_cast<double>(row.records);
    chart.series.back().points.emplace_back(records, row.hit_rate);
    chart.x.most = std::max(chart.x.most, records);
  }
  for (Series& s : chart.series) std::sort(s.points.begin(), s.points.end());
  chart.references.push_back({"working set", set, 0, set, 1});
  io::write_atomically(a.svg, chart_svg(chart));
}

void run(const TraceArguments& a) {
  const engine::RoutingTrace trace = engine::read_trace(a.file);
  std::vector<std::uint64_t> records = a.records;
  if (records.empty()) {
    const std::uint64_t set = trace.working_set();
    records = {std::max<std::uint64_t>(set / 2, 1), set, 2 * set};
  }
  const engine::ReplayContainer small(trace);
  std::vector<Row> rows;
  for (const engine::Policy policy : engine::all_policies) {
    const std::string name(to_string(policy));
    if (!a.policies.empty() &&
        std::find(a.policies.begin(), a.policies.end(), name) == a.policies.end()) {
      continue;
    }
    const auto make = engine::policy_of_layers(policy, trace.experts);
    for (const std::uint64_t n : records) {
      rows.push_back(make_row(trace, name, n, engine::replay_hits(trace, small, {make, n})));
    }
  }
  for (const std::uint64_t n : records) {
    rows.push_back(make_row(trace, "optimum", n, engine::optimal_hits(trace, n)));
  }
  if (!a.svg.empty()) write_svg(a, trace, rows);
  if (a.json) {
    print_json(a, trace, rows);
  } else {
    print_table(a, trace, rows);
  }
}

}  // namespace

void add_trace(CLI::App& app, Context&) {
  auto a = std::make_shared<TraceArguments>();
  CLI::App* sub = app.add_subcommand(
      "trace", "Replay a recorded run's choices of experts through the cache, policy by policy");
  sub->add_option("FILE", a->file, "a routing trace, see below")->required();
  sub->add_option("--cache", a->records,
                  "sizes of the cache in records, separated by commas (default: 0.5, 1 and 2 "
                  "working sets)")
      ->delimiter(',')
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 32));
  std::vector<std::string> names;
  for (const engine::Policy policy : engine::all_policies) names.emplace_back(to_string(policy));
  sub->add_option("--policy", a->policies, "only these policies, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  sub->add_option("--svg", a->svg, "also draw hit rate against cache size into this file");
  sub->add_flag("--json", a->json, "Print one JSON object");
  sub->footer(
      "A trace has one line of JSON for each token, in order:\n"
      "  {\"tok\": 0, \"layers\": [[36, 38, 85], [51, 139, 169]]}\n"
      "\"layers\" lists, for each layer that has experts, the experts that the token chose, each "
      "once.\nOther members are ignored.\n\n"
      "The replay runs the cache itself, on a temporary container of one page an expert.\n"
      "\"optimum\" is Belady's: the best that knowing the future could do. The last 100 tokens "
      "are\n"
      "reported apart: keep what you tune away from them.\n\n"
      "Example:  waste trace routing.jsonl --cache 104,208,416 --svg curves.svg");
  sub->callback([a] { run(*a); });
}

}  // namespace waste::cli
