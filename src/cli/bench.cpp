// waste bench: how fast a container decodes, and where the time goes.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "commands.hpp"
#include "open_model.hpp"
#include "progress.hpp"
#include "waste/engine/memory_plan.hpp"
#include "waste/quant/random.hpp"

namespace waste::cli {
namespace {

using Clock = std::chrono::steady_clock;
using model::Phase;

constexpr std::size_t phases = static_cast<std::size_t>(Phase::done);

struct BenchArguments {
  ModelArguments model;
  std::size_t tokens = 32, warmup = 8, repeat = 1;
  double share = 0;
  std::uint64_t seed = 1;
  std::string compare = "none";
  bool json = false, quiet = false;
};

/// One way to run the model, and what its runs measured.
struct Arm {
  std::string name;
  ModelArguments model;
  struct Run {
    double seconds = 0, cpu_seconds = 0;
    std::array<double, phases> phase{};
    engine::CacheCounters before, after;
    std::size_t tokens = 0;
    double per_second() const { return static_cast<double>(tokens) / seconds; }
    double per_token(std::uint64_t engine::CacheCounters::*counter, double unit) const {
      return static_cast<double>(after.*counter - before.*counter) * unit /
             static_cast<double>(tokens);
    }
    double hit_rate() const {
      const double hits = per_token(&engine::CacheCounters::hits, 1);
      const double all = hits + per_token(&engine::CacheCounters::misses, 1) +
                         per_token(&engine::CacheCounters::substituted, 1);
      return all == 0 ? 0 : hits / all;
    }
  };
  std::vector<Run> runs;
  std::string streaming;
  engine::CacheStatus status;
  std::size_t slots = 0;
  std::uint64_t budget_bytes = 0;

