#include "waste/format/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "waste/core/checked.hpp"
#include "waste/format/json_fields.hpp"
#include "waste/format/trunk_view.hpp"

namespace waste::format {
namespace {

Fmt parse_expert_fmt(const JsonFields& in) {
  const std::string& name = in.string("expert_quant.fmt", 64);
  for (const Fmt fmt : {Fmt::vq3r, Fmt::vq2r, Fmt::vq4p}) {
    if (name == to_string(fmt)) return fmt;
  }
  in.refuse(Errc::unsupported, "expert_quant.fmt", "\"" + name + "\", wanted VQ3R, VQ2R or VQ4P");
}

ExpertQuant parse_expert_quant(const JsonFields& in) {
  constexpr std::uint32_t any = 0xffffffffu;
  ExpertQuant q;
  q.fmt = parse_expert_fmt(in);
  q.stages = in.u32("expert_quant.stages", 0, any);
  q.vec_dim = in.u32("expert_quant.vec_dim", 0, any);
  q.entries = in.u32("expert_quant.entries", 0, any);
  q.index_block = in.u32("expert_quant.index_block", 0, any);
  q.index_bits = static_cast<std::uint32_t>(in.integer_or("expert_quant.index_bits", 0, any, 8));
  check(validate(q), in.file(), "expert_quant");
  if (const auto bits = in.optional_number("expert_quant.bits_per_weight", 0.0, 64.0);
      bits && *bits != q.bits_per_weight()) {
    in.refuse(Errc::mismatch, "expert_quant.bits_per_weight",
              "wanted stages * index_bits / vec_dim = " + std::to_string(q.bits_per_weight()));
  }
  return q;
}

/// A name that cannot leave the folder it is looked up in.
void check_file_name(const std::string& name, const JsonFields& in) {
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find('/') == std::string::npos && name.find('\\') == std::string::npos;
  if (!plain) {
    in.refuse(Errc::bad_field, "layers.file",
              "\"" + name + "\", wanted a file name inside the container");
  }
}

std::optional<std::uint32_t> layer_number(const std::string& key) {
  std::uint32_t n = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), n);
  if (error != std::errc() || end != key.data() + key.size()) return std::nullopt;
  if (key.size() > 1 && key[0] == '0') return std::nullopt;
  return n;
}

BankEntry parse_bank(const JsonValue& value, std::uint32_t layer, const Manifest& m,
                     std::string_view file) {
  const JsonFields in(value, "layers", {file, {}, layer});
  BankEntry bank;
  bank.layer = layer;
  bank.file = in.string("layers.file", 255);
  check_file_name(bank.file, in);
  bank.experts = in.u32("layers.experts", 0, 0xffffffffu);
  if (bank.experts != m.model.num_experts) {
    in.refuse(fault(Errc::mismatch, "layers.experts", bank.experts, m.model.num_experts));
  }
  bank.bytes = in.integer("layers.bytes", 0, ~std::uint64_t{0});
  // Both factors are bounded: 65535 records below 2^32 bytes.
  const std::uint64_t bytes = bank.experts * m.layout.record_bytes;
  if (bank.bytes != bytes) {
    in.refuse(fault(Errc::mismatch, "layers.bytes", bank.bytes, bytes),
              std::to_string(bank.experts) + " records of " +
                  std::to_string(m.layout.record_bytes) + " bytes");
  }
  bank.codebook_base = in.u32("layers.codebook_base", 0,
                              static_cast<std::uint32_t>(limits::codebooks) -
                                  static_cast<std::uint32_t>(kinds) * m.expert_quant.stages);
  return bank;
}

void parse_layers(const JsonValue& value, Manifest& m, std::string_view file) {
  const JsonFields in(value, "layers", {file});
  const std::uint32_t first = m.model.first_k_dense_replace;
  std::set<std::string> files;
  for (const auto& [key, entry] : *value.as_object()) {
    const auto layer = layer_number(key);
    if (!layer) {
      in.refuse(Errc::bad_field, "layers", "key \"" + key.substr(0, 40) + "\" is no layer number");
    }
    if (*layer < first || *layer >= m.model.num_hidden_layers) {
      in.refuse(fault(Errc::out_of_range, "layers", *layer,
                      *layer < first ? first : m.model.num_hidden_layers - 1),
                "no MoE layer of this model");
    }
    m.layers.push_back(parse_bank(entry, *layer, m, file));
    if (!files.insert(m.layers.back().file).second) {
      in.refuse(Errc::duplicate, "layers.file", "\"" + m.layers.back().file + "\"");
    }
  }
  std::sort(m.layers.begin(), m.layers.end(),
            [](const BankEntry& a, const BankEntry& b) { return a.layer < b.layer; });
  for (std::uint32_t i = 0; i < m.model.moe_layers(); ++i) {
    if (i >= m.layers.size() || m.layers[i].layer != first + i) {
      in.refuse(Errc::missing, "layers", "layer " + std::to_string(first + i));
    }
  }
}

