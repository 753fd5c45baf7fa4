#include "waste/io/safetensors.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "waste/core/checked.hpp"
#include "waste/core/half.hpp"
#include "waste/format/json.hpp"
#include "waste/io/crc32.hpp"

namespace waste::io {
namespace {

constexpr std::string_view index_name = "model.safetensors.index.json";
constexpr std::string_view single_name = "model.safetensors";

struct DtypeInfo {
  std::string_view name;
  Dtype dtype;
  std::uint32_t bits;
};
constexpr DtypeInfo dtypes[] = {
    {"F32", Dtype::f32, 32},      {"F16", Dtype::f16, 16},      {"BF16", Dtype::bf16, 16},
    {"U8", Dtype::u8, 8},         {"BOOL", Dtype::other, 8},    {"I8", Dtype::other, 8},
    {"F8_E5M2", Dtype::other, 8}, {"F8_E4M3", Dtype::other, 8}, {"F8_E8M0", Dtype::other, 8},
    {"I16", Dtype::other, 16},    {"U16", Dtype::other, 16},    {"I32", Dtype::other, 32},
    {"U32", Dtype::other, 32},    {"I64", Dtype::other, 64},    {"U64", Dtype::other, 64},
    {"F64", Dtype::other, 64},    {"C64", Dtype::other, 64},    {"F4", Dtype::other, 4},
    {"F6_E2M3", Dtype::other, 6}, {"F6_E3M2", Dtype::other, 6},
};

const DtypeInfo* dtype_of(std::string_view name) noexcept {
  for (const DtypeInfo& d : dtypes) {
    if (d.name == name) return &d;
  }
  return nullptr;
}

[[noreturn]] void refuse(Errc code, const char* field, std::string_view file,
                         const std::string& detail) {
  throw Error(fault(code, field), file, detail);
}

SourceTensor parse_entry(const std::string& name, const JsonValue& entry, std::uint64_t data_off,
                         std::uint64_t data_bytes, std::string_view file) {
  const std::string where = "tensor " + name;
  if (!entry.is_object()) refuse(Errc::bad_field, "tensor", file, where + " is no object");
  const JsonValue* dtype = entry.find("dtype");
  const JsonValue* shape = entry.find("shape");
  const JsonValue* offsets = entry.find("data_offsets");
  if (!dtype || !shape || !offsets || entry.as_object()->size() != 3) {
    refuse(Errc::bad_field, "tensor", file, where + " needs exactly dtype, shape, data_offsets");
  }
  if (!dtype->is_string()) refuse(Errc::bad_field, "dtype", file, where);
  const DtypeInfo* info = dtype_of(*dtype->as_string());
  if (!info) refuse(Errc::unsupported, "dtype", file, where + " is " + *dtype->as_string());

  SourceTensor t;
  t.name = name;
  t.dtype = info->dtype;
  t.dtype_name = info->name;
  const auto* dims = shape->as_array();
  if (!dims || dims->size() > safetensors_limits::dims) {
    refuse(Errc::bad_field, "shape", file, where + " wants an array of at most 8 numbers");
  }
  CheckedSize bits(info->bits);
  bool empty = false;
  for (const JsonValue& d : *dims) {
    const std::uint64_t* n = d.as_unsigned();
    if (!n) refuse(Errc::bad_field, "shape", file, where);
    t.shape.push_back(*n);
    empty = empty || *n == 0;
    if (*n != 0) bits.mul(*n);
  }
  if (!bits.ok()) refuse(Errc::overflow, "shape", file, where);
  const std::uint64_t want_bits = empty ? 0 : bits.value();
  const auto* range = offsets->as_array();
  if (!range || range->size() != 2 || !(*range)[0].is_unsigned() || !(*range)[1].is_unsigned()) {
    refuse(Errc::bad_field, "data_offsets", file, where);
  }
  const std::uint64_t begin = *(*range)[0].as_unsigned();
  const std::uint64_t end = *(*range)[1].as_unsigned();
  if (begin > end || end > data_bytes) {
    throw Error(fault(end > data_bytes ? Errc::truncated : Errc::bad_field, "data_offsets", end,
                      end > data_bytes ? data_bytes : begin),
                file, where);
  }
  if (want_bits % 8 != 0 || end - begin != want_bits / 8) {
    throw Error(
        fault(Errc::mismatch, "data_offsets", end - begin, ceil_div<std::uint64_t>(want_bits, 8)),
        file, where + ": bytes of the range against dtype x shape");
  }
  t.off = data_off + begin;
  t.bytes = end - begin;
  return t;
}

bool stays_inside(std::string_view name) noexcept {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

struct OpenedShard {
  Safetensors::Shard shard;
  std::vector<SourceTensor> tensors;
};

OpenedShard open_shard(const std::filesystem::path& directory, const std::string& name) {
  OpenedShard out;
  out.shard.name = name;
  out.shard.file = File::open(directory / name);
  out.shard.identity = out.shard.file.identity();
  const std::string file = out.shard.file.path().string();
  const std::uint64_t size = out.shard.identity.size;
  if (size < 8) throw Error(fault(Errc::truncated, "header length", size, 8), file);
  std::uint8_t prefix[8];
  out.shard.file.pread(prefix, 0);
  const auto header_bytes = load_le<std::uint64_t>(prefix);
  if (header_bytes > safetensors_limits::header_bytes) {
    throw Error(
        fault(Errc::out_of_range, "header length", header_bytes, safetensors_limits::header_bytes),
        file);
  }
  if (header_bytes > size - 8) {
    throw Error(fault(Errc::truncated, "header", size - 8, header_bytes), file);
  }
  std::string json(static_cast<std::size_t>(header_bytes), '\0');
  const std::span<std::uint8_t> bytes(reinterpret_cast<std::uint8_t*>(json.data()), json.size());
  out.shard.file.pread(bytes, 8);
  out.shard.header_crc32 = crc32(bytes);
  out.tensors = parse_safetensors_header(json, 8 + header_bytes, size - 8 - header_bytes, file);
  return out;
}

/// tensor name -> shard name, checked for names that leave the directory.
std::map<std::string, std::string, std::less<>> read_index(const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::string text = read_text(path, safetensors_limits::index_bytes);
  JsonLimits limits;
  limits.bytes = safetensors_limits::index_bytes;
  const JsonValue index = parse_json(text, file, limits);
  const JsonValue* weight_map = index.find("weight_map");
  if (!weight_map) refuse(Errc::missing, "weight_map", file, "");
  if (!weight_map->is_object()) refuse(Errc::bad_field, "weight_map", file, "wanted an object");
  std::map<std::string, std::string, std::less<>> out;
  for (const auto& [tensor, shard] : *weight_map->as_object()) {
    if (!shard.is_string() || !stays_inside(*shard.as_string())) {
      refuse(Errc::bad_field, "weight_map", file,
             "tensor " + tensor + " needs the name of a file in this directory");
    }
    out.emplace(tensor, *shard.as_string());
  }
  return out;
}

}  // namespace

std::vector<SourceTensor> parse_safetensors_header(std::string_view json, std::uint64_t data_off,
                                                   std::uint64_t data_bytes,
                                                   std::string_view file) {
  JsonLimits limits;
  limits.bytes = safetensors_limits::header_bytes;
  const JsonValue header = parse_json(json, file, limits);
  if (!header.is_object()) refuse(Errc::bad_field, "header", file, "wanted an object");
  std::vector<SourceTensor> tensors;
  tensors.reserve(header.as_object()->size());
  for (const auto& [name, entry] : *header.as_object()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) refuse(Errc::bad_field, "__metadata__", file, "wanted an object");
      continue;
    }
    tensors.push_back(parse_entry(name, entry, data_off, data_bytes, file));
  }
  std::sort(tensors.begin(), tensors.end(), [](const SourceTensor& a, const SourceTensor& b) {
    return a.off != b.off ? a.off < b.off : a.bytes < b.bytes;
  });
  std::uint64_t at = data_off;
  for (const SourceTensor& t : tensors) {
    if (t.off != at) {
      throw Error(fault(Errc::mismatch, "data_offsets", t.off - data_off, at - data_off), file,
                  "tensor " + t.name + (t.off < at ? " overlaps its neighbour" : " leaves a gap"));
    }
    at += t.bytes;
  }
  if (at != data_off + data_bytes) {
    throw Error(fault(Errc::mismatch, "file size", data_off + data_bytes, at), file,
                "bytes after the last tensor");
  }
  return tensors;
}

