// VQ products, table builds, and many tokens through one matrix.
#include <memory>

#include "data.hpp"
#include "gather.hpp"
#include "registry.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/core/parallel.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/quant/reference.hpp"

namespace waste::bench {
namespace {

struct Format {
  const char* name;
  format::ExpertQuant quant;
};
const Format formats[] = {{"VQ4P", format::vq4p}, {"VQ3R", format::vq3r}, {"VQ2R", format::vq2r}};
struct Shape {
  std::size_t rows, cols;
  std::string name() const { return std::to_string(rows) + "x" + std::to_string(cols); }
};
const Shape shapes[] = {{1024, 2304}, {2304, 1024}, {3072, 3584}, {3584, 3072}};

using kernels::Precision;
const std::pair<const char*, Precision> precisions[] = {
    {"exact", Precision::exact}, {"hilo14", Precision::hilo14}, {"split8", Precision::split8}};
double tolerance(Precision p) {
  return p == Precision::exact ? 1e-6 : p == Precision::hilo14 ? 1e-3 : 0.03;
}

struct UserKernel {
  std::string name;
  VqKernel kernel;
  double tolerance;
};
std::vector<UserKernel>& user_kernels() {
  static std::vector<UserKernel> list;
  return list;
}

Exec exec_of(arch::Tier tier, unsigned threads, Precision precision) {
  return {&kernels::kernel_table(tier), threads, precision};
}

/// Everything that multiplies one matrix: data, tables of every tier and precision, and the truth.
struct Products {
  Products(const format::ExpertQuant& quant, Shape s, const std::string& cache)
      : data(quant, s.rows, s.cols, cache), x(random_inputs(s.cols, 5)), y(s.rows), want(s.rows) {
    quant::reference::matvec(data.view(data.copies.copy(0)), x, want);
  }
  const VqTable& table(arch::Tier tier, Precision precision) {
    tables.push_back(std::make_unique<VqTable>(precision, data.quant, data.cols));
    tables.back()->build(data.codebooks.data(), x, exec_of(tier, 1, precision));
    return *tables.back();
  }
  Case finish(std::function<void()> run, double tolerance) {
    Case out;
    out.run = std::move(run);
    out.weights = static_cast<double>(data.rows * data.cols);
    out.payload_bytes = data.payload();
    out.error = [this] { return relative_error(y, want); };
    out.tolerance = tolerance;
    return out;
  }

