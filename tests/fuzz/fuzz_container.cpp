// A whole container, structure-aware: the input is a base (1 byte) and damages of 8 bytes each,
// applied to a valid container before it is opened, read and audited. Whatever the damage: a typed
// error; and a record accepted with its crc unmended has the original's payload.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "damages.hpp"
#include "scratch_container.hpp"
#include "waste/io/audit.hpp"

namespace {

using namespace waste;
using fuzz::Bytes;

struct Base {
  explicit Base(const test::TinySpec& spec) : container(spec) {
    for (const auto& [name, bytes] : container.tiny.files) {
      if (name != "tokenizer.model") names.push_back(name);
    }
    names.push_back("manifest.json");
  }
  Bytes original(const std::string& name) const {
    if (name != "manifest.json") return container.tiny.files.at(name);
    return {container.manifest.begin(), container.manifest.end()};
  }
  fuzz::ScratchContainer container;
  std::vector<std::string> names;
};

void read_all(const Base& base, bool crc_mended) {
  OpenOptions options;
  options.verify_records = waste::io::Verify::always;
  options.threads = 1;
  const Container container = Container::open(base.container.dir, options);
  for (const io::ExpertBank& bank : container.banks()) {
    const Bytes& original =
        base.container.tiny.files.at(container.manifest().bank(bank.layer())->file);
    for (std::uint32_t e = 0; e < bank.experts(); ++e) {
      try {
        const Expert expert = bank.read(ExpertId{e});
        const auto payload = expert.record().subspan(
            format::record_header_bytes, bank.layout().payload_end - format::record_header_bytes);
        const std::size_t from = e * bank.record_bytes() + format::record_header_bytes;
        WASTE_FUZZ_CHECK(crc_mended ||
                         (from + payload.size() <= original.size() &&
                          std::equal(payload.begin(), payload.end(),
                                     original.begin() + static_cast<std::ptrdiff_t>(from))));
      } catch (const Error& error) {
        WASTE_FUZZ_CHECK(error.fault().expert == e);
      }
    }
    io::audit_bank(bank, {});
  }
  io::audit_codebooks(container, {});
  io::audit_trunk(container, {});
  AlignedBuffer<std::uint8_t> row;
  for (const format::TrunkEntry& t : container.trunk().entries()) {
    try {
      container.trunk().read_row(t.name, t.rows() / 2, row);
    } catch (const Error& error) {
      WASTE_FUZZ_CHECK(error.code() == Errc::bad_field);
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array<std::unique_ptr<Base>, 4> bases = [] {
    test::TinySpec row_major = fuzz::small(test::TinySpec::vq2r());
    row_major.index_block = 0;
    row_major.trunk_fmt = 7;
    return std::array<std::unique_ptr<Base>, 4>{
        std::make_unique<Base>(fuzz::small(test::TinySpec::vq3r())),
        std::make_unique<Base>(row_major),
        std::make_unique<Base>(fuzz::small(test::TinySpec::vq4p())),
        std::make_unique<Base>(fuzz::small(test::TinySpec::kimi_k3()))};
  }();
  fuzz::Input in(data, size);
  const Base& base = *bases[in.take(1) % bases.size()];
  bool crc_mended = false;
  const auto changed = fuzz::take_damages(
      in, base.names.size(), [&](std::size_t file) { return base.original(base.names[file]); },
      [&](const fuzz::Damage& d, std::size_t file, Bytes& bytes) {
        fuzz::damage(bytes, d);
        // Every other kind mends the crc of the record it hit, to pass the first gate.
        const std::string& name = base.names[file];
        if ((d.kind & 0x80) != 0 && name.starts_with("experts")) {
          const auto layer = static_cast<std::uint32_t>(name[9] - '0');
          crc_mended = fuzz::mend_record(base.container.tiny, layer, bytes, d.at) || crc_mended;
        }
      });
  for (const auto& [file, bytes] : changed) {
    base.container.put(base.names[file], bytes.data(), bytes.size());
  }
  try {
    read_all(base, crc_mended);
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok && !e.file().empty());
  }
  for (const auto& [file, bytes] : changed) base.container.restore(base.names[file]);
  return 0;
}