Fmt parse_trunk_fmt(const JsonFields& in) {
  const std::uint64_t number = in.integer("trunk.fmt", 0, 255);
  const auto fmt = static_cast<Fmt>(number);
  if (trunk_row_bytes(fmt, 1) == 0) {
    in.refuse(Errc::unsupported, "trunk.fmt",
              std::to_string(number) + ", wanted 0 (F32), 1 (F16), 2 (Q8G), 3 (Q4G) or 7 (Q3G)");
  }
  return fmt;
}

std::vector<std::uint64_t> parse_shape(const JsonFields& in) {
  const JsonValue::Array& dims = in.array("trunk.shape");
  if (dims.size() > limits::tensor_dims) {
    in.refuse(fault(Errc::out_of_range, "trunk.shape", dims.size(), limits::tensor_dims),
              "number of dimensions");
  }
  std::vector<std::uint64_t> shape;
  for (const JsonValue& d : dims) {
    const std::uint64_t* n = d.as_unsigned();
    if (n == nullptr) {
      in.refuse(Errc::bad_field, "trunk.shape", "wanted integers, got " + std::string(kind_of(d)));
    }
    if (*n < 1 || *n > limits::vocabulary) {
      in.refuse(fault(Errc::out_of_range, "trunk.shape", *n, *n < 1 ? 1 : limits::vocabulary));
    }
    shape.push_back(*n);
  }
  return shape;
}

void parse_trunk_entry(const JsonFields& in, TrunkEntry& t) {
  t.fmt = parse_trunk_fmt(in);
  t.shape = parse_shape(in);
  const auto count = elements(t.shape);
  // A group is at most 128 columns of padding, so 2^46 elements bound every product below.
  if (!count || *count > limits::tensor_elements) {
    in.refuse(Errc::overflow, "trunk.shape", "too many elements");
  }
  t.off = in.integer("trunk.off", 0, std::uint64_t{1} << 62);
  t.bytes = in.integer("trunk.bytes", 0, ~std::uint64_t{0});
  const TrunkSizes sizes = trunk_sizes(t.fmt, t.rows(), t.cols());
  if (t.bytes != sizes.total()) {
    in.refuse(fault(Errc::mismatch, "trunk.bytes", t.bytes, sizes.total()));
  }
  if (!is_grouped(t.fmt)) return;
  if (const std::uint64_t g = in.integer("trunk.group", 0, ~std::uint64_t{0}); g != group) {
    in.refuse(fault(Errc::unsupported, "trunk.group", g, group));
  }
  t.scale_off = in.integer("trunk.scale_off", 0, ~std::uint64_t{0});
  if (t.scale_off != t.off + sizes.payload) {
    in.refuse(fault(Errc::mismatch, "trunk.scale_off", t.scale_off, t.off + sizes.payload));
  }
}

void check_required(const Manifest& m, std::string_view file) {
  std::unordered_map<std::string_view, const TrunkEntry*> by_name;
  for (const TrunkEntry& t : m.trunk) by_name.emplace(t.name, &t);
  for (const RequiredTensor& wanted : required_tensors(m.model)) {
    const std::string name = m.tensor_prefix + wanted.name;
    const auto it = by_name.find(name);
    if (it == by_name.end()) throw Error(fault(Errc::missing, "trunk"), file, name);
    check(check_tensor(wanted, it->second->shape, it->second->fmt), file, name);
  }
}

void parse_trunk(const JsonFields& top, Manifest& m, std::string_view file) {
  const JsonValue::Array& entries = top.array("trunk");
  std::unordered_set<std::string_view> names;
  m.trunk.reserve(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    TrunkEntry& t = m.trunk.emplace_back();
    const std::string number = "entry " + std::to_string(i);
    const JsonFields in(entries[i], "trunk", {file, number});
    t.name = in.string("trunk.name", limits::name_bytes);
    if (t.name.empty()) in.refuse(Errc::bad_field, "trunk.name", "empty");
    parse_trunk_entry(JsonFields(entries[i], "trunk", {file, t.name}), t);
    if (!names.insert(*entries[i].find("name")->as_string()).second) {
      top.refuse(Errc::duplicate, "trunk.name", t.name);
    }
  }
  std::stable_sort(m.trunk.begin(), m.trunk.end(),
                   [](const TrunkEntry& a, const TrunkEntry& b) { return a.off < b.off; });
  std::uint64_t end = 0;
  for (const TrunkEntry& t : m.trunk) {
    if (t.off < end) {
      throw Error(fault(Errc::mismatch, "trunk.off", t.off, end), file,
                  t.name + " overlaps the tensor before it");
    }
    end = t.off + t.bytes;
  }
  check_required(m, file);
}

JsonValue::Array dump_shape(const std::vector<std::uint64_t>& shape) {
  return {shape.begin(), shape.end()};
}

JsonValue dump_trunk_entry(const TrunkEntry& t) {
  JsonValue out;
  out.set("name", t.name);
  out.set("fmt", std::uint64_t{static_cast<std::uint8_t>(t.fmt)});
  out.set("off", t.off);
  out.set("shape", dump_shape(t.shape));
  if (is_grouped(t.fmt)) {
    out.set("group", std::uint64_t{group});
    out.set("scale_off", t.scale_off);
  }
  out.set("bytes", t.bytes);
  return out;
}

}  // namespace