  /// The run of median speed.
  const Run& median() const {
    std::vector<const Run*> order;
    for (const Run& r : runs) order.push_back(&r);
    std::sort(order.begin(), order.end(),
              [](const Run* a, const Run* b) { return a->seconds < b->seconds; });
    return *order[order.size() / 2];
  }
};

double cpu_seconds() {
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

std::uint64_t peak_rss_bytes() {
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
  return static_cast<std::uint64_t>(use.ru_maxrss) * 1024;
}

/// Decodes random tokens one at a time: a random model fed its own output would soon repeat itself,
/// and the cache with it.
void run(Arm& arm, const BenchArguments& a, bool first) {
  const OpenedModel opened = open_model(arm.model);
  if (!opened.container) {
    throw Error(fault(Errc::unsupported, "DIR"), a.model.path, "bench wants a container");
  }
  const TextModel& model = *opened.model;
  const std::size_t steps = a.warmup + a.tokens;
  Session session = model.start(steps);
  std::vector<float> logits(model.config().vocab_size);
  quant::Random random(a.seed);
  Arm::Run out;
  out.tokens = a.tokens;
  Phase phase = Phase::done;
  Clock::time_point since{}, begin{};
  bool counted = false;
  model::Observer observer;
  // Every run decodes the same tokens: the first one's choices are all there is to record.
  std::optional<RoutingRecord> record;
  if (first) record.emplace(arm.model, model.config(), observer);
  observer.phase = [&](Phase next) {
    const auto now = Clock::now();
    if (counted && phase != Phase::done) {
      out.phase[static_cast<std::size_t>(phase)] +=
          std::chrono::duration<double>(now - since).count();
    }
    phase = next;
    since = now;
  };
  double cpu = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    if (i == a.warmup) {
      counted = true;
      out.before = opened.container->cache().counters();
      cpu = cpu_seconds();
      begin = Clock::now();
    }
    const auto token = static_cast<std::uint32_t>(random.below(model.config().vocab_size));
    model.forward(session, {&token, 1}, {logits.data(), 1, logits.size()}, observer);
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  out.cpu_seconds = cpu_seconds() - cpu;
  out.after = opened.container->cache().counters();
  if (record) record->write();
  arm.status = opened.container->cache().status();
  arm.streaming = opened.streaming_text();
  arm.slots = opened.container->cache().slots();
  engine::PlanOptions plan;
  plan.context_tokens = steps;
  plan.threads = opened.threads;
  plan.fast_prompt = arm.model.fast_prompt;
  plan.prompt_bytes = arm.model.prompt_bytes;
  plan.substitutes = arm.model.substitute_after_ms.has_value();
  arm.budget_bytes =
      engine::plan_memory(opened.container->container().manifest(), plan).fixed_bytes() +
      arm.slots * opened.container->cache().record_bytes();
  arm.runs.push_back(out);
}

std::vector<Arm> arms_of(const BenchArguments& a) {
  Arm full{a.compare == "none" ? "run" : "as asked", a.model, {}, {}, {}, 0, 0};
  if (a.share > 0) {
    const Container c = Container::open(a.model.path, {.resident_trunk = false});
    std::uint64_t records = 0;
    for (const auto& bank : c.banks()) records += bank.experts();
    full.model.cache_bytes = static_cast<std::uint64_t>(a.share * static_cast<double>(records)) *
                             c.manifest().layout.record_bytes;
  }
  std::vector<Arm> out;
  if (a.compare != "none") {
    Arm base = full;
    if (a.compare == "crc") {
      base.name = "crc off";
      base.model.verify = "off";
    } else if (a.compare == "uring") {
      base.name = "pread";
      base.model.io = "pread";
      full.name = "io_uring";
      full.model.io = "uring";
    } else {
      base.name = "synchronous";
      base.model.ahead.readers = 0;
    }
    out.push_back(base);
  }
  out.push_back(full);
  return out;
}

/// Of the arms' speeds: the second over the first, the median of the rounds.
double ratio_of(const std::vector<Arm>& arms) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < arms[0].runs.size(); ++i) {
    ratios.push_back(arms[1].runs[i].per_second() / arms[0].runs[i].per_second());
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios[ratios.size() / 2];
}

using Counters = engine::CacheCounters;

JsonValue arm_json(const Arm& arm) {
  const Arm::Run& r = arm.median();
  JsonValue out;
  out.set("name", arm.name);
  out.set("tokens_per_second", r.per_second());
  out.set("seconds", r.seconds);
  out.set("cpu_seconds_per_token", r.cpu_seconds / static_cast<double>(r.tokens));
  out.set("hit_rate", r.hit_rate());
  out.set("gb_per_token", r.per_token(&Counters::bytes_read, 1e-9));
  out.set("stall_seconds_per_token", r.per_token(&Counters::stall_ns, 1e-9));
  out.set("read_seconds_per_token", r.per_token(&Counters::read_ns, 1e-9));
  out.set("crc_seconds_per_token", r.per_token(&Counters::crc_ns, 1e-9));
  out.set("crc_records_per_token", r.per_token(&Counters::crc_records, 1));
  out.set("misses_per_token", r.per_token(&Counters::misses, 1));
  out.set("substituted_per_token", r.per_token(&Counters::substituted, 1));
  out.set("ahead_in_time_per_token", r.per_token(&Counters::ahead_in_time, 1));
  out.set("ahead_late_per_token", r.per_token(&Counters::ahead_late, 1));
  out.set("guesses_per_token", r.per_token(&Counters::guesses, 1));
  out.set("guesses_used_per_token", r.per_token(&Counters::guesses_used, 1));
  out.set("cache_records", static_cast<std::uint64_t>(arm.slots));
  out.set("budget_bytes", arm.budget_bytes);
  out.set("readers", arm.status.readers);
  out.set("read_depth", static_cast<std::uint64_t>(arm.status.depth));
  out.set("direct_io", arm.status.direct_io);
  out.set("io", io_name(arm.status));
  JsonValue profile(JsonValue::Object{});
  for (std::size_t p = 0; p < phases; ++p) profile.set(to_string(Phase(p)), r.phase[p]);
  out.set("phase_seconds", std::move(profile));
  return out;
}

void print_arm(const Arm& arm) {
  const Arm::Run& r = arm.median();
  const double token = r.seconds / static_cast<double>(r.tokens);
  std::printf("%s: %.2f tokens/s (%.1f ms, %.1f ms of CPU), %zu records cached; %s\n",
              arm.name.c_str(), r.per_second(), 1e3 * token,
              1e3 * r.cpu_seconds / static_cast<double>(r.tokens), arm.slots,
              arm.streaming.c_str());
  std::printf(
      "  hit rate %.1f %%, %.3f GB a token; stalls %.1f ms a token (%.1f %%), crc %.2f ms (%.2f "
      "%%)\n",
      100 * r.hit_rate(), r.per_token(&Counters::bytes_read, 1e-9),
      r.per_token(&Counters::stall_ns, 1e-6), 100 * r.per_token(&Counters::stall_ns, 1e-9) / token,
      r.per_token(&Counters::crc_ns, 1e-6), 100 * r.per_token(&Counters::crc_ns, 1e-9) / token);
  std::printf(
      "  of %.1f misses a token %.1f were read in time, %.1f late; guesses %.1f, used %.1f\n",
      r.per_token(&Counters::misses, 1), r.per_token(&Counters::ahead_in_time, 1),
      r.per_token(&Counters::ahead_late, 1), r.per_token(&Counters::guesses, 1),
      r.per_token(&Counters::guesses_used, 1));
  if (arm.model.substitute_after_ms) {
    std::printf("  %.1f experts a token were substituted\n",
                r.per_token(&Counters::substituted, 1));
  }
  std::printf(" ");
  for (std::size_t p = 0; p < phases; ++p) {
    if (r.phase[p] > 0)
      std::printf(" %s %.1f %%", to_string(Phase(p)), 100 * r.phase[p] / r.seconds);
  }
  std::printf("\n");
}

void bench(const BenchArguments& a) {
  std::vector<Arm> arms = arms_of(a);
  Progress line("bench", a.quiet);
  const double total = static_cast<double>(a.repeat * arms.size());
  double done = 0;
  for (std::size_t i = 0; i < a.repeat; ++i) {
    for (Arm& arm : arms) {
      run(arm, a, done == 0);
      line.update(++done, total, arm.name);
    }
  }
  line.finish();
  std::uint64_t budget = 0;
  for (const Arm& arm : arms) budget = std::max(budget, arm.budget_bytes);
  const std::uint64_t peak = peak_rss_bytes();
  const bool single = total == 1;  // the allocator keeps some of what earlier runs freed
  if (a.json) {
    JsonValue list(JsonValue::Array{}), out;
    for (const Arm& arm : arms) list.push_back(arm_json(arm));
    out.set("arms", std::move(list));
    if (arms.size() == 2) out.set("ratio", ratio_of(arms));
    out.set("rounds", static_cast<std::uint64_t>(a.repeat));
    out.set("peak_rss_bytes", single ? JsonValue(peak) : JsonValue());
    out.set("budget_bytes", budget);
    std::printf("%s\n", dump_json(out, 1).c_str());
    return;
  }
  for (const Arm& arm : arms) print_arm(arm);
  if (arms.size() == 2) {
    std::printf("ratio %.3f (%s over %s, median of %zu rounds)\n", ratio_of(arms),
                arms[1].name.c_str(), arms[0].name.c_str(), a.repeat);
  }
  if (!single) return;
  std::printf("peak RSS %.1f MB, budget %.1f MB: %.1f %%\n", static_cast<double>(peak) / 1e6,
              static_cast<double>(budget) / 1e6,
              100 * static_cast<double>(peak) / static_cast<double>(budget));
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* sub = app.add_subcommand(
      "bench", "Decode random tokens and show speed, hit rate, bytes, stalls and a profile");
  add_model_options(*sub, a->model);
  add_delay_option(*sub, a->model);
  add_record_option(*sub, a->model);
  sub->add_option("-n,--tokens", a->tokens, "tokens to measure")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  sub->add_option("--warmup", a->warmup, "tokens before them")->capture_default_str();
  sub->add_option("--share", a->share,
                  "memory for the expert cache as a share of all experts, instead of --cache")
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option(
         "--compare", a->compare,
         "measure a second arm in the same process, in turns: crc (the same without "
         "checking crc32s), read-ahead (the same with every read made by who needs it) or uring "
         "(--io uring against --io pread)")
      ->check(CLI::IsMember({"none", "crc", "read-ahead", "uring"}))
      ->capture_default_str();
  sub->add_option("--repeat", a->repeat, "rounds; each opens the container anew")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_option("--seed", a->seed, "of the tokens")->capture_default_str();
  sub->add_flag("--json", a->json, "print one JSON object");
  sub->add_flag("--quiet,-q", a->quiet, "no progress on standard error");
  sub->footer(
      "Examples:  waste bench kl8.waste --share 0.25 --direct on --compare read-ahead\n"
      "           waste bench kernels --filter vq_matvec --json kernels.jsonl");
  CLI::App* kernels = add_bench_kernels(*sub, context);
  CLI::Option* model = sub->get_option("DIR");
  model->required(false);  // kernels has none
  sub->callback([a, kernels, model] {
    if (kernels->parsed()) return;
    if (model->count() == 0) throw CLI::RequiredError(model->get_name());
    bench(*a);
  });
}

}  // namespace waste::cli
