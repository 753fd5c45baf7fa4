#include "waste/io/trunk_file.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <unordered_set>

#include "waste/core/half.hpp"
#include "waste/core/parallel.hpp"
#include "waste/io/crc32.hpp"
#include "waste/io/memory_limit.hpp"

namespace waste::io {
namespace {

constexpr std::size_t tail_bytes = 64;          // readable zeros behind a tensor
constexpr std::size_t piece_bytes = 16u << 20;  // of one read

format::TrunkSizes sizes_of(const format::TrunkEntry& t) noexcept {
  return format::trunk_sizes(t.fmt, t.rows(), t.cols());
}

TrunkMatrix view_of(const format::TrunkEntry& t, const std::uint8_t* payload,
                    std::uint64_t rows) noexcept {
  TrunkMatrix m;
  m.fmt = t.fmt;
  m.payload = payload;
  m.scales = format::is_grouped(t.fmt) ? payload + rows * format::trunk_row_bytes(t.fmt, t.cols())
                                       : nullptr;
  m.n_rows = rows;
  m.n_cols = t.cols();
  return m;
}

bool all_f16_finite(std::span<const std::uint8_t> bytes) noexcept {
  bool finite = true;
  for (std::size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    finite &= f16_is_finite(load_le<std::uint16_t>(bytes.data() + i));
  }
  return finite;
}

bool all_f32_finite(std::span<const std::uint8_t> bytes) noexcept {
  bool finite = true;
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    finite &= (load_le<std::uint32_t>(bytes.data() + i) & 0x7f800000u) != 0x7f800000u;
  }
  return finite;
}

}  // namespace

Fault check_trunk_values(format::Fmt fmt, std::span<const std::uint8_t> payload,
                         std::span<const std::uint8_t> scales) noexcept {
  if (fmt == format::Fmt::f32 && !all_f32_finite(payload)) {
    return fault(Errc::bad_field, "trunk element is not finite");
  }
  if (fmt == format::Fmt::f16 && !all_f16_finite(payload)) {
    return fault(Errc::bad_field, "trunk element is not finite");
  }
  if (!all_f16_finite(scales)) return fault(Errc::bad_field, "trunk scale is not finite");
  return {};
}

std::string embedding_name(const format::Manifest& manifest) {
  return manifest.tensor_prefix + "model.embed_tokens.weight";
}

std::vector<std::string> resident_tensors(const format::Manifest& manifest) {
  std::vector<std::string> out;
  const std::string embedding = embedding_name(manifest);
  for (const format::RequiredTensor& t : format::required_tensors(manifest.model)) {
    std::string name = manifest.tensor_prefix + t.name;
    const bool on_disk = name == embedding && !manifest.model.tie_word_embeddings;
    if (!on_disk) out.push_back(std::move(name));
  }
  return out;
}

std::uint64_t Trunk::resident_bytes(const format::Manifest& manifest) {
  const auto names = resident_tensors(manifest);
  const std::unordered_set<std::string_view> wanted(names.begin(), names.end());
  std::uint64_t bytes = 0;
  for (const format::TrunkEntry& t : manifest.trunk) {
    if (wanted.contains(t.name)) bytes += t.bytes;
  }
  return bytes;
}

Trunk Trunk::open(const std::filesystem::path& path, const format::Manifest& manifest,
                  bool resident, unsigned threads, std::optional<Checksums> sums) {
  Trunk out;
  out.sums_ = std::move(sums);
  out.file_ = File::open(path);
  out.identity_ = out.file_.identity();
  const std::uint64_t end = format::trunk_end(manifest);
  if (out.identity_.size != end) {
    const Errc code = out.identity_.size < end ? Errc::truncated : Errc::mismatch;
    throw Error(fault(code, "file size", out.identity_.size, end), path.string());
  }
  out.entries_ = manifest.trunk;
  out.loaded_.resize(out.entries_.size());
  for (std::size_t i = 0; i < out.entries_.size(); ++i) {
    out.by_name_.emplace(out.entries_[i].name, i);
  }
  if (!resident) return out;

  std::vector<std::size_t> todo;
  for (const std::string& name : resident_tensors(manifest)) {
    todo.push_back(out.index_of(name));
    out.resident_bytes_ += out.entries_[todo.back()].bytes;
  }
  if (const std::uint64_t usable = memory_limit().usable_bytes();
      usable != 0 && out.resident_bytes_ > usable) {
    throw Error(fault(Errc::over_budget, "resident trunk", out.resident_bytes_, usable),
                path.string());
  }
  std::sort(todo.begin(), todo.end());
  parallel_for(todo.size(), threads, [&](std::size_t i) {
    out.loaded_[todo[i]] = out.load_entry(out.entries_[todo[i]]);
  });
  return out;
}

