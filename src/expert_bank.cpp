#include "waste/io/expert_bank.hpp"

#include <string>

#include "waste/io/crc32.hpp"

namespace waste::io {
namespace {

Fault check_scales(std::span<const std::uint8_t> record,
                   const format::RecordLayout& layout) noexcept {
  constexpr const char* fields[] = {"gate scale is not finite", "up scale is not finite",
                                    "down scale is not finite"};
  for (std::size_t k = 0; k < format::kinds; ++k) {
    const auto kind = static_cast<format::Kind>(k);
    const std::uint8_t* from = record.data() + layout.scales(kind);
    for (std::size_t r = 0; r < layout.shape.rows(kind); ++r) {
      const auto bits = load_le<std::uint16_t>(from + 2 * r);
      if (!f16_is_finite(bits)) return fault(Errc::bad_field, fields[k]);
    }
  }
  return {};
}

}  // namespace

Fault check_record(const format::RecordLayout& layout, LayerId layer, ExpertId expert,
                   std::uint32_t codebook_base, std::span<const std::uint8_t> record,
                   bool verify_crc) noexcept {
  if (record.size() != layout.record_bytes) {
    return fault(Errc::bad_argument, "record buffer", record.size(), layout.record_bytes)
        .at(layer, expert);
  }
  const format::ExpertRecordHeader header = format::load_record_header(record.data());
  if (const Fault f = format::validate_header(header, layout, layer, expert, codebook_base)) {
    return f;
  }
  if (verify_crc) {
    const std::uint32_t crc = crc32(record.subspan(
        format::record_header_bytes, layout.payload_end - format::record_header_bytes));
    if (crc != header.crc32) {
      return fault(Errc::checksum, "crc32", crc, header.crc32).at(layer, expert);
    }
  }
  if (const Fault f = check_scales(record, layout)) return f.at(layer, expert);
  return {};
}

ExpertView view_record(const format::RecordLayout& layout, std::span<const std::uint8_t> record,
                       const Codebooks& codebooks, std::uint32_t codebook_base) noexcept {
  const auto matrix = [&](format::Kind kind) {
    VqMatrix m;
    m.indices = record.data() + layout.index_off[static_cast<std::size_t>(kind)];
    m.scales = record.data() + layout.scales(kind);
    m.codebooks = codebooks.of(codebook_base, kind);
    m.n_rows = layout.shape.rows(kind);
    m.n_cols = layout.shape.cols(kind);
    m.quant = layout.quant;
    return m;
  };
  return {matrix(format::Kind::gate), matrix(format::Kind::up), matrix(format::Kind::down)};
}

ExpertBank::ExpertBank(const std::filesystem::path& directory, const format::BankEntry& bank,
                       const format::RecordLayout& layout,
                       std::shared_ptr<const Codebooks> codebooks, const BankOptions& options)
    : entry_(bank),
      layout_(layout),
      codebooks_(std::move(codebooks)),
      options_(options),
      file_(File::open(directory / bank.file)),
      identity_(file_.identity()) {
  if (identity_.size != bank.bytes) {
    const Errc code = identity_.size < bank.bytes ? Errc::truncated : Errc::mismatch;
    throw Error(fault(code, "file size", identity_.size, bank.bytes).at(layer()),
                file_.path().string());
  }
  if (options.direct_io) file_.try_enable_direct();
}

Fault ExpertBank::try_read_raw(ExpertId expert, std::span<std::uint8_t> record) const noexcept {
  const std::uint32_t e = to_index(expert);
  if (e >= entry_.experts) {
    return fault(Errc::out_of_range, "expert", e, entry_.experts - 1).at(layer(), expert);
  }
  if (record.size() != layout_.record_bytes) {
    return fault(Errc::bad_argument, "record buffer", record.size(), layout_.record_bytes)
        .at(layer(), expert);
  }
  const auto misaligned = reinterpret_cast<std::uintptr_t>(record.data()) % format::page_bytes;
  if (file_.direct() && misaligned != 0) {
    return fault(Errc::bad_argument, "record buffer alignment", misaligned, 0).at(layer(), expert);
  }
  const Fault read = file_.try_pread(record, e * layout_.record_bytes);
  // A file that shrank answers with a short read; say what happened rather than what it caused.
  if (const Fault changed = file_.check_unchanged(identity_)) return changed.at(layer(), expert);
  return read ? read.at(layer(), expert) : Fault{};
}

Fault ExpertBank::try_read(ExpertId expert, std::span<std::uint8_t> record,
                           bool verify_crc) const noexcept {
  if (const Fault f = try_read_raw(expert, record)) return f;
  return check_record(expert, record, verify_crc);
}

Expert ExpertBank::read(ExpertId expert) const {
  if (to_index(expert) >= entry_.experts) {  // before memory is asked for
    throw Error(fault(Errc::out_of_range, "expert", to_index(expert), entry_.experts - 1)
                    .at(layer(), expert),
                file_.path().string());
  }
  Expert out;
  out.record_ =
      AlignedBuffer<std::uint8_t>(layout_.record_bytes, format::page_bytes, Uninitialized{});
  check(try_read(expert, out.record_.span(), options_.verify_records), file_.path().string());
  out.codebooks_ = codebooks_;
  out.view_ = view(out.record_.span());
  return out;
}

}  // namespace waste::io