Safetensors Safetensors::open(const std::filesystem::path& directory) {
  Safetensors out;
  out.directory_ = directory;
  std::error_code ignored;
  const bool sharded = std::filesystem::exists(directory / index_name, ignored);
  if (!sharded && !std::filesystem::exists(directory / single_name, ignored)) {
    throw Error(fault(Errc::not_found, "checkpoint"), directory.string(),
                "wanted " + std::string(index_name) + " or " + std::string(single_name));
  }
  const std::string index_file = (directory / index_name).string();
  std::map<std::string, std::string, std::less<>> weight_map;
  std::vector<std::string> names;
  if (sharded) {
    weight_map = read_index(directory / index_name);
    for (const auto& [tensor, shard] : weight_map) names.push_back(shard);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.size() > safetensors_limits::shards) {
      throw Error(
          fault(Errc::out_of_range, "weight_map shards", names.size(), safetensors_limits::shards),
          index_file);
    }
  } else {
    names.emplace_back(single_name);
  }
  for (const std::string& name : names) {
    OpenedShard opened = open_shard(directory, name);
    for (SourceTensor& t : opened.tensors) {
      t.shard = static_cast<std::uint32_t>(out.shards_.size());
      if (sharded) {
        const auto claim = weight_map.find(t.name);
        if (claim == weight_map.end() || claim->second != name) {
          refuse(Errc::mismatch, "weight_map", index_file,
                 "tensor " + t.name + " is in " + name + " and the index says " +
                     (claim == weight_map.end() ? "nothing of it" : claim->second));
        }
      }
      out.tensors_.push_back(std::move(t));
    }
    out.shards_.push_back(std::move(opened.shard));
  }
  std::sort(out.tensors_.begin(), out.tensors_.end(),
            [](const SourceTensor& a, const SourceTensor& b) { return a.name < b.name; });
  for (const auto& [tensor, shard] : weight_map) {
    if (!out.find(tensor)) {
      refuse(Errc::missing, "tensor", (directory / shard).string(),
             tensor + ", which the index places here");
    }
  }
  return out;
}

