// waste plan: how much memory a container needs, what more of it buys, and what a disk makes of
// that.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "json_of.hpp"
#include "sizes.hpp"
#include "waste/core/parallel.hpp"
#include "waste/engine/memory_plan.hpp"
#include "waste/engine/trace_replay.hpp"
#include "waste/format/json.hpp"
#include "waste/format/manifest.hpp"
#include "waste/io/file.hpp"
#include "waste/io/memory_limit.hpp"
#include "waste/io/memory_reservation.hpp"

namespace waste::cli {
namespace {

namespace fs = std::filesystem;

struct PlanArguments {
  std::string directory;
  std::uint64_t context = 4096;
  std::uint64_t budget = 0, prompt_bytes = 0;
  unsigned threads = 0;
  bool substitutes = false, fast_prompt = false;
  double disk = 0, compute = 0;  ///< GB/s, ms a token
  std::string trace, policy = "fitted";
  std::size_t skip = 0;  ///< tokens of the trace
  engine::ReadAheadOptions ahead;
  bool json = false;
};

/// What a disk and a recorded routing make of a budget.
struct Prediction {
  std::uint64_t records = 0;  ///< as many working sets of the trace as the budget has of the plan
  engine::StreamingCost cost;
};

/// The trace may be another model's: its cache gets as many working sets as the budget has. Of the
/// same model it is the very cache of a run.
std::optional<Prediction> predict(const PlanArguments& a, const format::ModelConfig& model,
                                  const engine::MemoryPlan& plan,
                                  std::optional<std::uint64_t> budget) {
  if (a.trace.empty() || !budget || !engine::use_of_budget(plan, *budget).runs) return std::nullopt;
  engine::RoutingTrace trace = engine::read_trace(a.trace);
  if (a.skip >= trace.tokens()) {
    throw Error(fault(Errc::out_of_range, "--skip", a.skip, trace.tokens() - 1), a.trace);
  }
  if (trace.layers == model.moe_layers() && trace.experts <= model.num_experts) {
    trace.experts = model.num_experts;
  }
  const engine::BudgetUse use = engine::use_of_budget(plan, *budget);
  Prediction out;
  const engine::ReplayContainer small(trace);
  engine::ReplayOptions replay;
  replay.policy = engine::policy_of_layers(*engine::policy_named(a.policy), trace.experts);
  replay.concurrent = plan.held_records;
  replay.records = std::max<std::uint64_t>(
      use.cache_records * trace.working_set() / plan.working_set_records, replay.concurrent);
  replay.ahead = a.ahead;
  const auto hits = engine::replay_hits(trace, small, replay);
  out.records = replay.records;
  const double sum =
      std::accumulate(hits.begin() + static_cast<std::ptrdiff_t>(a.skip), hits.end(), 0.0);
  // Where every expert fits, only a run's first tokens read.
  const double rate =
      use.share >= 1.0 ? 1.0 : sum / static_cast<double>(trace.demands(a.skip, trace.tokens()));
  out.cost = engine::cost_of_streaming(plan, rate, a.disk * 1e9, a.compute / 1e3);
  return out;
}

JsonValue budget_json(const engine::MemoryPlan& plan, std::uint64_t budget) {
  const engine::BudgetUse use = engine::use_of_budget(plan, budget);
  JsonValue out;
  out.set("budget_bytes", budget);
  out.set("runs", use.runs);
  out.set("missing_bytes", use.missing_bytes);
  out.set("cache_bytes", use.cache_bytes);
  out.set("cache_records", use.cache_records);
  out.set("working_sets", use.working_sets);
  out.set("share_of_experts", use.share);
  return out;
}

void print_plan_json(const PlanArguments& a, const engine::MemoryPlan& plan,
                     const io::MemoryLimit& limit, std::optional<std::uint64_t> automatic,
                     const std::optional<Prediction>& prediction) {
  JsonValue out = plan_json(plan, a.context);
  out.set("physical_bytes", limit.physical_bytes);
  out.set("available_bytes", limit.available_bytes);
  out.set("cgroup_bytes", limit.cgroup_bytes ? JsonValue(*limit.cgroup_bytes) : JsonValue());
  out.set("usable_bytes", limit.usable_bytes());
  out.set("automatic", automatic ? budget_json(plan, *automatic) : JsonValue());
  if (a.budget != 0) out.set("budget", budget_json(plan, a.budget));
  if (prediction) {
    JsonValue p;
    p.set("trace_records", prediction->records);
    p.set("hit_rate", prediction->cost.hit_rate);
    p.set("read_bytes_per_token", prediction->cost.read_bytes);
    p.set("read_seconds_per_token", prediction->cost.read_seconds);
    p.set("tokens_per_second", prediction->cost.tokens_per_second);
    out.set("prediction", std::move(p));
  }
  std::printf("%s\n", dump_json(out, 1).c_str());
}

void print_budget(const char* label, const engine::MemoryPlan& plan, std::uint64_t budget) {
  const engine::BudgetUse use = engine::use_of_budget(plan, budget);
  size_line(label, budget);
  if (!use.runs) {
    std::printf("  %-34s %22s bytes short of the floor\n", "", grouped(use.missing_bytes).c_str());
    return;
  }
  std::printf("  %-34s %22s records = %.2f working sets, %.1f %% of all experts\n",
              "  its expert cache", grouped(use.cache_records).c_str(), use.working_sets,
              100.0 * use.share);
}

void print_plan(const PlanArguments& a, const engine::MemoryPlan& plan,
                const io::MemoryLimit& limit, std::optional<std::uint64_t> automatic,
                const std::optional<Prediction>& prediction) {
  std::printf("%s at a context of %s tokens\n", a.directory.c_str(), grouped(a.context).c_str());
  size_line("resident trunk", plan.trunk_bytes);
  size_line("codebooks", plan.codebook_bytes);
  if (a.substitutes) size_line("substitutes", plan.substitute_bytes);
  size_line("KDA state", plan.kda_state_bytes);
  size_line("MLA cache", plan.mla_state_bytes);
  size_line("scratch", plan.scratch_bytes);
  size_line("a prompt's tokens at once", plan.prompt_bytes);
  size_line("the program itself", plan.program_bytes);
  size_line(grouped(plan.floor_records) + " records of experts",
            plan.floor_records * plan.record_bytes);
  size_line("floor", plan.floor_bytes(), "the least that runs");
  size_line("working set", plan.working_set_bytes(),
            grouped(plan.working_set_records) + " records, what one token reads");
  size_line("recommended", plan.recommended_bytes(), "floor + 3 working sets");
  size_line("everything", plan.everything_bytes(), "no expert is read twice");
  std::printf("\nthis machine\n");
  size_line("physical memory", limit.physical_bytes);
  if (limit.available_bytes != 0) size_line("available now", limit.available_bytes);
  if (limit.cgroup_bytes) size_line("limit of the control group", *limit.cgroup_bytes);
  if (automatic) {
    print_budget("automatic budget", plan, *automatic);
  } else {
    std::printf("  %-34s %s\n", "automatic budget", "none: 3/4 of the memory is below the floor");
  }
  if (a.budget != 0) {
    std::printf("\nasked for\n");
    print_budget("budget", plan, a.budget);
  }
  if (prediction) {
    const engine::StreamingCost& c = prediction->cost;
    std::printf("\nwith a disk of %.2f GB/s, routing as in %s, and %s\n", a.disk, a.trace.c_str(),
                a.budget != 0 ? "the budget asked for" : "the automatic budget");
    std::printf("  %-34s %20.1f %%\n", "hit rate", 100.0 * c.hit_rate);
    size_line("read a token", static_cast<std::uint64_t>(c.read_bytes));
    std::printf("  %-34s %22.3f s\n", "reading a token", c.read_seconds);
    std::printf("  %-34s %22.2f%s\n", "tokens a second", c.tokens_per_second,
                a.compute > 0 ? "" : "   at most: the time to compute is not in it");
  }
}

int run_plan(const PlanArguments& a) {
  // The manifest says it all, so that a model can be planned for before it is here.
  const fs::path manifest_path = fs::path(a.directory) / "manifest.json";
  const format::Manifest manifest = format::parse_manifest(
      io::read_text(manifest_path, format::limits::manifest_bytes), manifest_path.string());
  engine::PlanOptions plan_options;
  plan_options.context_tokens = a.context;
  plan_options.threads = a.threads == 0 ? available_threads() : a.threads;
  plan_options.fast_prompt = a.fast_prompt;
  plan_options.prompt_bytes = a.prompt_bytes;
  plan_options.substitutes = a.substitutes;
  const engine::MemoryPlan plan = engine::plan_memory(manifest, plan_options);
  const io::MemoryLimit limit = io::memory_limit();
  const auto automatic =
      engine::automatic_budget(plan, limit.free_bytes(io::MemoryReservation::others()));
  const auto prediction =
      predict(a, manifest.model, plan, a.budget != 0 ? std::optional(a.budget) : automatic);
  if (a.json) {
    print_plan_json(a, plan, limit, automatic, prediction);
  } else {
    print_plan(a, plan, limit, automatic, prediction);
  }
  return a.budget != 0 && !engine::use_of_budget(plan, a.budget).runs ? exit_failed : exit_ok;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto plan = std::make_shared<PlanArguments>();
  CLI::App* sub =
      app.add_subcommand("plan", "Show how much memory a container needs and what more buys");
  sub->add_option("container", plan->directory, "Directory with a manifest.json")->required();
  sub->add_option("--context", plan->context, "Longest sequence in tokens")->capture_default_str();
  sub->add_option("--budget", plan->budget, "Memory to plan for, in bytes or as 8GB, 8GiB")
      ->transform(CLI::AsSizeValue(true));
  sub->add_option("--prompt-memory", plan->prompt_bytes, "As of waste run, in bytes or as 64MiB")
      ->transform(CLI::AsSizeValue(true));
  sub->add_option("--threads", plan->threads, "Threads (default: all)");
  sub->add_flag("--substitutes", plan->substitutes,
                "With the substitutes of every expert in memory, as waste run --substitute-after");
  sub->add_flag("--fast-prompt", plan->fast_prompt, "With the memory of waste run --fast-prompt");
  CLI::Option* disk = sub->add_option("--disk", plan->disk,
                                      "With --trace: how fast the disk reads, in GB/s (10^9 bytes)")
                          ->check(CLI::Range(1e-3, 1e4));
  CLI::Option* trace = sub->add_option(
      "--trace", plan->trace,
      "With --disk: predict hit rate, bytes and tokens a second from a routing trace (see waste "
      "trace), replayed with as many working sets as the budget holds");
  disk->needs(trace);
  trace->needs(disk);
  sub->add_option("--skip", plan->skip,
                  "With --trace: tokens at its start that fill the cache and are not counted")
      ->needs(trace);
  std::vector<std::string> policies;
  for (const engine::Policy p : engine::all_policies) policies.emplace_back(to_string(p));
  sub->add_option("--cache-policy", plan->policy, "With --trace: as for waste run")
      ->needs(trace)
      ->check(CLI::IsMember(policies))
      ->capture_default_str();
  sub->add_option("--readers", plan->ahead.readers, "With --trace: as for waste run")
      ->needs(trace)
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  sub->add_option("--read-depth", plan->ahead.depth, "With --trace: as for waste run")
      ->needs(trace)
      ->capture_default_str();
  sub->add_option("--compute", plan->compute,
                  "With --disk: milliseconds a token takes whose experts are all in memory")
      ->needs(disk)
      ->check(CLI::Range(0.0, 1e7));
  sub->add_flag("--json", plan->json, "Print one JSON object");
  sub->footer(
      "A directory with nothing but a manifest.json will do. --trace predicts exactly the hits of "
      "a\n"
      "run of the same model with --threads 1 whose tokens were recorded one at a time (waste "
      "bench\n"
      "--record-trace); more threads ask in an order of their own.\n"
      "Exit code 1 when --budget is below the floor.");
  sub->callback([plan, &context] { context.exit_code = run_plan(*plan); });
}

}  // namespace waste::cli
