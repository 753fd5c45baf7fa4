// Decoding a container whose experts are all in memory: the library's kernels, and the same program
// with scalar ones.
//
//   decode DIR [TOKENS [THREADS]]
//
// Three arms decode the same random tokens in turn, token by token: scalar (plain loops, gather
// from f32 tables), exact and split8. Prints milliseconds a token for each phase, and their ratios.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "scalar.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"
#include "waste/quant/random.hpp"

namespace {

using namespace waste;
using Clock = std::chrono::steady_clock;
using model::Phase;
constexpr std::size_t phases = static_cast<std::size_t>(Phase::done);

struct Arm {
  const char* name;
  TextModel model;
  Session session;
  std::vector<float> logits;
  std::array<std::vector<double>, phases + 1> ms;  ///< of each token; the last is the whole

  Arm(const char* n, const std::shared_ptr<model::Weights>& weights,
      const model::ModelOptions& options, std::size_t tokens)
      : name(n),
        model(weights, options),
        session(model.start(tokens)),
        logits(model.config().vocab_size) {}

  void step(std::uint32_t token) {
    std::array<double, phases + 1> now{};
    model::Observer observer;
    Phase phase = Phase::done;
    Clock::time_point since = Clock::now();
    const Clock::time_point begin = since;
    observer.phase = [&](Phase next) {
      const Clock::time_point t = Clock::now();
      now[static_cast<std::size_t>(phase)] +=
          std::chrono::duration<double, std::milli>(t - since).count();
      phase = next;
      since = t;
    };
    model.forward(session, {&token, 1}, {logits.data(), 1, logits.size()}, observer);
    now[phases] = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    for (std::size_t p = 0; p <= phases; ++p) ms[p].push_back(now[p]);
  }
  double median(std::size_t p) const {
    std::vector<double> sorted = ms[p];
    std::nth_element(sorted.begin(),
                     sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// |a - b| / |b|.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double up = 0, down = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    up += std::pow(double{a[i]} - double{b[i]}, 2);
    down += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(up / down);
}

int run(const char* dir, std::size_t tokens, unsigned threads) {
  const Container container = Container::open(dir);
  engine::CacheOptions cache;
  for (const auto& bank : container.banks())
    cache.budget_bytes += bank.experts() * bank.record_bytes();
  cache.concurrent = threads;
  const auto weights = std::make_shared<model::ContainerWeights>(container, cache);
  for (const auto& bank : container.banks()) {
    for (std::uint32_t e = 0; e < bank.experts(); ++e) weights->expert(bank.layer(), ExpertId{e});
  }
  const kernels::KernelTable scalar = bench::scalar_kernels(kernels::active_kernels());
  model::ModelOptions options;
  options.exec.threads = threads;
  model::ModelOptions plain = options, split8 = options;
  plain.exec.kernels = &scalar;
  split8.exec.precision = kernels::Precision::split8;
  const std::size_t warmup = 2;
  Arm arms[] = {{"scalar", weights, plain, tokens + warmup},
                {"exact", weights, options, tokens + warmup},
                {"split8", weights, split8, tokens + warmup}};
  quant::Random random(1);
  for (std::size_t i = 0; i < tokens + warmup; ++i) {
    const auto token = static_cast<std::uint32_t>(random.below(arms[0].logits.size()));
    for (Arm& arm : arms) {
      if (i == warmup) {
        for (auto& times : arm.ms) times.clear();
      }
      arm.step(token);
    }
  }
  std::printf("%zu layers, %zu MoE layers of %u experts, %s, tier %s, %u thread%s, %zu tokens\n",
              std::size_t{container.model().num_hidden_layers}, container.banks().size(),
              container.model().num_experts,
              std::string(to_string(container.manifest().expert_quant.fmt)).c_str(),
              std::string(to_string(arch::active_tier())).c_str(), threads, threads == 1 ? "" : "s",
              tokens);
  std::printf("%-10s %10s %10s %10s %12s %13s\n", "ms a token", "scalar", "exact", "split8",
              "scalar/exact", "scalar/split8");
  for (std::size_t p = 0; p <= phases; ++p) {
    const double s = arms[0].median(p), e = arms[1].median(p), b = arms[2].median(p);
    if (s == 0) continue;
    std::printf("%-10s %10.3f %10.3f %10.3f %12.2f %13.2f\n",
                p == phases ? "all" : model::to_string(Phase(p)), s, e, b, s / e, s / b);
  }
  const double error = difference(arms[1].logits, arms[0].logits);
  std::printf("logits of the last token: exact %.1e from scalar, split8 %.1e\n", error,
              difference(arms[2].logits, arms[0].logits));
  return error < 1e-3 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const long tokens = argc > 2 ? std::atol(argv[2]) : 16,
             threads = argc > 3 ? std::atol(argv[3]) : 1;
  if (argc < 2 || argc > 4 || tokens < 1 || threads < 1 || threads > 1024) {
    std::fprintf(stderr, "usage: decode DIR [TOKENS [THREADS]]\n");
    return 64;
  }
  try {
    return run(argv[1], static_cast<std::size_t>(tokens), static_cast<unsigned>(threads));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "decode: %s\n", e.what());
    return 1;
  }
}
