#include "open_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "waste/core/parallel.hpp"
#include "waste/engine/memory_plan.hpp"
#include "waste/format/family.hpp"
#include "waste/io/memory_limit.hpp"
#include "waste/model/checkpoint_weights.hpp"

namespace waste::cli {
namespace {

namespace fs = std::filesystem;

const std::map<std::string, kernels::Precision> precisions = {
    {"exact", kernels::Precision::exact},
    {"hilo14", kernels::Precision::hilo14},
    {"split8", kernels::Precision::split8}};
const std::map<std::string, engine::Policy> policies = [] {
  std::map<std::string, engine::Policy> out;
  for (const engine::Policy policy : engine::all_policies) out.emplace(to_string(policy), policy);
  return out;
}();

const std::map<std::string, engine::ReadWith> ways_to_read = {{"pread", engine::ReadWith::pread},
                                                              {"uring", engine::ReadWith::uring}};
const std::map<std::string, io::Verify> verify_modes = {
    {"off", io::Verify::off}, {"once", io::Verify::once}, {"always", io::Verify::always}};

template <class Map>
std::vector<std::string> names_of(const Map& map) {
  std::vector<std::string> out;
  for (const auto& [name, value] : map) out.push_back(name);
  return out;
}

std::string text_of(const engine::MemoryPlan& plan) {
  return "weights in memory " +
         std::to_string(plan.trunk_bytes + plan.codebook_bytes + plan.substitute_bytes) +
         " bytes, state " + std::to_string(plan.state_bytes()) + ", scratch " +
         std::to_string(plan.scratch_bytes + plan.prompt_bytes) + ", the program " +
         std::to_string(plan.program_bytes) + ", at least " + std::to_string(plan.floor_records) +
         " experts " + std::to_string(plan.floor_records * plan.record_bytes);
}

/// What --cache, --budget or the automatic budget gives the expert cache; reserves all of it.
std::uint64_t reserve_cache(const Container& container, const ModelArguments& a, OpenedModel& out) {
  engine::PlanOptions options;
  options.context_tokens = a.context;
  options.threads = out.threads;
  options.fast_prompt = a.fast_prompt;
  options.prompt_bytes = a.prompt_bytes;
  options.substitutes = a.substitute_after_ms.has_value();
  const engine::MemoryPlan plan = engine::plan_memory(container.manifest(), options);
  std::uint64_t cache = a.cache_bytes;
  const auto of_budget = [&](std::uint64_t budget) {
    const engine::BudgetUse use = engine::use_of_budget(plan, budget);
    if (!use.runs) {
      throw Error(fault(Errc::over_budget, "--budget", budget, plan.floor_bytes()), a.path,
                  "below the floor: " + text_of(plan));
    }
    return use.cache_bytes;
  };
  out.reservation = io::MemoryReservation([&](std::uint64_t others) {
    if (a.budget_bytes != 0) {
      cache = of_budget(a.budget_bytes);
    } else if (cache == 0) {
      const std::uint64_t free = io::memory_limit().free_bytes(others);
      const auto budget = engine::automatic_budget(plan, free);
      if (!budget) {
        throw Error(fault(Errc::over_budget, "memory", free, plan.floor_bytes()), a.path,
                    "3/4 of the memory that is free is below the floor (" + text_of(plan) +
                        "); other processes have reserved " + std::to_string(others) +
                        " bytes more; see waste plan, or give --cache");
      }
      cache = of_budget(*budget);
    }
    return plan.fixed_bytes() + std::min(cache, plan.all_records * plan.record_bytes);
  });
  // A small --cache still has room for an expert a thread, perhaps.
  out.prompt_bytes = plan.prompt_bytes;
  out.experts_held =
      cache / plan.record_bytes < plan.held_records ? out.threads : plan.held_records;
  return cache;
}

/// Reads usage.waste and has its hottest experts read in the background; with `learn` also counts
/// in it from now on. A file that cannot be used is an error only for who wants to write it.
void start_warm(OpenedModel& out, const Container& container, bool learn) {
  const fs::path file = out.directory / "usage.waste";
  if (!learn && !fs::exists(file)) return;
  try {
    out.usage = std::make_shared<engine::UsageFile>(file, container.model());
  } catch (const Error& e) {
    if (learn) throw;
    out.usage_refused = e.what();
    return;
  }
  out.container->warm(out.usage->hottest(out.container->cache().slots()));
  if (learn) out.container->learn(out.usage);
}

/// Whether the page cache could not hold the expert banks anyway.
bool outgrows_memory(const fs::path& directory) {
  std::uint64_t bytes = 0;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(directory, ec)) {
    if (entry.path().filename().string().starts_with("experts-L")) bytes += entry.file_size(ec);
  }
  const std::uint64_t usable = io::memory_limit().usable_bytes();
  return usable != 0 && bytes > usable;
}

}  // namespace

