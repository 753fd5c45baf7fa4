#include "waste/model/container_weights.hpp"

#include <string>

namespace waste::model {
namespace {

std::vector<float> decode(const TrunkMatrix& w) {
  std::vector<float> out(w.rows() * w.cols());
  for (std::size_t r = 0; r < w.rows(); ++r) {
    dequantize_row(w, r, std::span<float>(out).subspan(r * w.cols(), w.cols()));
  }
  return out;
}

}  // namespace

ContainerWeights::ContainerWeights(const Container& container, const engine::CacheOptions& cache)
    : container_(container), cache_(container, cache) {}

std::string ContainerWeights::full(std::string_view name) const {
  return container_.manifest().tensor_prefix + std::string(name);
}

TrunkMatrix ContainerWeights::matrix(std::string_view name) const {
  return container_.trunk().tensor(full(name));
}

std::vector<float> ContainerWeights::values(std::string_view name) const {
  return decode(matrix(name));
}

void ContainerWeights::embedding(std::uint32_t token, std::span<float> out) const {
  // One row is small, and sessions of several threads read at once.
  thread_local AlignedBuffer<std::uint8_t> buffer;
  const std::string name = io::embedding_name(container_.manifest());
  dequantize_row(container_.trunk().read_row(name, token, buffer), 0, out);
}

nn::ExpertLease ContainerWeights::expert(LayerId layer, ExpertId expert) {
  auto lease = std::make_shared<ExpertCache::Lease>(cache_.get(layer, expert));
  return {lease->view(), lease};
}

std::optional<nn::SharedCodebooks> ContainerWeights::codebooks(LayerId layer) const {
  const std::uint32_t base = container_.bank(layer).codebook_base();
  const io::Codebooks& books = container_.codebooks();
  return nn::SharedCodebooks{books.quant(), books.of(base, format::Kind::gate),
                             books.of(base, format::Kind::up)};
}

}  // namespace waste::model