std::optional<std::uint64_t> elements(const std::vector<std::uint64_t>& shape) noexcept {
  CheckedSize n(1);
  for (const std::uint64_t d : shape) n.mul(d);
  if (!n.ok()) return std::nullopt;
  return n.value();
}

Fault check_tensor(const RequiredTensor& wanted, const std::vector<std::uint64_t>& shape,
                   Fmt fmt) noexcept {
  using Role = RequiredTensor::Role;
  const std::uint64_t got = elements(shape).value_or(0);
  const std::uint64_t want = elements(wanted.shape).value_or(0);
  const bool fits = wanted.role == Role::row
                        ? got == want && !shape.empty() && shape.back() == wanted.shape.back()
                    : wanted.role == Role::at_least ? got >= want
                                                    : shape == wanted.shape;
  if (!fits) return fault(Errc::shape, "trunk.shape", got, want);
  if (wanted.role != Role::matrix && fmt != Fmt::f32) {
    return fault(Errc::unsupported, "trunk.fmt", static_cast<std::uint64_t>(fmt),
                 static_cast<std::uint64_t>(Fmt::f32));
  }
  return {};
}

const BankEntry* Manifest::bank(LayerId layer) const noexcept {
  const auto it = std::lower_bound(
      layers.begin(), layers.end(), to_index(layer),
      [](const BankEntry& bank, std::uint32_t number) { return bank.layer < number; });
  return it == layers.end() || it->layer != to_index(layer) ? nullptr : &*it;
}

const TrunkEntry* Manifest::tensor(std::string_view name) const noexcept {
  const auto it =
      std::find_if(trunk.begin(), trunk.end(), [&](const TrunkEntry& t) { return t.name == name; });
  return it == trunk.end() ? nullptr : &*it;
}

std::uint64_t trunk_end(const Manifest& manifest) noexcept {
  std::uint64_t end = 0;
  for (const TrunkEntry& t : manifest.trunk) end = std::max(end, t.off + t.bytes);
  return end;
}

std::uint64_t trunk_hole_bytes(const Manifest& manifest) noexcept {
  std::uint64_t used = 0;
  for (const TrunkEntry& t : manifest.trunk) used += t.bytes;
  return trunk_end(manifest) - used;
}

Manifest parse_manifest(std::string_view text, std::string_view file) {
  const JsonValue root = parse_json(text, file, manifest_limits);
  const JsonFields top(root, "manifest", {file});
  const JsonValue* version = top.find("format_version");
  const std::uint64_t* number = version == nullptr ? nullptr : version->as_unsigned();
  if (number == nullptr) {
    top.refuse(Errc::bad_version, "format_version",
               "wanted 0, got " + std::string(version == nullptr ? "none" : kind_of(*version)));
  }
  if (*number != format_version) {
    throw Error(fault(Errc::bad_version, "format_version", *number, format_version), file);
  }
  Manifest m;
  m.arch = top.string("arch", limits::name_bytes);
  m.tensor_prefix = top.string("tensor_prefix", limits::name_bytes);
  m.config = top.require("config");
  m.model = parse_model_config(m.config, file);
  m.expert_quant =
      parse_expert_quant(JsonFields(top.require("expert_quant"), "expert_quant", {file}));
  check(derive_layout(m.expert_quant, m.model.expert_shape(), m.layout), file);
  parse_layers(top.require("layers"), m, file);
  parse_trunk(top, m, file);
  return m;
}

std::string dump_manifest(const Manifest& m) {
  JsonValue quant;
  quant.set("fmt", to_string(m.expert_quant.fmt));
  quant.set("stages", m.expert_quant.stages);
  quant.set("vec_dim", m.expert_quant.vec_dim);
  quant.set("entries", m.expert_quant.entries);
  quant.set("index_block", m.expert_quant.index_block);
  quant.set("index_bits", m.expert_quant.index_bits);
  quant.set("bits_per_weight", m.expert_quant.bits_per_weight());
  JsonValue layers = JsonValue::Object{};
  for (const BankEntry& bank : m.layers) {
    JsonValue entry;
    entry.set("file", bank.file);
    entry.set("experts", bank.experts);
    entry.set("bytes", bank.bytes);
    entry.set("codebook_base", bank.codebook_base);
    layers.set(std::to_string(bank.layer), std::move(entry));
  }
  JsonValue trunk = JsonValue::Array{};
  for (const TrunkEntry& t : m.trunk) trunk.push_back(dump_trunk_entry(t));
  JsonValue root;
  root.set("format_version", std::uint64_t{format_version});
  root.set("arch", m.arch);
  root.set("tensor_prefix", m.tensor_prefix);
  root.set("config", m.config);
  root.set("expert_quant", std::move(quant));
  root.set("layers", std::move(layers));
  root.set("trunk", std::move(trunk));
  return dump_json(root, 1);
}

}  // namespace waste::format
