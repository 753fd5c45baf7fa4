// What a container holds: its manifest as typed fields, its tensors, and one expert looked into.
//
//     inspect DIR [LAYER EXPERT]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>
#include <waste/format/family.hpp>
#include <waste/waste.hpp>

namespace {

/// Root mean square and largest magnitude of a quantized matrix's weights.
void describe(const char* name, const waste::VqMatrix& w) {
  std::vector<float> values(w.rows() * w.cols());
  waste::quant::reference::dequantize(w, {values.data(), w.rows(), w.cols()});
  double squares = 0, largest = 0;
  for (const float v : values) {
    squares += double{v} * v;
    largest = std::fmax(largest, std::fabs(v));
  }
  std::printf("  %-4s [%zu][%zu]  rms %.6f  largest %.6f\n", name, w.rows(), w.cols(),
              std::sqrt(squares / static_cast<double>(values.size())), largest);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: %s DIR [LAYER EXPERT]\n", argv[0]), 64;
  waste::OpenOptions options;
  options.resident_trunk = false;  // looking at a container needs none of it in memory
  const auto container =
      waste::Container::open(argv[1], options);  // every field checked, or throws

  const waste::format::Manifest& m = container.manifest();
  const waste::format::ExpertQuant& q = m.expert_quant;
  std::printf("%s (%s): %zu layers of %u experts, %u a token\n", m.arch.c_str(),
              std::string(to_string(m.model.family)).c_str(), m.layers.size(), m.model.num_experts,
              m.model.num_experts_per_token);
  std::printf("experts %s: %u stages of %u entries, %.2f bits a weight, records of %llu bytes\n",
              std::string(to_string(q.fmt)).c_str(), q.stages, q.entries, q.bits_per_weight(),
              static_cast<unsigned long long>(m.layout.record_bytes));

  struct Total {
    std::size_t tensors = 0;
    std::uint64_t weights = 0, bytes = 0;
  };
  std::map<waste::format::Fmt, Total> trunk;
  for (const waste::format::TrunkEntry& t : m.trunk) {
    Total& total = trunk[t.fmt];
    ++total.tensors;
    total.weights += t.rows() * t.cols();
    total.bytes += t.bytes;
  }
  for (const auto& [fmt, total] : trunk) {
    std::printf("trunk %-4s %5zu tensors %12llu weights %12llu bytes\n",
                std::string(to_string(fmt)).c_str(), total.tensors,
                static_cast<unsigned long long>(total.weights),
                static_cast<unsigned long long>(total.bytes));
  }

  const auto number = [&](int i) { return static_cast<std::uint32_t>(std::atoi(argv[i])); };
  const waste::LayerId layer{argc > 3 ? number(2) : m.layers.front().layer};
  const waste::ExpertId id{argc > 3 ? number(3) : 0};
  const waste::Expert expert = container.bank(layer).read(id);  // one pread, crc32 compared
  std::printf("expert %u of layer %u\n", waste::to_index(id), waste::to_index(layer));
  describe("gate", expert.gate());
  describe("up", expert.up());
  describe("down", expert.down());
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
