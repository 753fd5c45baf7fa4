#include "waste/io/container_writer.hpp"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "waste/format/trunk_view.hpp"
#include "waste/io/checksums.hpp"
#include "waste/io/crc32.hpp"

namespace waste::io {
namespace {

using format::Kind;
namespace fs = std::filesystem;

constexpr std::string_view part_suffix = ".part";
constexpr std::string_view progress_suffix = ".progress";

std::span<const std::uint8_t> as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

bool has_size(const fs::path& path, std::uint64_t bytes) {
  std::error_code ec;
  return fs::is_regular_file(path, ec) && fs::file_size(path, ec) == bytes && !ec;
}

/// Opens a part file for this process alone: two writers in one directory must not mix.
File open_part(const fs::path& path, std::uint64_t bytes, bool keep) {
  File file = File::open_or_create(path);
  // File systems without locks (some network mounts) say so with another error.
  if (::flock(file.native_handle(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(fault(Errc::exists, "lock"), path.string(), "another process is writing it");
  }
  if (!keep) file.truncate(0);
  file.truncate(bytes);
  return file;
}

std::size_t stored_books(const format::ExpertQuant& q) noexcept { return format::kinds * q.stages; }
std::size_t table_values(const format::ExpertQuant& q) noexcept {
  return (std::size_t{1} << q.index_bits) * format::vec_dim;
}
std::size_t book_bytes(const format::ExpertQuant& q) noexcept {
  return format::codebook_header_bytes + 2 * format::vec_dim * q.entries;
}

std::uint64_t codebook_file_bytes(const format::ExpertQuant& q, std::size_t layers) noexcept {
  return std::uint64_t{book_bytes(q)} * stored_books(q) * layers;
}
std::uint64_t trunk_file_bytes(const std::vector<format::TrunkEntry>& trunk) noexcept {
  return trunk.empty() ? 0 : trunk.back().off + trunk.back().bytes;
}

}  // namespace

RecordBuffer::RecordBuffer(const format::RecordLayout& layout)
    : layout_(layout), bytes_(static_cast<std::size_t>(layout.record_bytes)) {}

std::span<std::uint8_t> RecordBuffer::indices(Kind kind) noexcept {
  return {bytes_.data() + layout_.index_off[static_cast<std::size_t>(kind)],
          layout_.indices(kind).bytes()};
}

std::span<std::uint8_t> RecordBuffer::scales(Kind kind) noexcept {
  return {bytes_.data() + layout_.scales(kind), 2 * layout_.shape.rows(kind)};
}

std::span<const std::uint8_t> RecordBuffer::seal(LayerId layer, ExpertId expert,
                                                 std::uint32_t codebook_base, std::uint8_t flags) {
  constexpr std::uint32_t most = 0xffff;  // a header has 16 bits for each
  const bool layer_fits = to_index(layer) <= most;
  if (!layer_fits || to_index(expert) > most) {
    throw Error(fault(Errc::out_of_range, layer_fits ? "expert" : "layer",
                      layer_fits ? to_index(expert) : to_index(layer), most));
  }
  std::fill(bytes_.data() + layout_.payload_end, bytes_.data() + bytes_.size(), std::uint8_t{0});
  format::ExpertRecordHeader header = format::make_header(layout_, layer, expert, codebook_base);
  header.flags = flags;
  header.crc32 = crc32({bytes_.data() + format::record_header_bytes,
                        layout_.payload_end - format::record_header_bytes});
  format::store_record_header(bytes_.data(), header);
  return bytes_.span();
}

format::Manifest make_manifest(const ContainerPlan& plan) {
  format::Manifest m;
  m.arch = plan.arch;
  m.tensor_prefix = plan.tensor_prefix;
  m.config = plan.config;
  m.model = format::parse_model_config(plan.config, "config");
  m.expert_quant = plan.expert_quant;
  check(format::derive_layout(m.expert_quant, m.model.expert_shape(), m.layout), "config");
  std::uint32_t base = 0;
  for (std::uint32_t l = m.model.first_k_dense_replace; l < m.model.num_hidden_layers; ++l) {
    m.layers.push_back({l, "experts-L" + std::to_string(l) + ".bin", m.model.num_experts,
                        m.layout.record_bytes * m.model.num_experts, base});
    base += static_cast<std::uint32_t>(stored_books(m.expert_quant));
  }
  m.trunk = plan.trunk;
  std::sort(m.trunk.begin(), m.trunk.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  CheckedSize at;
  for (format::TrunkEntry& t : m.trunk) {
    t.off = at.value();
    at.add(CheckedSize(t.rows()).mul(format::trunk_row_bytes(t.fmt, t.cols())).value());
    t.scale_off = format::is_grouped(t.fmt) ? at.value() : 0;
    at.add(CheckedSize(t.rows()).mul(format::trunk_row_scale_bytes(t.fmt, t.cols())).value());
    if (!at.ok()) throw Error(fault(Errc::overflow, "trunk"), {}, "tensor " + t.name);
    t.bytes = at.value() - t.off;
  }
  format::parse_manifest(format::dump_manifest(m), "manifest.json");
  return m;
}

BankWriter::BankWriter(fs::path directory, const format::RecordLayout& layout,
                       const format::BankEntry& bank)
    : final_path_(directory / bank.file), layout_(layout), bank_(bank) {
  part_path_ = final_path_.string() + std::string(part_suffix);
  file_ = open_part(part_path_, bank.bytes, true);
}

bool BankWriter::has(ExpertId expert) const {
  const std::uint32_t e = to_index(expert);
  if (e >= bank_.experts) return false;
  std::uint8_t head[format::record_header_bytes];
  if (file_.try_pread(head, e * layout_.record_bytes)) return false;
  const format::ExpertRecordHeader header = format::load_record_header(head);
  if (format::validate_header(header, layout_, LayerId{bank_.layer}, expert, bank_.codebook_base)) {
    return false;
  }
  std::vector<std::uint8_t> record(static_cast<std::size_t>(layout_.record_bytes));
  if (file_.try_pread(record, e * layout_.record_bytes)) return false;
  const std::span<const std::uint8_t> bytes(record);
  const auto padding = bytes.subspan(layout_.payload_end);
  return crc32(bytes.subspan(format::record_header_bytes,
                             layout_.payload_end - format::record_header_bytes)) == header.crc32 &&
         std::all_of(padding.begin(), padding.end(), [](std::uint8_t b) { return b == 0; });
}

void BankWriter::write(ExpertId expert, std::span<const std::uint8_t> record) const {
  const std::uint32_t e = to_index(expert);
  if (e >= bank_.experts) {
    throw Error(fault(Errc::out_of_range, "expert", e, bank_.experts - 1), part_path_.string());
  }
  if (record.size() != layout_.record_bytes) {
    throw Error(fault(Errc::bad_argument, "record bytes", record.size(), layout_.record_bytes),
                part_path_.string());
  }
  check(format::validate_header(format::load_record_header(record.data()), layout_,
                                LayerId{bank_.layer}, expert, bank_.codebook_base),
        part_path_.string());
  file_.pwrite(record, e * layout_.record_bytes);
}

void BankWriter::publish() { io::publish(part_path_, final_path_); }

TrunkWriter::TrunkWriter(fs::path directory, const std::vector<format::TrunkEntry>& trunk)
    : directory_(std::move(directory)), trunk_(trunk) {
  const fs::path progress = directory_ / "trunk.progress", part = directory_ / "trunk.bin.part";
  std::error_code ec;
  if (has_size(part, trunk_file_bytes(trunk_)) && fs::exists(progress, ec)) {
    const std::string text = read_text(progress, 32);
    std::size_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error == std::errc() && end == text.data() + text.size() && n <= trunk_.size()) {
      finished_ = n;
    }
  }
  file_ = open_part(part, trunk_file_bytes(trunk_), finished_ > 0);
}

void TrunkWriter::write_rows(std::size_t index, std::uint64_t first_row,
                             std::span<const std::uint8_t> payload,
                             std::span<const std::uint8_t> scales) const {
  if (index >= trunk_.size()) {
    throw Error(fault(Errc::bad_argument, "tensor", index, trunk_.size()), directory_.string());
  }
  const format::TrunkEntry& t = trunk_[index];
  const std::uint64_t row = format::trunk_row_bytes(t.fmt, t.cols());
  const std::uint64_t scale_row = format::trunk_row_scale_bytes(t.fmt, t.cols());
  const std::uint64_t n = row == 0 ? 0 : payload.size() / row;
  if (first_row > t.rows() || n > t.rows() - first_row || payload.size() != n * row ||
      scales.size() != n * scale_row) {
    throw Error(fault(Errc::bad_argument, "rows", first_row + n, t.rows()), {}, "tensor " + t.name);
  }
  file_.pwrite(payload, t.off + first_row * row);
  if (!scales.empty()) file_.pwrite(scales, t.scale_off + first_row * scale_row);
}

void TrunkWriter::commit(std::size_t finished) {
  if (finished > trunk_.size()) {
    throw Error(fault(Errc::bad_argument, "finished tensors", finished, trunk_.size()),
                directory_.string());
  }
  file_.sync();
  write_atomically(directory_ / "trunk.progress", std::to_string(finished));
  finished_ = finished;
}

void TrunkWriter::publish() {
  io::publish(directory_ / "trunk.bin.part", directory_ / "trunk.bin");
}

ContainerWriter::ContainerWriter(fs::path directory, const ContainerPlan& plan)
    : directory_(std::move(directory)), manifest_(make_manifest(plan)) {
  if (plan.substitutes) substitutes_ = format::substitutes_of(manifest_);
  std::error_code ec;
  fs::create_directories(directory_, ec);
  if (ec) throw Error(fault(Errc::io, "create directory"), directory_.string(), ec.message());
  if (fs::exists(directory_ / "manifest.json", ec)) {
    throw Error(fault(Errc::exists, "manifest.json"), directory_.string());
  }
}

std::uint64_t ContainerWriter::total_bytes() const noexcept {
  const std::size_t layers = manifest_.layers.size();
  std::uint64_t bytes =
      codebook_file_bytes(manifest_.expert_quant, layers) + trunk_file_bytes(manifest_.trunk);
  for (const format::BankEntry& b : manifest_.layers) bytes += b.bytes;
  if (substitutes_) {
    bytes += codebook_file_bytes(substitutes_->layout.quant, layers) + substitutes_->bytes();
  }
  return bytes;
}

const std::vector<format::BankEntry>& ContainerWriter::banks(BankSet set) const {
  if (set == BankSet::experts) return manifest_.layers;
  if (!substitutes_) {
    throw Error(fault(Errc::bad_argument, "substitutes"), directory_.string(), "the plan has none");
  }
  return substitutes_->layers;
}

const format::RecordLayout& ContainerWriter::layout(BankSet set) const {
  banks(set);
  return set == BankSet::experts ? manifest_.layout : substitutes_->layout;
}

const format::BankEntry& ContainerWriter::entry(LayerId layer, BankSet set) const {
  for (const format::BankEntry& b : banks(set)) {
    if (b.layer == to_index(layer)) return b;
  }
  throw Error(fault(Errc::bad_argument, "layer without experts").at(layer), directory_.string());
}

fs::path ContainerWriter::codebook_part(LayerId layer, BankSet set) const {
  const char* stem = set == BankSet::experts ? "codebooks-L" : "subs-codebooks-L";
  return directory_ / (stem + std::to_string(to_index(layer)) + ".part");
}

bool ContainerWriter::has_codebooks(LayerId layer, BankSet set) const {
  const format::ExpertQuant& q = layout(set).quant;
  return has_size(codebook_part(layer, set), book_bytes(q) * stored_books(q));
}

std::vector<std::uint8_t> codebook_records(const format::ExpertQuant& quant, std::uint32_t base,
                                           std::span<const float> values) {
  check(validate(quant));
  const std::size_t books = stored_books(quant), table = table_values(quant);
  if (values.size() != books * table) {
    throw Error(fault(Errc::bad_argument, "codebook values", values.size(), books * table));
  }
  std::vector<std::uint8_t> out(books * book_bytes(quant));
  std::uint8_t* to = out.data();
  for (std::size_t b = 0; b < books; ++b) {
    const auto id = static_cast<std::uint32_t>(base + b);
    store_le(to, format::codebook_magic);
    store_le(to + 4, static_cast<std::uint16_t>(id));
    to[6] = static_cast<std::uint8_t>(quant.fmt);
    to[7] = static_cast<std::uint8_t>(format::vec_dim);
    store_le(to + 8, quant.entries);
    to += format::codebook_header_bytes;
    for (std::size_t i = 0; i < format::vec_dim * quant.entries; ++i, to += 2) {
      const float v = values[b * table + i];
      const std::uint16_t bits = f32_to_f16(v);
      if (!f16_is_finite(bits) || f16_to_f32(bits) != v) {
        throw Error(fault(Errc::out_of_range, "codebook value"), {},
                    "codebook " + std::to_string(id) + " holds a value that is no finite f16");
      }
      store_le(to, bits);
    }
  }
  return out;
}

void ContainerWriter::write_codebooks(LayerId layer, std::span<const float> values,
                                      BankSet set) const {
  const auto bytes = codebook_records(layout(set).quant, codebook_base(layer, set), values);
  write_atomically(codebook_part(layer, set),
                   {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::vector<float> ContainerWriter::read_codebooks(LayerId layer, BankSet set) const {
  const format::ExpertQuant& q = layout(set).quant;
  const std::size_t books = stored_books(q), table = table_values(q);
  const File file = File::open(codebook_part(layer, set));
  std::vector<std::uint8_t> bytes(books * book_bytes(q));
  file.pread(bytes, 0);
  std::vector<float> out(books * table);
  for (std::size_t b = 0; b < books; ++b) {
    const std::uint8_t* from = bytes.data() + b * book_bytes(q) + format::codebook_header_bytes;
    for (std::size_t i = 0; i < format::vec_dim * q.entries; ++i) {
      out[b * table + i] = f16_to_f32(load_le<std::uint16_t>(from + 2 * i));
    }
  }
  if (codebook_records(q, codebook_base(layer, set), out) != bytes) {
    throw Error(fault(Errc::bad_field, "codebooks").at(layer), file.path().string());
  }
  return out;
}

bool ContainerWriter::has_bank(LayerId layer, BankSet set) const {
  const format::BankEntry& b = entry(layer, set);
  return has_size(directory_ / b.file, b.bytes);
}

BankWriter ContainerWriter::open_bank(LayerId layer, BankSet set) const {
  const format::BankEntry& bank = entry(layer, set);
  if (!has_codebooks(layer, set)) {
    throw Error(fault(Errc::missing, "codebooks").at(layer), directory_.string());
  }
  return BankWriter(directory_, layout(set), bank);
}

bool ContainerWriter::has_trunk() const {
  return has_size(directory_ / "trunk.bin", trunk_file_bytes(manifest_.trunk));
}

TrunkWriter ContainerWriter::open_trunk() const { return TrunkWriter(directory_, manifest_.trunk); }

void ContainerWriter::write_side_file(std::string_view name, std::string_view bytes) const {
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find('/') == std::string_view::npos &&
                     name.find('\0') == std::string_view::npos;
  if (!plain || name == "manifest.json") {
    throw Error(
        fault(Errc::bad_argument, "side file"), directory_.string(),
        "wanted a plain file name other than manifest.json, got \"" + std::string(name) + "\"");
  }
  write_atomically(directory_ / name, bytes);
}

void ContainerWriter::join_codebooks(BankSet set) const {
  const std::string name =
      set == BankSet::experts ? "codebooks.bin" : format::substitute_codebooks_file;
  const fs::path part = directory_ / (name + std::string(part_suffix));
  {
    const File file = File::create(part);
    std::uint64_t at = 0;
    for (const format::BankEntry& b : banks(set)) {
      const std::string bytes = read_text(codebook_part(LayerId{b.layer}, set),
                                          codebook_file_bytes(layout(set).quant, 1));
      file.pwrite(as_bytes(bytes), at);
      at += bytes.size();
    }
  }
  io::publish(part, directory_ / name);
}

void ContainerWriter::finish() {
  const auto missing = [&](const std::string& what) {
    throw Error(fault(Errc::missing, "file"), directory_.string(), what + " was not written");
  };
  std::vector<BankSet> sets{BankSet::experts};
  if (substitutes_) sets.push_back(BankSet::substitutes);
  for (const BankSet set : sets) {
    for (const format::BankEntry& b : banks(set)) {
      const LayerId layer{b.layer};
      if (!has_bank(layer, set)) missing(b.file);
      if (!has_codebooks(layer, set)) missing(codebook_part(layer, set).filename());
    }
  }
  if (!has_trunk()) missing("trunk.bin");
  for (const BankSet set : sets) join_codebooks(set);
  const std::string manifest = format::dump_manifest(manifest_);
  Checksums sums = compute_checksums(directory_, manifest_);
  sums.files.emplace(sums.files.begin(), "manifest.json", crc32(as_bytes(manifest)));
  write_side_file(checksums_file, dump_checksums(sums));
  write_atomically(directory_ / "manifest.json", manifest);
  remove_parts(directory_);
}

void remove_parts(const fs::path& directory) {
  constexpr std::string_view stems[] = {"experts-L",         "checksums",  "subs-L",
                                        "subs-codebooks",    "codebooks",  "trunk.",
                                        "manifest.json",     "chat",       "tokenizer.model",
                                        "specials.json",     "vision.",    "generation_config.json",
                                        "convert-plan.json", "usage.waste"};
  std::error_code ec;
  std::vector<fs::path> parts;
  for (const fs::directory_entry& e : fs::directory_iterator(directory, ec)) {
    const std::string name = e.path().filename().string();
    const bool ours = std::any_of(std::begin(stems), std::end(stems),
                                  [&](std::string_view stem) { return name.starts_with(stem); });
    const std::size_t tmp = name.rfind(".tmp");
    const bool temporary = tmp != std::string::npos && tmp + 4 < name.size() &&
                           name.find_first_not_of("0123456789", tmp + 4) == std::string::npos;
    if (ours && (name.ends_with(part_suffix) || name.ends_with(progress_suffix) || temporary)) {
      parts.push_back(e.path());
    }
  }
  for (const fs::path& p : parts) fs::remove(p, ec);
}

}  // namespace waste::io
