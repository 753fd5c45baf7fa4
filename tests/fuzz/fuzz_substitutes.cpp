// Substitutes, structure-aware: the input is a base (1 byte) and damages of 8 bytes each, applied
// to subs-codebooks.bin and subs-L*.bin of a valid container. A typed error that names a file, or
// substitutes that are whole: the original's bytes where no crc was mended, else views that stay
// inside.
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "damages.hpp"
#include "scratch_container.hpp"
#include "support/tiny_substitutes.hpp"
#include "waste/io/substitutes.hpp"

namespace {

using namespace waste;
using fuzz::Bytes;

struct Base {
  explicit Base(const test::TinySpec& spec)
      : folder(spec), coarse(test::one_stage(spec)), files(test::substitute_files(coarse)) {
    for (const auto& [name, bytes] : files) {
      folder.put(name, bytes.data(), bytes.size());
      names.push_back(name);
    }
    container = Container::open(folder.dir);
  }
  fuzz::ScratchContainer folder;
  test::TinyContainer coarse;
  std::map<std::string, Bytes> files;
  std::vector<std::string> names;
  Container container;
};

void read_all(const Base& base, bool books_hit, bool crc_mended) {
  const io::Substitutes subs = io::Substitutes::open(base.container, 1);
  for (const format::BankEntry& bank : base.container.manifest().layers) {
    for (std::uint32_t e = 0; e < bank.experts; ++e) {
      const ExpertView view = subs.view(LayerId{bank.layer}, ExpertId{e});
      const VqMatrix* matrices[3] = {&view.gate, &view.up, &view.down};
      for (std::size_t k = 0; k < 3; ++k) {
        const VqMatrix& m = *matrices[k];
        const auto want = base.coarse.weights(bank.layer - 1, e, k);
        WASTE_FUZZ_CHECK(want.size() == m.rows() * m.cols());
        for (std::size_t i = 0; i < want.size(); ++i) {
          const std::size_t r = i / m.cols(), c = i % m.cols();
          const double got =
              static_cast<double>(m.scale(r)) * m.codebooks[8 * m.index(r, c / 8, 0) + c % 8];
          WASTE_FUZZ_CHECK(std::isfinite(got));
          WASTE_FUZZ_CHECK(books_hit || crc_mended || got == want[i]);
        }
      }
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array<std::unique_ptr<Base>, 2> bases = {
      std::make_unique<Base>(fuzz::small(test::TinySpec::vq3r())),
      std::make_unique<Base>(fuzz::small(test::TinySpec::kimi_k3()))};
  fuzz::Input in(data, size);
  const Base& base = *bases[in.take(1) % bases.size()];
  bool books_hit = false, crc_mended = false;
  const auto changed = fuzz::take_damages(
      in, base.names.size(), [&](std::size_t file) { return base.files.at(base.names[file]); },
      [&](const fuzz::Damage& d, std::size_t file, Bytes& bytes) {
        fuzz::damage(bytes, d);
        const std::string& name = base.names[file];
        books_hit = books_hit || name == format::substitute_codebooks_file;
        if ((d.kind & 0x80) != 0 && name.starts_with("subs-L")) {
          const auto layer = static_cast<std::uint32_t>(name[6] - '0');
          crc_mended = fuzz::mend_record(base.coarse, layer, bytes, d.at) || crc_mended;
        }
      });
  for (const auto& [file, bytes] : changed) {
    base.folder.put(base.names[file], bytes.data(), bytes.size());
  }
  try {
    read_all(base, books_hit, crc_mended);
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok && !e.file().empty());
    WASTE_FUZZ_CHECK(!changed.empty());
  }
  for (const auto& [file, bytes] : changed) {
    const Bytes& original = base.files.at(base.names[file]);
    base.folder.put(base.names[file], original.data(), original.size());
  }
  return 0;
}
