// codebooks.bin: first byte chooses the format, the rest is the file. A typed error, or finite
// tables with zeros past the last entry.
#include <array>
#include <cmath>

#include "fuzz_target.hpp"
#include "scratch_container.hpp"
#include "waste/io/container.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  static const std::array<fuzz::ScratchContainer, 3> bases = {
      fuzz::ScratchContainer(fuzz::small(test::TinySpec::vq3r())),
      fuzz::ScratchContainer(fuzz::small(test::TinySpec::vq2r())),
      fuzz::ScratchContainer(fuzz::small(test::TinySpec::vq4p()))};
  static const std::array<format::Manifest, 3> manifests = {
      format::parse_manifest(bases[0].manifest, "m"),
      format::parse_manifest(bases[1].manifest, "m"),
      format::parse_manifest(bases[2].manifest, "m")};
  fuzz::Input in(data, size);
  const std::size_t which = in.take(1) % bases.size();
  const auto rest = in.rest();
  bases[which].put("codebooks.bin", rest.data(), rest.size());
  const format::Manifest& m = manifests[which];
  try {
    const auto books =
        io::Codebooks::load(bases[which].dir / "codebooks.bin", m.expert_quant, m.layers);
    const std::size_t table = std::size_t{1} << m.expert_quant.index_bits;
    for (const format::BankEntry& bank : m.layers) {
      for (const auto kind : {format::Kind::gate, format::Kind::up, format::Kind::down}) {
        const float* values = books.of(bank.codebook_base, kind);
        WASTE_FUZZ_CHECK(values != nullptr);
        for (std::size_t i = 0; i < m.expert_quant.stages * table * 8; ++i) {
          WASTE_FUZZ_CHECK(std::isfinite(values[i]));
          WASTE_FUZZ_CHECK(i / 8 % table < m.expert_quant.entries || values[i] == 0.f);
        }
      }
    }
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok);
  }
  return 0;
}
