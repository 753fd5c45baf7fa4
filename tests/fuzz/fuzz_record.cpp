// Expert records: first byte chooses the format and whether crc and header are mended, the rest
// is the record. A fault, or views that never leave the record and its codebooks.
#include <array>
#include <cmath>
#include <vector>

#include "fuzz_target.hpp"
#include "waste/format/codebook.hpp"
#include "waste/io/audit.hpp"
#include "waste/io/crc32.hpp"

namespace {

using namespace waste;
using namespace waste::format;

const std::array<ExpertQuant, 6> quants = {vq3r,
                                           vq2r,
                                           vq4p,
                                           ExpertQuant{Fmt::vq3r, 3, 8, 40, 0, 8},
                                           ExpertQuant{Fmt::vq3r, 8, 8, 1, 64, 8},
                                           ExpertQuant{Fmt::vq4p, 4, 8, 5, 0, 6}};

/// Reads everything a kernel would: any bad pointer shows under a sanitizer.
double touch(const VqMatrix& m, const std::vector<float>& books) {
  double sum = 0;
  for (std::size_t r = 0; r < m.rows(); ++r) {
    for (std::size_t v = 0; v < m.positions(); ++v) {
      for (std::size_t s = 0; s < m.quant.stages; ++s) {
        const std::size_t entry = s * m.table_entries() + m.index(r, v, s);
        sum += static_cast<double>(books.at(entry * 8) * m.scale(r));
      }
    }
  }
  return sum;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  const auto choice = static_cast<std::uint8_t>(in.take(1));
  const ExpertQuant& quant = quants[choice % quants.size()];
  const bool mend_crc = (choice & 0x40) != 0, mend_header = (choice & 0x80) != 0;
  RecordLayout layout;
  WASTE_FUZZ_CHECK(!derive_layout(quant, {8, 16}, layout));
  std::vector<std::uint8_t> record(layout.record_bytes, 0);
  const auto rest = in.rest();
  std::copy_n(rest.begin(), std::min(rest.size(), record.size()), record.begin());
  ExpertRecordHeader header = load_record_header(record.data());
  if (mend_header) header = make_header(layout, LayerId{3}, ExpertId{2}, 9);
  if (mend_crc || mend_header) {
    header.crc32 = io::crc32(std::span<const std::uint8_t>(record).subspan(
        record_header_bytes, layout.payload_end - record_header_bytes));
    store_record_header(record.data(), header);
  }
  const Fault checked = io::check_record(layout, LayerId{3}, ExpertId{2}, 9, record, true);
  const Fault audited = io::audit_record(layout, LayerId{3}, ExpertId{2}, 9, record);
  if (checked) {
    WASTE_FUZZ_CHECK(audited && audited.field == checked.field);
    return 0;
  }
  const ExpertView view = io::view_record(layout, record, io::Codebooks(), 9);
  const std::vector<float> books(quant.stages * view.gate.table_entries() * 8, 1.f);
  double sum = 0;
  for (const VqMatrix* m : {&view.gate, &view.up, &view.down}) sum += touch(*m, books);
  WASTE_FUZZ_CHECK(std::isfinite(sum));  // scales were checked
  return 0;
}