void add_model_options(CLI::App& app, ModelArguments& a) {
  app.add_option(
         "DIR", a.path,
         "a container (manifest.json), or a source checkpoint (config.json and safetensors), "
         "which is run in float, all of it in memory")
      ->required();
  app.add_option("--threads", a.threads, "threads (default: all); never changes the result");
  CLI::Option* budget =
      app.add_option(
             "--budget", a.budget_bytes,
             "memory for all of it: weights that stay, state, scratch and expert cache, in "
             "bytes or as 512MiB, 8GB; refused with the numbers where it is below the floor")
          ->transform(CLI::AsSizeValue(true));
  app.add_option(
         "--cache", a.cache_bytes,
         "memory for the expert cache, in bytes or as 512MiB, 8GB (default: what waste plan "
         "calls the automatic budget)")
      ->transform(CLI::AsSizeValue(true))
      ->excludes(budget);
  app.add_option("--cache-policy", a.policy, "which expert a full cache gives up")
      ->check(CLI::IsMember(names_of(policies)))
      ->capture_default_str();
  app.add_option("--context", a.context, "the longest sequence, prompt included, in tokens")
      ->capture_default_str();
  app.add_flag("--fast-prompt", a.fast_prompt,
               "decode each expert once for many tokens of a prompt at a time: reads less and "
               "computes faster; logits differ by rounding from those of one token at a time");
  app.add_option(
         "--prompt-memory", a.prompt_bytes,
         "memory for many tokens of a prompt at once, at most (default: 1/32 of the weights "
         "that stay); more reads less where the cache is small, above all with --fast-prompt")
      ->transform(CLI::AsSizeValue(true));
  app.add_option("--precision", a.precision,
                 "of the expert lookup tables: exact (f32), hilo14 (about 0.05 % error), split8 "
                 "(about 1.5 %, fastest)")
      ->check(CLI::IsMember(names_of(precisions)))
      ->capture_default_str();
  app.add_option("--readers", a.ahead.readers,
                 "threads that read experts ahead of their use (0: none)")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--read-depth", a.ahead.depth,
                 "experts read ahead at most, within the cache's memory")
      ->capture_default_str();
  app.add_option(
         "--io", a.io,
         "how readers read: pread (one read at a time for each) or uring (io_uring: together "
         "they keep --read-depth reads in flight on each drive; pread, and it is said, where "
         "the system refuses)")
      ->check(CLI::IsMember(names_of(ways_to_read)))
      ->capture_default_str();
  app.add_option("--look-ahead", a.ahead.look_ahead,
                 "experts of the next layer to guess, by its own router (0: none)")
      ->capture_default_str();
  app.add_option("--direct", a.direct,
                 "bypass the page cache for experts: auto does where the container is larger than "
                 "this machine's memory")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--substitute-after", a.substitute_after_ms,
                 "where an expert has not been read after so many milliseconds, use its substitute "
                 "(convert --substitutes), which stays in memory; the answer then depends on the "
                 "disk's speed (default: off)")
      ->check(CLI::Range(0, 3600000));
  app.add_flag("--verify{always}", a.verify,
               "when the crc32 of an expert record is checked: --verify=once (the default) at its "
               "first read, --verify=always (or --verify) at every read, --verify=off")
      ->check(CLI::IsMember(names_of(verify_modes)));
  app.add_flag(
      "--eps-compat", a.eps_compat,
      "rms_norm_eps for the q_a and kv_a norms and 1e-12 in the L2 norm, to compare with an "
      "engine that has them (published code: 1e-6 and 1e-6)");
}

