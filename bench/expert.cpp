// A whole expert: gate, up, activation, down.
#include <cmath>
#include <memory>

#include "data.hpp"
#include "gather.hpp"
#include "registry.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/format/record_layout.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/quant/expert.hpp"
#include "waste/quant/reference.hpp"

namespace waste::bench {
namespace {

struct Model {
  const char* name;
  format::ExpertShape shape;
};
const Model models[] = {{"K3", {3072, 3584}}, {"Kimi-Linear", {1024, 2304}}};
const std::pair<const char*, format::ExpertQuant> formats[] = {
    {"VQ4P", format::vq4p}, {"VQ3R", format::vq3r}, {"VQ2R", format::vq2r}};
constexpr float beta = 4, linear_beta = 25;

struct Expert {
  Expert(const format::ExpertQuant& quant, const format::ExpertShape& shape,
         std::shared_ptr<Copies> records)
      : books(VqData(quant, 64, 8, "hot").codebooks),
        bytes(std::move(records)),
        layout(layout_of(quant, shape)),
        x(random_inputs(shape.width, 5)),
        y(shape.width),
        gate_table(kernels::Precision::split8, quant, shape.width),
        up_table(kernels::Precision::split8, quant, shape.width),
        down_table(kernels::Precision::split8, quant, shape.inter),
        gate(shape.inter),
        up(shape.inter) {}
  static format::RecordLayout layout_of(const format::ExpertQuant& quant,
                                        const format::ExpertShape& shape) {
    format::RecordLayout out;
    check(format::derive_layout(quant, shape, out));
    return out;
  }
  ExpertView view(const std::uint8_t* record) const {
    return quant::expert_view(layout, record, {books.data(), books.data(), books.data()});
  }
  /// The tables of gate and up are the layer's and stand; the one of down is built for each expert.
  void run(const Exec& exec) {
    const ExpertView e = view(bytes->next());
    matvec(e.gate, gate_table, gate, exec);
    matvec(e.up, up_table, up, exec);
    exec.table().step->situ_pair(gate.data(), up.data(), gate.size(), beta, linear_beta,
                                 gate.data());
    down_table.build(e.down.codebooks, gate, exec);
    matvec(e.down, down_table, y, exec);
  }
  std::vector<double> truth() const {
    const ExpertView e = view(bytes->copy(0));
    std::vector<double> g(layout.shape.inter), u(layout.shape.inter), out(layout.shape.width);
    quant::reference::matvec(e.gate, x, g);
    quant::reference::matvec(e.up, x, u);
    std::vector<float> a(g.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<float>(beta * std::tanh(g[i] / beta) / (1 + std::exp(-g[i])) *
                                linear_beta * std::tanh(u[i] / linear_beta));
    }
    quant::reference::matvec(e.down, a, out);
    return out;
  }

  AlignedBuffer<float> books;
  std::shared_ptr<Copies> bytes;
  format::RecordLayout layout;
  std::vector<float> x, y;
  VqTable gate_table, up_table, down_table;
  std::vector<float> gate, up;
};

void add_experts(const Model& model, const char* name, const format::ExpertQuant& quant,
                 const std::string& cache) {
  Group group;
  for (const auto tier : arch::runnable_tiers()) {
    group.labels.push_back(
        {"expert", name, model.name, std::string(to_string(tier)), "split8", cache, 1});
  }
  group.make = [model, quant, cache] {
    const format::RecordLayout layout = Expert::layout_of(quant, model.shape);
    const auto records =
        std::make_shared<Copies>(layout.record_bytes, copies_for(cache, layout.record_bytes), 3);
    std::uint64_t seed = 19;
    for (std::size_t i = layout.scale_off; i < layout.payload_end; i += 2) {
      store_le<std::uint16_t>(records->copy(0) + i,
                              static_cast<std::uint16_t>(0x2000 + random_bits(seed) % 0x800));
    }
    records->spread();
    std::vector<Case> cases;
    std::shared_ptr<std::vector<double>> want;
    for (const auto tier : arch::runnable_tiers()) {
      const auto e = std::make_shared<Expert>(quant, model.shape, records);
      const Exec exec{&kernels::kernel_table(tier), 1, kernels::Precision::split8};
      e->gate_table.build(e->books.data(), e->x, exec);
      e->up_table.build(e->books.data(), e->x, exec);
      if (!want) want = std::make_shared<std::vector<double>>(e->truth());
      Case c;
      c.run = [e, exec] { e->run(exec); };
      c.weights = 3.0 * static_cast<double>(model.shape.inter * model.shape.width);
      c.payload_bytes = static_cast<double>(layout.payload_end);
      c.error = [e, want] { return relative_error(e->y, *want); };
      c.tolerance = 0.05;
      cases.push_back(std::move(c));
    }
    return cases;
  };
  add(std::move(group));
}

}  // namespace

void add_expert() {
  for (const auto& model : models) {
    for (const auto& [name, quant] : formats) {
      for (const char* cache : {"hot", "ram"}) add_experts(model, name, quant, cache);
    }
  }
}

}  // namespace waste::bench
