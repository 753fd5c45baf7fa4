// Opens a container, reads one expert with one pread and multiplies with its gate.
#include <cstdio>
#include <vector>
#include <waste/waste.hpp>

int main(int argc, char** argv) {
  const auto model = waste::Container::open(argc > 1 ? argv[1] : "k3.waste");  // or throws
  const auto expert = model.bank(waste::LayerId{3}).read(waste::ExpertId{5});  // one pread
  const auto gate = expert.gate();                                             // [rows][cols]
  std::vector<float> x(gate.cols(), 1.f), y(gate.rows());
  waste::matvec(gate, x, y);                         // on the best tier of this CPU
  waste::matvec<waste::arch::baseline>(gate, x, y);  // or on one of your choice
  std::printf("%zu x %zu, y[0] = %g\n", gate.rows(), gate.cols(), y[0]);
}