  VqData data;
  std::vector<float> x, y;
  std::vector<double> want;
  std::vector<std::unique_ptr<VqTable>> tables;
};

void add_products(const Format& format, Shape shape, const std::string& cache, unsigned threads) {
  Group group;
  const auto label = [&](const std::string& tier, const std::string& precision) {
    group.labels.push_back(
        {"vq_matvec", format.name, shape.name(), tier, precision, cache, threads});
  };
  label("gather", "exact");
  if (threads == 1) {
    for (const auto& user : user_kernels()) label(user.name, "exact");
  }
  for (const auto tier : arch::runnable_tiers()) {
    for (const auto& [name, precision] : precisions) label(std::string(to_string(tier)), name);
  }
  group.make = [format, shape, cache, threads] {
    const auto p = std::make_shared<Products>(format.quant, shape, cache);
    std::vector<Case> cases;
    const auto* exact =
        static_cast<const float*>(p->table(arch::Tier::baseline, Precision::exact).data());
    const auto blocks = (shape.rows + 63) / 64;
    cases.push_back(p->finish(
        [p, exact, threads, blocks] {
          const VqMatrix w = p->data.next();
          const std::size_t tasks = threads == 1 ? 1 : std::min<std::size_t>(blocks, 4 * threads);
          parallel_for(tasks, threads, [&](std::size_t i) {
            gather(w, exact, p->y.data(), 64 * (blocks * i / tasks),
                   std::min(w.n_rows, 64 * (blocks * (i + 1) / tasks)));
          });
        },
        1e-5));
    if (threads == 1) {
      for (const auto& user : user_kernels()) {
        cases.push_back(p->finish(
            [p, exact, kernel = user.kernel] { kernel(p->data.next(), exact, p->y.data()); },
            user.tolerance));
      }
    }
    for (const auto tier : arch::runnable_tiers()) {
      for (const auto& [name, precision] : precisions) {
        const VqTable* table = &p->table(tier, precision);
        const Exec exec = exec_of(tier, threads, precision);
        cases.push_back(p->finish([p, table, exec] { matvec(p->data.next(), *table, p->y, exec); },
                                  tolerance(precision)));
      }
    }
    return cases;
  };
  add(std::move(group));
}

void add_builds(const Format& format, Shape shape) {
  Group group;
  for (const auto tier : arch::runnable_tiers()) {
    for (const auto& [name, precision] : precisions) {
      group.labels.push_back(
          {"vq_table_build", format.name, shape.name(), std::string(to_string(tier)), name});
    }
  }
  group.make = [format, shape] {
    const auto data = std::make_shared<VqData>(format.quant, 64, shape.cols, "hot");
    const auto x = std::make_shared<std::vector<float>>(random_inputs(shape.cols, 5));
    std::vector<Case> cases;
    for (const auto tier : arch::runnable_tiers()) {
      for (const auto& [name, precision] : precisions) {
        const auto table = std::make_shared<VqTable>(precision, format.quant, shape.cols);
        const Exec exec = exec_of(tier, 1, precision);
        Case c;
        c.run = [data, x, table, exec] { table->build(data->codebooks.data(), *x, exec); };
        // The table's meaning shows in a product of the same columns.
        c.error = [data, x, table] {
          const VqMatrix w = data->view(data->copies.copy(0));
          std::vector<float> y(w.n_rows);
          std::vector<double> want(w.n_rows);
          matvec(w, *table, y);
          quant::reference::matvec(w, *x, want);
          return relative_error(y, want);
        };
        c.tolerance = tolerance(precision);
        c.payload_bytes = static_cast<double>(data->codebooks.size() * sizeof(float));
        cases.push_back(std::move(c));
      }
    }
    return cases;
  };
  add(std::move(group));
}

/// `tokens` inputs through one matrix: a table each, or decoded once for all.
void add_tokens(const Format& format, Shape shape, std::size_t tokens) {
  Group group;
  const std::string name = shape.name() + "x" + std::to_string(tokens);
  for (const auto tier : arch::runnable_tiers()) {
    const std::string t(to_string(tier));
    for (const auto& [precision, value] : precisions) {
      group.labels.push_back({"vq_tables", format.name, name, t, precision});
    }
    group.labels.push_back({"vq_matmul", format.name, name, t, "exact"});
  }
  group.make = [format, shape, tokens] {
    struct State {
      VqData data;
      std::vector<float> x, y;
      std::vector<double> want;
    };
    const auto s =
        std::make_shared<State>(State{VqData(format.quant, shape.rows, shape.cols, "hot"),
                                      random_inputs(tokens * shape.cols, 5),
                                      std::vector<float>(tokens * shape.rows),
                                      {}});
    s->want.resize(s->y.size());
    for (std::size_t t = 0; t < tokens; ++t) {
      quant::reference::matvec(s->data.next(), std::span(s->x).subspan(t * shape.cols, shape.cols),
                               std::span(s->want).subspan(t * shape.rows, shape.rows));
    }
    std::vector<Case> cases;
    const auto push = [&](std::function<void()> run, double tolerance) {
      Case c;
      c.run = std::move(run);
      c.weights = static_cast<double>(shape.rows * shape.cols * tokens);
      c.payload_bytes = s->data.payload();
      c.error = [s] { return relative_error(s->y, s->want); };
      c.tolerance = tolerance;
      cases.push_back(std::move(c));
    };
    for (const auto tier : arch::runnable_tiers()) {
      for (const auto& [name, precision] : precisions) {
        const Exec exec = exec_of(tier, 1, precision);
        const auto table = std::make_shared<VqTable>(precision, format.quant, shape.cols);
        push(
            [s, table, exec, shape, tokens] {
              const VqMatrix w = s->data.next();
              for (std::size_t t = 0; t < tokens; ++t) {
                table->build(w.codebooks, std::span(s->x).subspan(t * shape.cols, shape.cols),
                             exec);
                matvec(w, *table, std::span(s->y).subspan(t * shape.rows, shape.rows), exec);
              }
            },
            tolerance(precision));
      }
      const auto* k = kernels::kernel_table(tier).matrix;
      push(
          [s, k, shape, tokens] {
            k->vq_matmul(s->data.next(), s->x.data(), shape.cols, tokens, s->y.data(), shape.rows,
                         0, shape.rows);
          },
          1e-5);
    }
    return cases;
  };
  add(std::move(group));
}

}  // namespace

bool add_vq_kernel(std::string name, VqKernel kernel, double tolerance) {
  user_kernels().push_back({std::move(name), std::move(kernel), tolerance});
  return true;
}

void add_vq() {
  for (const auto& format : formats) {
    for (const Shape shape : shapes) {
      for (const char* cache : {"hot", "ram"}) {
        add_products(format, shape, cache, 1);
        if (all_threads() > 1) add_products(format, shape, cache, all_threads());
      }
    }
    add_builds(format, shapes[0]);
    add_builds(format, shapes[2]);
    for (const std::size_t tokens : {2, 4, 8, 16, 64}) add_tokens(format, shapes[0], tokens);
  }
}

}  // namespace waste::bench