void add_delay_option(CLI::App& app, ModelArguments& a) {
  app.add_option("--disk-delay", a.disk_delay_ms,
                 "milliseconds that every read of an expert takes longer: a slower disk to measure "
                 "with")
      ->check(CLI::Range(0.0, 60000.0));
}

void add_record_option(CLI::App& app, ModelArguments& a) {
  app.add_option("--record-trace", a.record_trace,
                 "write the experts that each token chooses into this file, as waste trace and "
                 "waste plan --trace read it");
}

RoutingRecord::RoutingRecord(const ModelArguments& a, const format::ModelConfig& config,
                             model::Observer& observer)
    : file_(a.record_trace) {
  if (file_.empty()) return;
  std::vector<std::uint32_t> layers;
  for (std::uint32_t l = 0; l < config.num_hidden_layers; ++l) {
    if (config.is_moe(l)) layers.push_back(l);
  }
  recorder_ = std::make_shared<engine::TraceRecorder>(std::move(layers));
  observer.routing = [recorder = recorder_](std::uint32_t layer, const nn::Routing& routing) {
    recorder->record(layer, routing.ids);
  };
}

void RoutingRecord::write() const {
  if (recorder_) recorder_->write(file_);
}

OpenedModel open_model(const ModelArguments& a) {
  OpenedModel out;
  out.directory = a.path;
  out.threads = a.threads == 0 ? available_threads() : a.threads;
  model::ModelOptions options;
  options.exec.threads = out.threads;
  options.exec.precision = precisions.at(a.precision);
  options.fast_prompt = a.fast_prompt;
  std::shared_ptr<model::Weights> weights;
  if (fs::exists(out.directory / "manifest.json")) {
    OpenOptions open;
    open.verify_records = verify_modes.at(a.verify);
    open.threads = out.threads;
    open.direct_io = a.direct == "on" || (a.direct == "auto" && outgrows_memory(out.directory));
    const Container container = Container::open(out.directory, open);
    engine::CacheOptions cache;
    cache.budget_bytes = reserve_cache(container, a, out);
    cache.concurrent = out.experts_held;
    options.experts_at_once = out.experts_held;
    options.prompt_bytes = out.prompt_bytes;
    cache.make_policy =
        engine::policy_of_layers(policies.at(a.policy), container.model().num_experts);
    cache.ahead = a.ahead;
    cache.ahead.with = ways_to_read.at(a.io);
    cache.read_delay = std::chrono::microseconds(std::llround(a.disk_delay_ms * 1000));
    if (a.substitute_after_ms) {
      cache.substitutes =
          std::make_shared<const io::Substitutes>(io::Substitutes::open(container, out.threads));
      cache.substitute_after = std::chrono::milliseconds(*a.substitute_after_ms);
    }
    out.container = std::make_shared<model::ContainerWeights>(container, cache);
    out.direct_refused = open.direct_io && !out.container->cache().status().direct_io;
    weights = out.container;
    start_warm(out, container, a.learn);
  } else if (fs::exists(out.directory / "config.json")) {
    const auto source = convert::Checkpoint::open(out.directory);
    format::require_kimi(source.model(), "the text model");  // before all of it is read
    weights = std::make_shared<model::CheckpointWeights>(source, out.threads,
                                                         io::memory_limit().usable_bytes() / 4 * 3);
  } else {
    throw Error(fault(Errc::not_found, "DIR"), a.path,
                "neither manifest.json (a container) nor config.json (a checkpoint) is there");
  }
  if (a.eps_compat) options.use_compat_epsilons(weights->config());
  out.model = std::make_unique<TextModel>(std::move(weights), options);
  return out;
}

