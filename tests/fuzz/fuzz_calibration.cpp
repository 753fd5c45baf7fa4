// Calibration file: first byte, bit 0 set: mend the crcs; the rest is the file. A typed error, or
// a table of the model's own sites in order, and moments that are finite with no negative square.
#include <cmath>

#include "fuzz_target.hpp"
#include "scratch_container.hpp"
#include "waste/convert/calibration.hpp"
#include "waste/format/manifest.hpp"
#include "waste/io/crc32.hpp"

namespace {

using namespace waste;

/// Sums of every entry, then of header and table, where the file is long enough to have them.
void mend(std::vector<std::uint8_t>& file, const format::ModelConfig& model) {
  const std::size_t uses = std::size_t{model.moe_layers()} * model.num_experts;
  const std::size_t table = 48 + 8 * uses;
  if (file.size() < table) return;
  store_le<std::uint64_t>(&file[8], file.size());
  const std::uint64_t entries = load_le<std::uint32_t>(&file[36]);
  if (entries > (file.size() - table) / 32) return;
  std::uint64_t off = table + 32 * entries;
  const std::size_t table_end = off;
  for (std::uint64_t i = 0; i < entries; ++i) {
    std::uint8_t* const at = &file[table + 32 * i];
    const std::uint64_t bytes =
        8 * convert::moment_sums(load_le<std::uint32_t>(at + 8), load_le<std::uint32_t>(at + 12));
    if (bytes > file.size() - off) break;
    store_le<std::uint32_t>(at + 24, io::crc32(std::span(file).subspan(off, bytes)));
    off += bytes;
  }
  store_le<std::uint32_t>(&file[40], 0);
  store_le<std::uint32_t>(&file[40], io::crc32(std::span(file).first(table_end)));
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::ScratchContainer base(fuzz::small(test::TinySpec::vq3r()));
  static const format::ModelConfig model = format::parse_manifest(base.manifest, "m").model;
  fuzz::Input in(data, size);
  const bool mended = (in.take(1) & 1) != 0;
  std::vector<std::uint8_t> file(in.rest().begin(), in.rest().end());
  if (mended) mend(file, model);
  base.put("c.wcal", file.data(), file.size());
  try {
    const auto c = convert::CalibrationFile::open(base.dir / "c.wcal", model, 7);
    const auto known = convert::calibration_sites(model);
    for (std::uint32_t l = model.first_k_dense_replace; l < model.num_hidden_layers; ++l) {
      WASTE_FUZZ_CHECK(c.uses(LayerId{l}).size() == model.num_experts);
    }
    for (std::size_t i = 0; i < c.keys().size(); ++i) {
      const convert::MomentKey key = c.keys()[i];
      WASTE_FUZZ_CHECK(i == 0 || c.keys()[i - 1] < key);
      WASTE_FUZZ_CHECK(c.has(key) && c.count(key) > 0);
      convert::MomentKey whole = key;
      whole.expert = convert::MomentKey::all;
      try {
        const quant::InputMoments m = c.moments(key);
        WASTE_FUZZ_CHECK(m.cols() == known.at(whole) && m.count() == c.count(key));
        for (const double s : m.sums()) WASTE_FUZZ_CHECK(std::isfinite(s));
        for (std::size_t j = 0; j < m.cols(); ++j) WASTE_FUZZ_CHECK(m.mean(j, j) >= 0);
      } catch (const Error& e) {
        WASTE_FUZZ_CHECK(e.fault().layer == key.layer);
      }
    }
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok && e.file() == (base.dir / "c.wcal").string());
  }
  return 0;
}
