// Trunk products in every format, one input and several.
#include <memory>

#include "data.hpp"
#include "registry.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/quant/reference.hpp"

namespace waste::bench {
namespace {

const format::Fmt formats[] = {format::Fmt::f32, format::Fmt::f16, format::Fmt::q8g,
                               format::Fmt::q4g, format::Fmt::q3g};

void add_products(format::Fmt fmt, std::size_t rows, std::size_t cols, std::size_t tokens,
                  const std::string& cache, unsigned threads) {
  Group group;
  std::string shape = std::to_string(rows) + "x" + std::to_string(cols);
  if (tokens > 1) shape += "x" + std::to_string(tokens);
  for (const auto tier : arch::runnable_tiers()) {
    group.labels.push_back({tokens > 1 ? "trunk_matmul" : "trunk_matvec",
                            std::string(to_string(fmt)), shape, std::string(to_string(tier)), "f32",
                            cache, threads});
  }
  group.make = [=] {
    struct State {
      TrunkData data;
      std::vector<float> x, y;
      std::vector<double> want;
    };
    const auto s = std::make_shared<State>(State{TrunkData(fmt, rows, cols, cache),
                                                 random_inputs(tokens * cols, 5),
                                                 std::vector<float>(tokens * rows),
                                                 {}});
    s->want.resize(s->y.size());
    for (std::size_t t = 0; t < tokens; ++t) {
      quant::reference::matvec(s->data.view(s->data.copies.copy(0)),
                               std::span(s->x).subspan(t * cols, cols),
                               std::span(s->want).subspan(t * rows, rows));
    }
    std::vector<Case> cases;
    for (const auto tier : arch::runnable_tiers()) {
      const Exec exec{&kernels::kernel_table(tier), threads, {}};
      Case c;
      c.run = [s, exec, rows, cols, tokens] {
        if (tokens == 1) return matvec(s->data.next(), s->x, s->y, exec);
        matmul(s->data.next(), {s->x.data(), tokens, cols}, {s->y.data(), tokens, rows}, exec);
      };
      c.weights = static_cast<double>(rows * cols * tokens);
      c.payload_bytes = s->data.payload();
      c.error = [s] { return relative_error(s->y, s->want); };
      c.tolerance = 1e-6;
      cases.push_back(std::move(c));
    }
    return cases;
  };
  add(std::move(group));
}

}  // namespace

void add_trunk() {
  for (const auto fmt : formats) {
    for (const char* cache : {"hot", "ram"}) {
      // Hot: what the second-level cache holds.
      const std::size_t rows = cache == std::string("hot") ? 64 : 7168;
      add_products(fmt, rows, 3584, 1, cache, 1);
      if (all_threads() > 1) add_products(fmt, rows, 3584, 1, cache, all_threads());
    }
    for (const std::size_t tokens : {4, 16, 64}) add_products(fmt, 1024, 3584, tokens, "hot", 1);
  }
}

}  // namespace waste::bench