const char* io_name(const engine::CacheStatus& status) {
  return status.with == engine::ReadWith::uring ? "io_uring" : "pread";
}

JsonValue OpenedModel::cache_json() const {
  if (!container) return JsonValue();
  const engine::CacheCounters c = container->cache().counters();
  JsonValue out;
  out.set("slots", static_cast<std::uint64_t>(container->cache().slots()));
  out.set("record_bytes", container->cache().record_bytes());
  out.set("hits", c.hits);
  out.set("misses", c.misses);
  const std::uint64_t answers = c.hits + c.misses + c.substituted;
  const auto share = [answers](std::uint64_t n) {
    return answers == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(answers);
  };
  out.set("hit_rate", share(c.hits));
  out.set("substituted", c.substituted);
  out.set("substituted_share", share(c.substituted));
  out.set("not_kept", c.not_kept);
  out.set("bytes_read", c.bytes_read);
  out.set("ahead_in_time", c.ahead_in_time);
  out.set("ahead_late", c.ahead_late);
  out.set("ahead_unused", c.ahead_unused);
  out.set("guesses", c.guesses);
  out.set("guesses_used", c.guesses_used);
  out.set("guesses_withdrawn", c.guesses_withdrawn);
  out.set("crc_records", c.crc_records);
  out.set("crc_seconds", static_cast<double>(c.crc_ns) * 1e-9);
  out.set("read_seconds", static_cast<double>(c.read_ns) * 1e-9);
  out.set("stall_seconds", static_cast<double>(c.stall_ns) * 1e-9);
  const engine::CacheStatus s = container->cache().status();
  out.set("readers", s.readers);
  out.set("read_depth", static_cast<std::uint64_t>(s.depth));
  out.set("direct_io", s.direct_io);
  out.set("io", io_name(s));
  return out;
}

std::vector<std::string> OpenedModel::fallbacks() const {
  std::vector<std::string> out;
  if (!usage_refused.empty()) out.emplace_back("no warm start: ").append(usage_refused);
  if (direct_refused) out.emplace_back("page cache not bypassed: the file system refused");
  if (!container) return out;
  const std::string refused = container->cache().status().uring_refused;
  if (!refused.empty()) out.emplace_back("reading with pread: ").append(refused);
  return out;
}

std::string OpenedModel::streaming_text() const {
  if (!container) return {};
  const engine::CacheStatus s = container->cache().status();
  const char* direct = s.direct_io      ? "page cache bypassed"
                       : direct_refused ? "page cache NOT bypassed: the file system refused"
                                        : "reads through the page cache";
  char text[160];
  std::snprintf(text, sizeof text,
                "%u readers (%s), %zu records ahead at most, %zu guessed a layer; %s", s.readers,
                io_name(s), s.depth, s.look_ahead, direct);
  std::string out = text;
  if (!s.uring_refused.empty()) out.append("; NOT with io_uring: ").append(s.uring_refused);
  return out;
}

std::string OpenedModel::cache_text() const {
  if (!container) return {};
  const engine::CacheCounters c = container->cache().counters();
  const double total =
      static_cast<double>(std::max<std::uint64_t>(c.hits + c.misses + c.substituted, 1));
  char text[160];
  std::snprintf(text, sizeof text, "%llu hits, %llu misses (%.1f %%), %.2f MB read",
                static_cast<unsigned long long>(c.hits), static_cast<unsigned long long>(c.misses),
                100.0 * static_cast<double>(c.hits) / total,
                static_cast<double>(c.bytes_read) / 1e6);
  if (c.substituted == 0) return text;
  char more[64];
  std::snprintf(more, sizeof more, ", %llu SUBSTITUTED (%.1f %%)",
                static_cast<unsigned long long>(c.substituted),
                100.0 * static_cast<double>(c.substituted) / total);
  return std::string(text) + more;
}

}  // namespace waste::cli
