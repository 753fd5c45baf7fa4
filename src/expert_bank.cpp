#include "waste/io/expert_bank.hpp"

#include <algorithm>
#include <chrono>
#include <string>

#include "waste/io/crc32.hpp"

namespace waste::io {
namespace {

constexpr std::size_t crc_piece_bytes = 256u << 10;  // of a record, summed while in the L2 cache

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

namespace {

/// check_record, where `crc_of` gives the crc32 of the payload once the header is accepted.
template <class Crc>
Fault check_record_with(const format::RecordLayout& layout, LayerId layer, ExpertId expert,
                        std::uint32_t codebook_base, std::span<const std::uint8_t> record,
                        bool verify_crc, Crc&& crc_of) noexcept {
  if (record.size() != layout.record_bytes) {
    return fault(Errc::bad_argument, "record buffer", record.size(), layout.record_bytes)
        .at(layer, expert);
  }
  const format::ExpertRecordHeader header = format::load_record_header(record.data());
  if (const Fault f = format::validate_header(header, layout, layer, expert, codebook_base)) {
    return f;
  }
  // The header has 16 bits for each: larger ones are nobody's, whatever their low bits say.
  if (to_index(layer) != header.layer) {
    return fault(Errc::out_of_range, "layer", to_index(layer), 0xffff).at(layer, expert);
  }
  if (to_index(expert) != header.expert_id) {
    return fault(Errc::out_of_range, "expert", to_index(expert), 0xffff).at(layer, expert);
  }
  if (verify_crc) {
    const std::uint32_t crc = crc_of();
    if (crc != header.crc32) {
      return fault(Errc::checksum, "crc32", crc, header.crc32).at(layer, expert);
    }
  }
  if (const Fault f = check_scales(record, layout)) return f.at(layer, expert);
  return {};
}

std::uint32_t timed_crc(std::span<const std::uint8_t> bytes, std::uint32_t so_far,
                        ReadStats& stats) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const std::uint32_t crc = crc32(bytes, so_far);
  stats.crc_ns += static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  return crc;
}

std::span<const std::uint8_t> payload_of(const format::RecordLayout& layout,
                                         std::span<const std::uint8_t> record) noexcept {
  return record.subspan(format::record_header_bytes,
                        layout.payload_end - format::record_header_bytes);
}

}  // namespace

Fault check_record(const format::RecordLayout& layout, LayerId layer, ExpertId expert,
                   std::uint32_t codebook_base, std::span<const std::uint8_t> record,
                   bool verify_crc) noexcept {
  return check_record_with(layout, layer, expert, codebook_base, record, verify_crc,
                           [&] { return crc32(payload_of(layout, record)); });
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
  if (!codebooks_ || (codebooks_->bytes() != 0 && codebooks_->quant() != layout.quant)) {
    throw Error(fault(Errc::bad_argument, "codebooks").at(layer()), file_.path().string(),
                codebooks_ ? "they are of another quantization" : "there are none");
  }
  if (options.direct_io) file_.try_enable_direct();
  passed_ = std::make_unique<std::atomic<std::uint64_t>[]>(bank.experts / 64 + 1);
}

Fault ExpertBank::check_expert(ExpertId expert) const noexcept {
  const std::uint32_t e = to_index(expert);
  if (e < entry_.experts) return {};
  return fault(Errc::out_of_range, "expert", e, entry_.experts - 1).at(layer(), expert);
}

Fault ExpertBank::check_request(ExpertId expert, std::span<std::uint8_t> record) const noexcept {
  if (const Fault f = check_expert(expert)) return f;
  if (record.size() != layout_.record_bytes) {
    return fault(Errc::bad_argument, "record buffer", record.size(), layout_.record_bytes)
        .at(layer(), expert);
  }
  const auto misaligned = reinterpret_cast<std::uintptr_t>(record.data()) % format::page_bytes;
  if (file_.direct() && misaligned != 0) {
    return fault(Errc::bad_argument, "record buffer alignment", misaligned, 0).at(layer(), expert);
  }
  return {};
}

Fault ExpertBank::try_read_raw(ExpertId expert, std::span<std::uint8_t> record) const noexcept {
  if (const Fault f = check_request(expert, record)) return f;
  const Fault read = file_.try_pread(record, offset_of(expert));
  // A file that shrank answers with a short read; say what happened rather than what it caused.
  if (const Fault changed = file_.check_unchanged(identity_)) return changed.at(layer(), expert);
  return read ? read.at(layer(), expert) : Fault{};
}

Fault ExpertBank::read_summed(ExpertId expert, std::span<std::uint8_t> record,
                              ReadStats& stats) const noexcept {
  if (const Fault f = check_request(expert, record)) return f;
  const std::uint64_t first = offset_of(expert);
  const std::size_t step = file_.direct() ? record.size() : crc_piece_bytes;
  Fault read;
  std::uint32_t crc = 0;
  for (std::size_t at = 0; at < record.size() && !read; at += step) {
    const std::size_t end = std::min(at + step, record.size());
    read = file_.try_pread(record.subspan(at, end - at), first + at);
    const std::size_t from = std::max(at, format::record_header_bytes);
    const std::size_t to = std::min<std::size_t>(end, layout_.payload_end);
    if (read || from >= to) continue;
    crc = timed_crc(record.subspan(from, to - from), crc, stats);
  }
  if (const Fault changed = file_.check_unchanged(identity_)) return changed.at(layer(), expert);
  if (read) return read.at(layer(), expert);
  ++stats.crc_records;
  return check_record_with(layout_, layer(), expert, entry_.codebook_base, record, true,
                           [&] { return crc; });
}

bool ExpertBank::is_to_sum(ExpertId expert) const noexcept {
  const std::uint32_t e = to_index(expert);
  if (check_expert(expert)) return false;
  if (verify() == Verify::always) return true;
  return verify() == Verify::once &&
         (passed_[e / 64].load(std::memory_order_relaxed) >> e % 64 & 1) == 0;
}

void ExpertBank::remember(ExpertId passed) const noexcept {
  const std::uint32_t e = to_index(passed);
  passed_[e / 64].fetch_or(std::uint64_t{1} << e % 64, std::memory_order_relaxed);
}

Fault ExpertBank::try_read(ExpertId expert, std::span<std::uint8_t> record,
                           ReadStats* stats) const noexcept {
  if (!is_to_sum(expert)) return try_read(expert, record, false);
  ReadStats unused;
  const Fault f = read_summed(expert, record, stats != nullptr ? *stats : unused);
  if (!f) remember(expert);
  return f;
}

Fault ExpertBank::accept(ExpertId expert, std::span<const std::uint8_t> record, const Fault& read,
                         ReadStats* stats) const noexcept {
  if (const Fault f = check_expert(expert)) return f;
  if (const Fault changed = file_.check_unchanged(identity_)) return changed.at(layer(), expert);
  if (read) return read.at(layer(), expert);
  if (!is_to_sum(expert)) return check_record(expert, record, false);
  ReadStats unused;
  ReadStats& to = stats != nullptr ? *stats : unused;
  const Fault f =
      check_record_with(layout_, layer(), expert, entry_.codebook_base, record, true, [&] {
        ++to.crc_records;
        return timed_crc(payload_of(layout_, record), 0, to);
      });
  if (!f) remember(expert);
  return f;
}

Fault ExpertBank::try_read(ExpertId expert, std::span<std::uint8_t> record,
                           bool verify_crc) const noexcept {
  if (verify_crc) {
    ReadStats unused;
    return read_summed(expert, record, unused);
  }
  if (const Fault f = try_read_raw(expert, record)) return f;
  return check_record(expert, record, false);
}

Expert ExpertBank::read(ExpertId expert) const {
  check(check_expert(expert), file_.path().string());  // before memory is asked for
  Expert out;
  out.record_ =
      AlignedBuffer<std::uint8_t>(layout_.record_bytes, format::page_bytes, Uninitialized{});
  check(try_read(expert, out.record_.span()), file_.path().string());
  out.codebooks_ = codebooks_;
  out.view_ = view(out.record_.span());
  return out;
}

}  // namespace waste::io
