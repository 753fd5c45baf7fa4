#include "waste/io/checksums.hpp"

#include <algorithm>

#include "waste/format/codebook.hpp"
#include "waste/format/json.hpp"
#include "waste/format/substitutes.hpp"
#include "waste/io/crc32.hpp"
#include "waste/io/file.hpp"

namespace waste::io {
namespace {

constexpr std::uint64_t piece_bytes = 1u << 20;  // summed while still in cache

std::uint32_t crc_of(const File& file, std::uint64_t off, std::uint64_t bytes,
                     std::vector<std::uint8_t>& piece) {
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < bytes; at += piece_bytes) {
    piece.resize(std::min(piece_bytes, bytes - at));
    file.pread(piece, off + at);
    crc = crc32(piece, crc);
  }
  return crc;
}

/// Of every whole record of a codebook file.
std::vector<std::uint32_t> crcs_of_codebooks(const std::filesystem::path& path,
                                             const format::ExpertQuant& quant,
                                             std::vector<std::uint8_t>& piece) {
  std::vector<std::uint32_t> out;
  const File file = File::open(path);
  const std::uint64_t record = format::codebook_record_bytes(quant);
  for (std::uint64_t at = 0; at + record <= file.size(); at += record) {
    out.push_back(crc_of(file, at, record, piece));
  }
  return out;
}

std::uint32_t number(const JsonValue& v, const char* field, const std::string& file) {
  const std::uint64_t* n = v.as_unsigned();
  if (n == nullptr || *n > 0xffffffffu) {
    throw Error(fault(Errc::bad_field, field), file, "wanted a number below 2^32");
  }
  return static_cast<std::uint32_t>(*n);
}

}  // namespace

std::optional<std::uint32_t> Checksums::of_tensor(std::string_view name) const noexcept {
  const auto it = std::lower_bound(trunk.begin(), trunk.end(), name,
                                   [](const auto& t, std::string_view n) { return t.first < n; });
  if (it == trunk.end() || it->first != name) return std::nullopt;
  return it->second;
}

std::optional<std::uint32_t> Checksums::of_codebook(std::size_t id) const noexcept {
  if (id >= codebooks.size()) return std::nullopt;
  return codebooks[id];
}

std::optional<std::uint32_t> Checksums::of_file(std::string_view name) const noexcept {
  const auto it =
      std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.first == name; });
  if (it == files.end()) return std::nullopt;
  return it->second;
}

std::optional<Checksums> read_checksums(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / checksums_file;
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return std::nullopt;
  const JsonValue json = parse_json(read_text(path, format::limits::manifest_bytes), path.string(),
                                    format::manifest_limits);
  if (!json.is_object()) throw Error(fault(Errc::bad_field, "file"), path.string(), "no object");
  const JsonValue* version = json.find("version");
  if (version == nullptr || !(*version == JsonValue(1))) return std::nullopt;
  const JsonValue *trunk = json.find("trunk"), *codebooks = json.find("codebooks");
  if (trunk == nullptr || !trunk->is_object() || codebooks == nullptr || !codebooks->is_array()) {
    throw Error(
        fault(Errc::bad_field, trunk != nullptr && trunk->is_object() ? "codebooks" : "trunk"),
        path.string());
  }
  Checksums out;
  for (const auto& [name, crc] : *trunk->as_object()) {
    out.trunk.emplace_back(name, number(crc, "trunk", path.string()));
  }
  std::sort(out.trunk.begin(), out.trunk.end());
  for (const JsonValue& crc : *codebooks->as_array()) {
    out.codebooks.push_back(number(crc, "codebooks", path.string()));
  }
  if (const JsonValue* substitutes = json.find("substitute_codebooks")) {
    if (!substitutes->is_array()) {
      throw Error(fault(Errc::bad_field, "substitute_codebooks"), path.string());
    }
    for (const JsonValue& crc : *substitutes->as_array()) {
      out.substitute_codebooks.push_back(number(crc, "substitute_codebooks", path.string()));
    }
  }
  if (const JsonValue* files = json.find("files")) {
    if (!files->is_object()) throw Error(fault(Errc::bad_field, "files"), path.string());
    for (const std::string_view name : summed_files) {
      if (const JsonValue* crc = files->find(name)) {
        out.files.emplace_back(name, number(*crc, "files", path.string()));
      }
    }
  }
  return out;
}

Checksums compute_checksums(const std::filesystem::path& directory,
                            const format::Manifest& manifest) {
  Checksums out;
  std::vector<std::uint8_t> piece;
  const File trunk = File::open(directory / "trunk.bin");
  for (const format::TrunkEntry& t : manifest.trunk) {
    out.trunk.emplace_back(t.name, crc_of(trunk, t.off, t.bytes, piece));
  }
  std::sort(out.trunk.begin(), out.trunk.end());
  out.codebooks = crcs_of_codebooks(directory / "codebooks.bin", manifest.expert_quant, piece);
  const std::filesystem::path substitutes = directory / format::substitute_codebooks_file;
  if (std::error_code ec; std::filesystem::exists(substitutes, ec)) {
    out.substitute_codebooks = crcs_of_codebooks(substitutes, format::sub1, piece);
  }
  for (const std::string_view name : summed_files) {
    if (std::error_code ec; std::filesystem::exists(directory / name, ec)) {
      out.files.emplace_back(name, file_crc(directory / name));
    }
  }
  return out;
}

std::uint32_t file_crc(const std::filesystem::path& path) {
  const File file = File::open(path);
  std::vector<std::uint8_t> piece;
  return crc_of(file, 0, file.size(), piece);
}

std::string dump_checksums(const Checksums& sums) {
  JsonValue trunk(JsonValue::Object{}), out;
  for (const auto& [name, crc] : sums.trunk) trunk.as_object()->emplace_back(name, crc);
  JsonValue::Array codebooks(sums.codebooks.begin(), sums.codebooks.end());
  out.set("version", 1);
  out.set("trunk", std::move(trunk));
  out.set("codebooks", std::move(codebooks));
  if (!sums.substitute_codebooks.empty()) {
    out.set("substitute_codebooks", JsonValue(JsonValue::Array(sums.substitute_codebooks.begin(),
                                                               sums.substitute_codebooks.end())));
  }
  if (!sums.files.empty()) {
    JsonValue files(JsonValue::Object{});
    for (const auto& [name, crc] : sums.files) files.as_object()->emplace_back(name, crc);
    out.set("files", std::move(files));
  }
  return dump_json(out, 1);
}

}  // namespace waste::io
