// A VQ kernel of your own in the benchmark: one line makes it join every format, shape and cache
// state, beside the scalar gather and the library's kernels, checked like them.
#include <cstddef>

#include "registry.hpp"

namespace {

/// Two positions a step, so that two table lookups are in flight for each row.
void pairs(const waste::VqMatrix& w, const float* table, float* y) {
  const std::size_t entries = w.table_entries(), stages = w.quant.stages;
  for (std::size_t r = 0; r < w.rows(); ++r) {
    float sum[2] = {0, 0};
    for (std::size_t v = 0; v < w.positions(); ++v) {
      for (std::size_t s = 0; s < stages; ++s) {
        sum[v % 2] += table[(v * stages + s) * entries + w.index(r, v, s)];
      }
    }
    y[r] = w.scale(r) * (sum[0] + sum[1]);
  }
}

const bool joined = waste::bench::add_vq_kernel("pairs", pairs);

}  // namespace

int main(int argc, char** argv) { return joined ? waste::bench::run(argc, argv) : 1; }