const SourceTensor* Safetensors::find(std::string_view name) const noexcept {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const SourceTensor& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const SourceTensor& Safetensors::at(std::string_view name) const {
  if (const SourceTensor* t = find(name)) return *t;
  throw Error(fault(Errc::missing, "tensor"), directory_.string(), name);
}

const Safetensors::Shard& Safetensors::shard_of(const SourceTensor& tensor) const {
  if (tensor.shard < shards_.size()) return shards_[tensor.shard];
  throw Error(fault(Errc::bad_argument, "shard", tensor.shard, shards_.size()), directory_.string(),
              "tensor " + tensor.name + " is not of this checkpoint");
}

void Safetensors::read_bytes(const SourceTensor& tensor, std::uint64_t first_byte,
                             std::span<std::uint8_t> out) const {
  if (first_byte > tensor.bytes || out.size() > tensor.bytes - first_byte) {
    throw Error(fault(Errc::bad_argument, "range", first_byte + out.size(), tensor.bytes), {},
                "tensor " + tensor.name);
  }
  const Shard& shard = shard_of(tensor);
  if (shard.file.identity() != shard.identity) {
    throw Error(fault(Errc::changed, "shard"), shard.file.path().string(), "tensor " + tensor.name);
  }
  shard.file.pread(out, tensor.off + first_byte);
}

void Safetensors::read_f32(const SourceTensor& tensor, std::uint64_t first_element,
                           std::span<float> out) const {
  const std::uint64_t width = tensor.dtype == Dtype::f32 ? 4 : 2;
  if (tensor.dtype == Dtype::u8 || tensor.dtype == Dtype::other) {
    refuse(Errc::unsupported, "dtype", shard_of(tensor).file.path().string(),
           "tensor " + tensor.name + " is " + tensor.dtype_name + ", wanted F32, F16 or BF16");
  }
  if (first_element > tensor.elements()) {
    throw Error(fault(Errc::bad_argument, "range", first_element, tensor.elements()), {},
                "tensor " + tensor.name);
  }
  if (width == 4) {
    read_bytes(tensor, 4 * first_element,
               {reinterpret_cast<std::uint8_t*>(out.data()), 4 * out.size()});
    return;
  }
  constexpr std::size_t piece = std::size_t{128} << 10;
  std::vector<std::uint16_t> raw(std::min(out.size(), piece));
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t n = std::min(piece, out.size() - done);
    read_bytes(tensor, 2 * (first_element + done),
               {reinterpret_cast<std::uint8_t*>(raw.data()), 2 * n});
    if (tensor.dtype == Dtype::bf16) {
      for (std::size_t i = 0; i < n; ++i) out[done + i] = bf16_to_f32(raw[i]);
    } else {
      for (std::size_t i = 0; i < n; ++i) out[done + i] = f16_to_f32(raw[i]);
    }
    done += n;
  }
}

}  // namespace waste::io
