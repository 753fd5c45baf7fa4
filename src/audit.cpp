#include "waste/io/audit.hpp"

#include <algorithm>
#include <vector>

#include "waste/format/codebook.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/io/crc32.hpp"

namespace waste::io {
namespace {

constexpr std::uint64_t piece_bytes = 1u << 20;

class Report {
 public:
  explicit Report(const AuditSink& sink) : sink_(sink) {}
  void add(const Fault& f, const File& file, std::string_view detail = {}) {
    ++faults_;
    if (sink_.found) sink_.found(Error(f, file.path().string(), detail));
  }
  void progress(std::uint64_t bytes) const {
    if (sink_.progress) sink_.progress(bytes);
  }
  std::uint64_t faults() const noexcept { return faults_; }

 private:
  const AuditSink& sink_;
  std::uint64_t faults_ = 0;
};

/// Index values and padding rows of one matrix.
Fault audit_indices(const VqMatrix& m, const char* index_field,
                    const char* padding_field) noexcept {
  const format::IndexLayout layout = m.layout();
  const std::uint32_t entries = m.quant.entries;
  if (entries < m.table_entries()) {
    for (std::size_t r = 0; r < m.rows(); ++r) {
      for (std::size_t v = 0; v < layout.positions; ++v) {
        for (std::size_t s = 0; s < m.quant.stages; ++s) {
          const std::uint8_t i = m.index(r, v, s);
          if (i >= entries) return fault(Errc::out_of_range, index_field, i, entries - 1);
        }
      }
    }
  }
  for (std::size_t v = 0; v < layout.positions; ++v) {
    for (std::size_t r = m.rows(); r < layout.padded_rows(); ++r) {
      const std::uint8_t* run = m.indices + layout.offset(r, v);
      if (std::any_of(run, run + layout.run, [](std::uint8_t b) { return b != 0; })) {
        return fault(Errc::bad_field, padding_field);
      }
    }
  }
  return {};
}

/// Columns that only fill the last group hold code 0; a Q3G row ends with a zero byte.
Fault audit_row_padding(format::Fmt fmt, std::span<const std::uint8_t> row,
                        std::uint64_t cols) noexcept {
  const std::uint64_t padded = round_up<std::uint64_t>(cols, format::group);
  const auto bad = [] { return fault(Errc::bad_field, "trunk padding code"); };
  for (std::uint64_t i = cols; i < padded; ++i) {
    if (fmt == format::Fmt::q8g && row[i] != 0) return bad();
    if (fmt == format::Fmt::q4g && (row[i / 2] >> (i % 2 * 4) & 15u) != 8) return bad();
    if (fmt == format::Fmt::q3g) {
      const std::uint64_t bit = 3 * i;  // the guard byte makes the second byte readable
      const unsigned word = row[bit / 8] | static_cast<unsigned>(row[bit / 8 + 1]) << 8;
      if ((word >> bit % 8 & 7u) != 4) return bad();
    }
  }
  if (fmt == format::Fmt::q3g && row.back() != 0) {
    return fault(Errc::bad_field, "trunk guard byte", row.back(), 0);
  }
  return {};
}

/// Reads `count` rows of `row_bytes` at `off` in pieces, adds them to `crc` and gives each piece to
/// `look`.
template <class Look>
Fault each_piece(const File& file, std::uint64_t off, std::uint64_t count, std::uint64_t row_bytes,
                 std::vector<std::uint8_t>& buffer, std::uint32_t& crc, Look look) {
  const std::uint64_t rows = std::max<std::uint64_t>(1, piece_bytes / row_bytes);
  for (std::uint64_t r = 0; r < count; r += rows) {
    buffer.resize(std::min(rows, count - r) * row_bytes);
    if (const Fault f = file.try_pread(buffer, off + r * row_bytes)) return f;
    crc = crc32(buffer, crc);
    if (const Fault f = look(std::span<const std::uint8_t>(buffer))) return f;
  }
  return {};
}

Fault audit_tensor(const File& file, const format::TrunkEntry& t, std::optional<std::uint32_t> want,
                   std::vector<std::uint8_t>& buffer) {
  const std::uint64_t row_bytes = format::trunk_row_bytes(t.fmt, t.cols());
  const auto payload = [&](std::span<const std::uint8_t> rows) {
    if (const Fault f = check_trunk_values(t.fmt, rows, {})) return f;
    if (!format::is_grouped(t.fmt)) return Fault{};
    for (std::size_t at = 0; at < rows.size(); at += row_bytes) {
      if (const Fault f = audit_row_padding(t.fmt, rows.subspan(at, row_bytes), t.cols())) return f;
    }
    return Fault{};
  };
  std::uint32_t crc = 0;
  if (const Fault f = each_piece(file, t.off, t.rows(), row_bytes, buffer, crc, payload)) return f;
  if (format::is_grouped(t.fmt)) {  // the scales follow the payload
    const auto finite = [&](std::span<const std::uint8_t> scales) {
      return check_trunk_values(t.fmt, {}, scales);
    };
    const Fault f = each_piece(file, t.scale_off, t.rows(),
                               format::trunk_row_scale_bytes(t.fmt, t.cols()), buffer, crc, finite);
    if (f) return f;
  }
  return want && crc != *want ? fault(Errc::checksum, "crc32", crc, *want) : Fault{};
}

}  // namespace

Fault audit_record(const format::RecordLayout& layout, LayerId layer, ExpertId expert,
                   std::uint32_t codebook_base, std::span<const std::uint8_t> record) noexcept {
  if (const Fault f = check_record(layout, layer, expert, codebook_base, record, true)) return f;
  const ExpertView view = view_record(layout, record, Codebooks(), codebook_base);
  const auto matrix = [&](const VqMatrix& m, const char* index, const char* padding) {
    return audit_indices(m, index, padding).at(layer, expert);
  };
  if (const Fault f = matrix(view.gate, "gate index", "gate index padding")) return f;
  if (const Fault f = matrix(view.up, "up index", "up index padding")) return f;
  if (const Fault f = matrix(view.down, "down index", "down index padding")) return f;
  if (!format::is_filler(record.subspan(layout.payload_end))) {
    return fault(Errc::bad_field, "record padding").at(layer, expert);
  }
  return {};
}

std::uint64_t audit_bank(const ExpertBank& bank, const AuditSink& sink) {
  Report report(sink);
  AlignedBuffer<std::uint8_t> record(bank.record_bytes(), format::page_bytes, Uninitialized{});
  for (std::uint32_t e = 0; e < bank.experts(); ++e) {
    Fault f = bank.try_read_raw(ExpertId{e}, record.span());
    if (!f) f = audit_record(bank, ExpertId{e}, record.span());
    if (f) report.add(f, bank.file());
    report.progress((e + std::uint64_t{1}) * bank.record_bytes());
  }
  return report.faults();
}

std::uint64_t audit_codebooks(const Container& container, const AuditSink& sink) {
  const format::Manifest& m = container.manifest();
  return audit_codebooks(container.directory() / "codebooks.bin", m.expert_quant, m.layers, sink,
                         codebook_crcs(container.trunk().checksums()));
}

std::uint64_t audit_codebooks(const std::filesystem::path& path, const format::ExpertQuant& quant,
                              std::span<const format::BankEntry> banks, const AuditSink& sink,
                              std::span<const std::uint32_t> crcs) {
  check(validate(quant), path.string());
  const File file = File::open(path);
  const std::uint64_t record_bytes = format::codebook_record_bytes(quant);
  const std::uint64_t count = file.size() / record_bytes;
  const std::uint32_t per_layer = format::codebooks_per_layer(quant);
  const auto in_use = [&](std::uint64_t id) {
    return std::any_of(banks.begin(), banks.end(), [&](const format::BankEntry& bank) {
      return id >= bank.codebook_base && id - bank.codebook_base < per_layer;
    });
  };
  Report report(sink);
  if (count > format::limits::codebooks) {
    report.add(fault(Errc::out_of_range, "codebooks", count, format::limits::codebooks), file);
    return report.faults();
  }
  std::vector<std::uint8_t> record(record_bytes);
  for (std::uint64_t id = 0; id < count; ++id) {
    Fault f = file.try_pread(record, id * record_bytes);
    if (!f && !(format::is_filler(record) && !in_use(id))) {
      f = format::validate_codebook(record, quant, static_cast<std::uint32_t>(id));
    }
    if (const std::uint32_t crc = crc32(record); !f && id < crcs.size() && crc != crcs[id]) {
      f = fault(Errc::checksum, "crc32", crc, crcs[id]);
    }
    if (f) report.add(f, file, "codebook " + std::to_string(id));
    report.progress((id + 1) * record_bytes);
  }
  return report.faults();
}

std::uint64_t audit_trunk(const Container& container, const AuditSink& sink) {
  return audit_trunk(container.trunk(), sink);
}

std::uint64_t audit_trunk(const Trunk& trunk, const AuditSink& sink) {
  Report report(sink);
  std::vector<std::uint8_t> buffer;
  for (const format::TrunkEntry& t : trunk.entries()) {
    const auto want = trunk.checksums() ? trunk.checksums()->of_tensor(t.name) : std::nullopt;
    if (const Fault f = audit_tensor(trunk.file(), t, want, buffer)) {
      report.add(f, trunk.file(), t.name);
    }
    report.progress(t.off + t.bytes);
  }
  return report.faults();
}

}  // namespace waste::io