std::size_t Trunk::index_of(std::string_view name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) {
    throw Error(fault(Errc::missing, "trunk tensor"), file_.path().string(), name);
  }
  return it->second;
}

const format::TrunkEntry& Trunk::entry(std::string_view name) const {
  return entries_[index_of(name)];
}

bool Trunk::contains(std::string_view name) const noexcept {
  return by_name_.find(name) != by_name_.end();
}

bool Trunk::is_resident(std::string_view name) const noexcept {
  const auto it = by_name_.find(name);
  return it != by_name_.end() && !loaded_[it->second].empty();
}

TrunkMatrix Trunk::tensor(std::string_view name) const {
  const LoadedTensor& t = loaded_[index_of(name)];
  if (t.empty()) {
    throw Error(fault(Errc::bad_argument, "tensor is not resident"), file_.path().string(), name);
  }
  return t.view();
}

std::span<const float> Trunk::values(std::string_view name) const {
  const TrunkMatrix m = tensor(name);
  if (m.fmt != format::Fmt::f32) {
    throw Error(fault(Errc::unsupported, "trunk.fmt", static_cast<std::uint64_t>(m.fmt), 0),
                file_.path().string(), name);
  }
  return {reinterpret_cast<const float*>(m.payload), m.rows() * m.cols()};
}

void Trunk::read_checked(std::span<std::uint8_t> out, std::uint64_t offset,
                         const std::string& name) const {
  Fault read;
  for (std::size_t at = 0; at < out.size() && !read; at += piece_bytes) {
    read = file_.try_pread(out.subspan(at, std::min(piece_bytes, out.size() - at)), offset + at);
  }
  // A file that shrank answers with a short read; say what happened rather than what it caused.
  check(file_.check_unchanged(identity_), file_.path().string(), name);
  check(read, file_.path().string(), name);
}

LoadedTensor Trunk::load_entry(const format::TrunkEntry& t) const {
  LoadedTensor out;
  try {
    out.bytes_ = AlignedBuffer<std::uint8_t>(t.bytes + tail_bytes, 64, Uninitialized{});
  } catch (const std::bad_alloc&) {
    throw Error(fault(Errc::over_budget, "trunk tensor", t.bytes, 0), file_.path().string(),
                t.name + ": no memory");
  }
  const std::span<std::uint8_t> bytes(out.bytes_.data(), t.bytes);
  read_checked(bytes, t.off, t.name);
  const auto want = sums_ ? sums_->of_tensor(t.name) : std::nullopt;
  if (const std::uint32_t crc = want ? crc32(bytes) : 0; want && crc != *want) {
    throw Error(fault(Errc::checksum, "crc32", crc, *want), file_.path().string(), t.name);
  }
  std::memset(out.bytes_.data() + t.bytes, 0, tail_bytes);
  const format::TrunkSizes sizes = sizes_of(t);
  check(check_trunk_values(t.fmt, bytes.first(sizes.payload), bytes.subspan(sizes.payload)),
        file_.path().string(), t.name);
  out.view_ = view_of(t, out.bytes_.data(), t.rows());
  return out;
}

LoadedTensor Trunk::load(std::string_view name) const { return load_entry(entry(name)); }

TrunkMatrix Trunk::read_row(std::string_view name, std::uint64_t row,
                            AlignedBuffer<std::uint8_t>& buffer) const {
  const format::TrunkEntry& t = entry(name);
  if (row >= t.rows()) {
    throw Error(fault(Errc::out_of_range, "row", row, t.rows() - 1), file_.path().string(), name);
  }
  const std::uint64_t payload = format::trunk_row_bytes(t.fmt, t.cols());
  const std::uint64_t scales = format::trunk_row_scale_bytes(t.fmt, t.cols());
  if (buffer.size() < payload + scales + tail_bytes) {
    buffer = AlignedBuffer<std::uint8_t>(payload + scales + tail_bytes, 64);
  }
  const auto payload_to = buffer.span().first(payload);
  const auto scales_to = buffer.span().subspan(payload, scales);
  read_checked(payload_to, t.off + row * payload, t.name);
  if (scales != 0) read_checked(scales_to, t.scale_off + row * scales, t.name);
  check(check_trunk_values(t.fmt, payload_to, scales_to), file_.path().string(), name);
  return view_of(t, buffer.data(), 1);
}

}  // namespace waste::io
