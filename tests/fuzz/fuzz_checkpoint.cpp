// A source checkpoint, structure-aware: the input is a base (1 byte) and damages of 8 bytes each to
// config.json, the index and the shards of a valid one, BF16 or MXFP4. A typed error, or tensors of
// the stated shapes; what MXFP4 decodes to is finite.
#include <array>
#include <cmath>
#include <memory>

#include "convert/folder.hpp"
#include "convert/small_source.hpp"
#include "damages.hpp"
#include "scratch_container.hpp"
#include "waste/convert/checkpoint.hpp"

namespace {

using namespace waste;

struct Base {
  explicit Base(bool k3) {
    test::SmallSource small;
    small.k3 = k3;
    small.experts = 2;
    small.inter = 32;
    test::make_source(folder.dir, small);
    for (const auto& [name, bytes] : test::folder_bytes(folder.dir)) {
      files.emplace_back(name, fuzz::Bytes(bytes.begin(), bytes.end()));
    }
  }
  fuzz::ScratchFolder folder;
  std::vector<std::pair<std::string, fuzz::Bytes>> files;
};

void read_all(const convert::Checkpoint& c) {
  for (const convert::TrunkSource& t : c.trunk()) {
    WASTE_FUZZ_CHECK(c.tensor(t.name).size() == t.elements());
  }
  const format::ModelConfig& m = c.model();
  for (std::uint32_t l = m.first_k_dense_replace; l < m.num_hidden_layers; ++l) {
    for (std::uint32_t e = 0; e < m.num_experts; ++e) {
      const convert::SourceExpert expert = c.expert(LayerId{l}, ExpertId{e});
      WASTE_FUZZ_CHECK(expert.down.size() == expert.shape.width * expert.shape.inter);
      if (!c.packed_experts()) continue;
      for (const float w : expert.gate) WASTE_FUZZ_CHECK(std::isfinite(w));
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array<std::unique_ptr<Base>, 2> bases = {std::make_unique<Base>(false),
                                                             std::make_unique<Base>(true)};
  fuzz::Input in(data, size);
  const Base& base = *bases[in.take(1) % bases.size()];
  const auto changed = fuzz::take_damages(
      in, base.files.size(), [&](std::size_t file) { return base.files[file].second; },
      [](fuzz::Damage d, std::size_t, fuzz::Bytes& bytes) {
        if ((d.kind & 0x80) != 0) d.at %= 4096;  // the header of a shard
        fuzz::damage(bytes, d);
      });
  for (const auto& [file, bytes] : changed) {
    base.folder.put(base.files[file].first, bytes.data(), bytes.size());
  }
  try {
    read_all(convert::Checkpoint::open(base.folder.dir));
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok && !e.file().empty());
  }
  for (const auto& [file, bytes] : changed) {
    const auto& original = base.files[file];
    base.folder.put(original.first, original.second.data(), original.second.size());
  }
  return 0;
}
