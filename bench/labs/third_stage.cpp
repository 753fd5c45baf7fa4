// Does the third stage (two stages against three) buy some experts, layers or kinds more than
// others, at the output?
//
//   third_stage CHECKPOINT CALIBRATION
//
// For every expert matrix, coded plainly (effort default) with 2 and with 3 stages, codebooks per
// layer and kind: in the metric of the expert's own inputs (its layer's where it saw too few), what
// of the output's square the third stage saves,
//   relative  (|E2 R|^2 - |E3 R|^2) / |W R|^2
//   absolute  |E2 R|^2 - |E3 R|^2, mean over inputs (what a fixed budget of output error would be
//   divided by)
// and the absolute one times how often the expert is used.
#include <algorithm>
#include <cmath>
#include <map>

#include "lab.hpp"

namespace {

struct Spread {
  std::vector<double> values;
  void add(double v) { values.push_back(v); }
  double at(double q) {
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
  }
  double mean() const {
    double sum = 0;
    for (const double v : values) sum += v;
    return sum / static_cast<double>(values.size());
  }
  double whole() { return at(1) / at(0); }
  double most() { return at(0.9) / at(0.1); }
};

}  // namespace

int main(int argc, char** argv) {
  return lab::run(argc, argv, "calibrate with waste calibrate\n", [](lab::Input& in) {
    std::map<std::pair<std::uint32_t, int>, std::array<Spread, 3>> found;
    for (std::uint32_t layer = in.first_layer(); layer < in.layers(); ++layer) {
      const auto uses = in.calibration.uses(lab::LayerId{layer});
      for (const auto kind : lab::kinds) {
        const std::size_t cols = in.source.model().expert_shape().cols(kind);
        const auto all = lab::matrices(in, layer, kind);
        const auto effort = lab::quant::Effort::standard;
        const lab::Coder two(lab::format::vq2r, effort, all, cols),
            three(lab::format::vq3r, effort, all, cols);
        auto& to = found[{layer, static_cast<int>(kind)}];
        for (std::uint32_t e = 0; e < in.experts(); ++e) {
          const auto factor = in.factor(layer, kind, e);
          const double whole = lab::output_square(all[e], cols, factor);
          const double saved =
              lab::output_square(lab::minus(all[e], two.decoded(all[e], cols, nullptr)), cols,
                                 factor) -
              lab::output_square(lab::minus(all[e], three.decoded(all[e], cols, nullptr)), cols,
                                 factor);
          to[0].add(saved / whole);
          to[1].add(saved);
          to[2].add(saved * static_cast<double>(std::max<std::uint64_t>(uses[e], 1)));
        }
      }
    }
    const char* const names[] = {"gate", "up", "down"};
    const char* const metrics[] = {"relative", "absolute", "absolute x uses"};
    std::printf("between experts of a layer: largest / smallest, and 90th / 10th percentile\n");
    std::printf("%-6s %-5s", "layer", "kind");
    for (const char* m : metrics) std::printf(" %26s", m);
    std::printf("\n");
    for (auto& [key, spreads] : found) {
      std::printf("%-6u %-5s", key.first, names[key.second]);
      for (Spread& s : spreads) {
        std::printf("   mean %8.2g %4.2fx %4.2fx", s.mean(), s.whole(), s.most());
      }
      std::printf("\n");
    }
    for (std::size_t m = 0; m < 3; ++m) {
      double layers_most = 0, kinds_most = 0;
      for (int kind = 0; kind < 3; ++kind) {
        Spread means;
        for (std::uint32_t l = in.first_layer(); l < in.layers(); ++l) {
          means.add(found[{l, kind}][m].mean());
        }
        layers_most = std::max(layers_most, means.whole());
      }
      for (std::uint32_t l = in.first_layer(); l < in.layers(); ++l) {
        Spread means;
        for (int kind = 0; kind < 3; ++kind) means.add(found[{l, kind}][m].mean());
        kinds_most = std::max(kinds_most, means.whole());
      }
      std::printf("%s: means of layers differ by up to %.2fx, of kinds in a layer by %.2fx\n",
                  metrics[m], layers_most, kinds_most);
    }
  });
}
