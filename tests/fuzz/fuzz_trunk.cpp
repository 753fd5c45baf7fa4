// The trunk index: the input replaces the value of "trunk" in a valid manifest; trunk.bin is then
// opened with it. A typed error, or tensors whose bytes are all there and finite.
#include <array>

#include "fuzz_target.hpp"
#include "scratch_container.hpp"
#include "waste/io/container.hpp"

namespace {

struct Base {
  explicit Base(const waste::test::TinySpec& spec) : container(spec) {
    auto m = container.tiny.manifest;
    m.erase("trunk");
    head = m.dump();
    head.pop_back();  // the closing brace
    head += ",\"trunk\":";
  }
  waste::fuzz::ScratchContainer container;
  std::string head;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  static const std::array<Base, 2> bases = {Base(fuzz::small(test::TinySpec::vq3r())),
                                            Base(fuzz::small(test::TinySpec::kimi_k3()))};
  fuzz::Input in(data, size);
  const Base& base = bases[in.take(1) % bases.size()];
  const auto rest = in.rest();
  try {
    const format::Manifest m = format::parse_manifest(
        base.head + std::string(fuzz::text_of(rest.data(), rest.size())) + "}", "fuzz");
    const auto trunk = io::Trunk::open(base.container.dir / "trunk.bin", m, true, 1);
    AlignedBuffer<std::uint8_t> row;
    for (const format::TrunkEntry& t : trunk.entries()) {
      WASTE_FUZZ_CHECK(t.off + t.bytes <= trunk.file().size());
      const io::LoadedTensor whole = trunk.load(t.name);
      WASTE_FUZZ_CHECK(whole.view().rows() == t.rows() && whole.view().cols() == t.cols());
      const TrunkMatrix last = trunk.read_row(t.name, t.rows() - 1, row);
      WASTE_FUZZ_CHECK(last.cols() == t.cols());
    }
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok);
  }
  return 0;
}
