#include "waste/io/container.hpp"

#include <optional>
#include <string>
#include <utility>

#include "waste/io/checksums.hpp"
#include "waste/io/crc32.hpp"
#include "waste/io/file.hpp"

namespace waste::io {

Container Container::open(const std::filesystem::path& directory, const OpenOptions& options) {
  const auto state = std::make_shared<State>();
  state->directory = directory;
  const auto manifest_path = directory / "manifest.json";
  const std::string text = read_text(manifest_path, format::limits::manifest_bytes);
  state->manifest = format::parse_manifest(text, manifest_path.string());
  const format::Manifest& m = state->manifest;
  std::optional<Checksums> sums;
  if (options.verify_checksums) sums = read_checksums(directory);
  if (const auto want = sums ? sums->of_file("manifest.json") : std::nullopt) {
    const std::uint32_t crc =
        crc32({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    check(crc != *want ? fault(Errc::checksum, "crc32", crc, *want) : Fault{},
          manifest_path.string(), checksums_file);
  }
  state->codebooks = std::make_shared<const Codebooks>(
      Codebooks::load(directory / "codebooks.bin", m.expert_quant, m.layers, codebook_crcs(sums)));
  state->banks.reserve(m.layers.size());
  for (const format::BankEntry& bank : m.layers) {
    state->banks.emplace_back(directory, bank, m.layout, state->codebooks,
                              BankOptions{options.verify_records, options.direct_io});
  }
  state->trunk = Trunk::open(directory / "trunk.bin", m, options.resident_trunk, options.threads,
                             std::move(sums));
  Container out;
  out.state_ = state;
  return out;
}

const ExpertBank& Container::bank(LayerId layer) const {
  const std::uint32_t first = model().first_k_dense_replace;
  const std::uint32_t l = to_index(layer);
  if (l < first || l - first >= state_->banks.size()) {
    throw Error(fault(Errc::out_of_range, "layer without experts").at(layer), directory().string());
  }
  return state_->banks[l - first];
}

}  // namespace waste::io
