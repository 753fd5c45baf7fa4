#include "support/tiny_container.hpp"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace waste::test {
namespace {

/// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  /// Mean 0, variance 1: twelve uniforms are normal enough here.
  double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

template <class T>
void put(Bytes& to, T value) {
  const auto at = to.size();
  to.resize(at + sizeof value);
  std::memcpy(to.data() + at, &value, sizeof value);
}

std::uint64_t count_of(const std::vector<std::uint64_t>& shape) {
  std::uint64_t n = 1;
  for (const auto d : shape) n *= d;
  return n;
}

bool ends_with(const std::string& s, const std::string& end) {
  return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0;
}

/// F32 where the value is a vector in the model's eyes or small, else quantized.
int fmt_of(const TinySpec& s, const TinyTensor& t) {
  const bool vector = t.shape.size() == 1 || ends_with(t.name, "_conv1d.weight") ||
                      ends_with(t.name, "_res_proj.weight") || ends_with(t.name, "A_log");
  if (vector || count_of(t.shape) < s.trunk_threshold) return 0;
  const bool end = ends_with(t.name, "embed_tokens.weight") || ends_with(t.name, "lm_head.weight");
  return end ? s.head_fmt : s.trunk_fmt;
}

void fill(TinyTensor& t, Random& random) {
  const bool norm = t.name.find("norm") != std::string::npos;
  const double size = norm ? 0.1 : 1.0 / std::sqrt(static_cast<double>(t.shape.back()));
  t.values.resize(count_of(t.shape));
  for (float& v : t.values) v = static_cast<float>((norm ? 1.0 : 0.0) + size * random.normal());
}

TinyMatrix make_matrix(const TinySpec& s, std::size_t rows, std::size_t cols, Random& random) {
  TinyMatrix m{rows, cols, {}, {}};
  m.index.resize(rows * (cols / 8) * s.stages);
  for (auto& i : m.index) i = static_cast<std::uint8_t>(random.bits() % s.entries);
  for (std::size_t r = 0; r < rows; ++r) {
    // The last row has a subnormal scale.
    const double scale = r + 1 == rows ? 3e-6 : 0.05 * (0.5 + random.uniform());
    m.scale.push_back(half_bits(scale));
  }
  return m;
}

TinyLayer make_layer(const TinySpec& s, std::uint32_t layer, std::uint32_t base, Random& random) {
  TinyLayer out;
  out.layer = layer;
  out.codebook_base = base;
  out.books.resize(3u * s.stages * s.entries * 8);
  for (std::size_t i = 0; i < out.books.size(); ++i) {
    const std::size_t stage = i / (8 * s.entries) % s.stages;
    const double size = 0.5 / static_cast<double>(1u << stage);
    // One entry in 64 is subnormal.
    out.books[i] = half_bits((i / 8 % 64 == 63 ? 1e-5 : size) * random.normal());
  }
  for (std::uint32_t e = 0; e < s.experts; ++e) {
    out.experts.push_back({make_matrix(s, s.inter, s.width(), random),
                           make_matrix(s, s.inter, s.width(), random),
                           make_matrix(s, s.width(), s.inter, random)});
  }
  return out;
}

std::string base64_byte(unsigned byte) {
  static const char* letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {letters[byte >> 2], letters[(byte & 3) << 4], '=', '='};
}

}  // namespace

TinySpec TinySpec::vq2r() {
  TinySpec s;
  s.fmt = "VQ2R";
  s.stages = 2;
  return s;
}

TinySpec TinySpec::vq4p() {
  TinySpec s;
  s.fmt = "VQ4P";
  s.stages = 4;
  s.entries = 64;
  s.index_bits = 6;
  return s;
}

TinySpec TinySpec::kimi_k3() {
  TinySpec s;
  s.k3 = true;
  s.hidden = 192;
  s.shared = 2;
  return s;
}

double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024.0 + fraction, exponent - 25);
}

std::uint16_t half_bits(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double a = std::fabs(value);
  if (a >= 65520.0) return sign | 0x7c00;
  int exponent = -14;
  if (a > 0) exponent = std::max(-14, std::ilogb(a));
  // Units of the last place; nearbyint rounds half to even.
  const double units = std::nearbyint(std::ldexp(a, 10 - exponent));
  const double rounded = std::ldexp(units, exponent - 10);
  if (rounded < 0x1p-14) return static_cast<std::uint16_t>(sign | static_cast<unsigned>(units));
  const int e = std::ilogb(rounded);
  const auto fraction = static_cast<unsigned>(std::ldexp(rounded, 10 - e)) & 1023u;
  return static_cast<std::uint16_t>(sign | static_cast<unsigned>(e + 15) << 10 | fraction);
}

Bytes tiny_index_bytes(const TinySpec& s, const TinyMatrix& m) {
  const std::size_t positions = m.cols / 8, run = s.run();
  const std::size_t padded = s.index_block == 0 ? m.rows : (m.rows + 63) / 64 * 64;
  Bytes out(padded * positions * run, 0);
  for (std::size_t r = 0; r < m.rows; ++r) {
    for (std::size_t v = 0; v < positions; ++v) {
      const std::size_t at = s.index_block == 0 ? (r * positions + v) * run
                                                : ((r / 64 * positions + v) * 64 + r % 64) * run;
      const std::uint8_t* i = m.index.data() + (r * positions + v) * s.stages;
      if (s.index_bits == 8) {
        std::copy(i, i + s.stages, out.begin() + static_cast<std::ptrdiff_t>(at));
      } else {
        out[at] = static_cast<std::uint8_t>(i[0] | i[1] << 6);
        out[at + 1] = static_cast<std::uint8_t>(i[1] >> 2 | i[2] << 4);
        out[at + 2] = static_cast<std::uint8_t>(i[2] >> 4 | i[3] << 2);
      }
    }
  }
  return out;
}

Bytes tiny_record(const TinySpec& s, std::uint32_t layer, std::uint32_t expert,
                  std::uint32_t codebook_base, const TinyExpert& e) {
  Bytes body;
  std::uint32_t offsets[4] = {48, 0, 0, 0};
  for (std::size_t k = 0; k < 3; ++k) {
    const Bytes index = tiny_index_bytes(s, e[k]);
    body.insert(body.end(), index.begin(), index.end());
    offsets[k + 1] = static_cast<std::uint32_t>(48 + body.size());
  }
  for (const TinyMatrix& m : e) {
    for (const std::uint16_t scale : m.scale) put(body, scale);
  }
  const std::size_t total = (48 + body.size() + 4095) / 4096 * 4096;
  const int fmt = s.record_fmt >= 0   ? s.record_fmt
                  : s.index_bits == 6 ? 8
                  : s.fmt == "VQ2R"   ? 5
                                      : 4;
  Bytes out;
  put(out, std::uint32_t{0x50584557});
  put(out, static_cast<std::uint16_t>(layer));
  put(out, static_cast<std::uint16_t>(expert));
  put(out, static_cast<std::uint8_t>(fmt));
  put(out, std::uint8_t{0});
  put(out, static_cast<std::uint16_t>(codebook_base));
  put(out, std::uint16_t{0});
  put(out, std::uint16_t{0});
  put(out, static_cast<std::uint32_t>(total / 4096));
  for (const std::uint32_t off : offsets) put(out, off);
  put(out, static_cast<std::uint32_t>(::crc32(0, body.data(), static_cast<unsigned>(body.size()))));
  put(out, std::uint64_t{0});
  out.insert(out.end(), body.begin(), body.end());
  out.resize(total, 0);
  return out;
}

Bytes tiny_trunk_bytes(const TinyTensor& t) {
  Bytes out;
  if (t.fmt == 0) {
    for (const float v : t.values) put(out, v);
    return out;
  }
  if (t.fmt == 1) {
    for (const float v : t.values) put(out, half_bits(v));
    return out;
  }
  const float q = t.fmt == 2 ? 127.f : t.fmt == 3 ? 7.f : 3.f;
  const float lo = t.fmt == 2 ? -127.f : t.fmt == 3 ? -8.f : -4.f;
  const std::size_t cols = t.shape.back(), rows = t.values.size() / cols;
  const std::size_t groups = (cols + 127) / 128, padded = groups * 128;
  std::vector<std::uint16_t> scales;
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<int> codes(padded, 0);
    for (std::size_t g = 0; g < groups; ++g) {
      float most = 1e-8f;
      for (std::size_t c = g * 128; c < std::min(cols, g * 128 + 128); ++c) {
        most = std::max(most, std::fabs(t.values[r * cols + c]));
      }
      const float scale = most / q;
      for (std::size_t c = g * 128; c < std::min(cols, g * 128 + 128); ++c) {
        codes[c] =
            static_cast<int>(std::clamp(std::nearbyint(t.values[r * cols + c] / scale), lo, q));
      }
      scales.push_back(half_bits(scale));
    }
    Bytes row(t.fmt == 2 ? padded : t.fmt == 3 ? padded / 2 : padded * 3 / 8 + 1, 0);
    for (std::size_t c = 0; c < padded; ++c) {
      if (t.fmt == 2) row[c] = static_cast<std::uint8_t>(codes[c]);
      if (t.fmt == 3) row[c / 2] |= static_cast<std::uint8_t>((codes[c] + 8) << (c % 2 * 4));
      if (t.fmt == 7) {
        for (std::size_t b = 0; b < 3; ++b) {
          const std::size_t bit = 3 * c + b;
          row[bit / 8] |= static_cast<std::uint8_t>(((codes[c] + 4) >> b & 1) << bit % 8);
        }
      }
    }
    out.insert(out.end(), row.begin(), row.end());
  }
  for (const std::uint16_t s : scales) put(out, s);
  return out;
}

TinyContainer make_tiny(const TinySpec& spec) {
  TinyContainer c;
  c.spec = spec;
  Random random(spec.seed);
  c.tensors = tiny_tensors(c.spec);
  std::sort(c.tensors.begin(), c.tensors.end(),
            [](const TinyTensor& a, const TinyTensor& b) { return a.name < b.name; });
  for (TinyTensor& t : c.tensors) {
    fill(t, random);
    t.fmt = fmt_of(spec, t);
  }
  for (std::uint32_t l = 1; l < spec.layers; ++l) {
    c.layers.push_back(make_layer(spec, l, (l - 1) * 3 * spec.stages, random));
  }
  c.manifest["format_version"] = 0;
  c.manifest["arch"] = spec.k3 ? "kimi-k3" : "kimi-linear";
  c.manifest["tensor_prefix"] = spec.k3 ? "language_model." : "";
  c.manifest["config"] = tiny_config(spec);
  c.manifest["expert_quant"] = {{"fmt", spec.fmt},
                                {"stages", spec.stages},
                                {"vec_dim", 8},
                                {"entries", spec.entries},
                                {"index_block", spec.index_block},
                                {"index_bits", spec.index_bits},
                                {"bits_per_weight", spec.stages * spec.index_bits / 8.0}};
  std::string ranks;
  for (unsigned b = 0; b < 256; ++b) ranks += base64_byte(b) + " " + std::to_string(b) + "\n";
  c.files["tokenizer.model"] = Bytes(ranks.begin(), ranks.end());
  c.pack();
  return c;
}

void TinyContainer::pack() {
  Bytes trunk;
  manifest["layers"] = nlohmann::ordered_json::object();
  manifest["trunk"] = nlohmann::ordered_json::array();
  for (const TinyTensor& t : tensors) {
    const Bytes bytes = tiny_trunk_bytes(t);
    nlohmann::ordered_json entry = {
        {"name", t.name}, {"fmt", t.fmt}, {"off", trunk.size()}, {"shape", t.shape}};
    if (t.fmt >= 2) {
      const std::size_t cols = t.shape.back(), rows = count_of(t.shape) / cols;
      entry["group"] = 128;
      entry["scale_off"] = trunk.size() + bytes.size() - rows * ((cols + 127) / 128) * 2;
    }
    entry["bytes"] = bytes.size();
    manifest["trunk"].push_back(entry);
    trunk.insert(trunk.end(), bytes.begin(), bytes.end());
  }
  files["trunk.bin"] = std::move(trunk);

  std::uint32_t books = 0;
  for (const TinyLayer& l : layers) books = std::max(books, l.codebook_base + 3 * spec.stages);
  const std::size_t book_bytes = 16 + 16 * std::size_t{spec.entries};
  Bytes codebooks(books * book_bytes, 0);
  for (const TinyLayer& l : layers) {
    Bytes bank;
    for (std::uint32_t e = 0; e < l.experts.size(); ++e) {
      const Bytes record = tiny_record(spec, l.layer, e, l.codebook_base, l.experts[e]);
      bank.insert(bank.end(), record.begin(), record.end());
    }
    const std::string name = "experts-L" + std::to_string(l.layer) + ".bin";
    manifest["layers"][std::to_string(l.layer)] = {{"file", name},
                                                   {"experts", l.experts.size()},
                                                   {"bytes", bank.size()},
                                                   {"codebook_base", l.codebook_base}};
    files[name] = std::move(bank);
    for (std::uint32_t b = 0; b < 3 * spec.stages; ++b) {
      const std::uint32_t id = l.codebook_base + b;
      Bytes record;
      put(record, std::uint32_t{0x4B424357});
      put(record, static_cast<std::uint16_t>(id));
      put(record, std::uint8_t{4});
      put(record, std::uint8_t{8});
      put(record, spec.entries);
      put(record, std::uint32_t{0});
      for (std::size_t i = 0; i < 8 * spec.entries; ++i) {
        put(record, l.books[b * 8 * spec.entries + i]);
      }
      std::copy(record.begin(), record.end(),
                codebooks.begin() + static_cast<std::ptrdiff_t>(id * book_bytes));
    }
  }
  files["codebooks.bin"] = std::move(codebooks);
}

void TinyContainer::write(const std::filesystem::path& directory) const {
  std::filesystem::create_directories(directory);
  const auto save = [&](const std::string& name, const char* data, std::size_t size) {
    std::ofstream out(directory / name, std::ios::binary | std::ios::trunc);
    out.write(data, static_cast<std::streamsize>(size));
    if (!out) throw std::runtime_error("cannot write " + (directory / name).string());
  };
  for (const auto& [name, bytes] : files) {
    save(name, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  const std::string text = manifest.dump(1);
  save("manifest.json", text.data(), text.size());
}

const TinyTensor& TinyContainer::tensor(const std::string& name) const {
  for (const TinyTensor& t : tensors) {
    if (t.name == name) return t;
  }
  throw std::runtime_error("no tensor " + name);
}

std::size_t TinyContainer::record_bytes() const {
  return tiny_record(spec, 0, 0, 0, layers.at(0).experts.at(0)).size();
}

void TinyContainer::fix_crc(std::span<std::uint8_t> bank_bytes, std::uint32_t e) const {
  const std::size_t size = record_bytes();
  std::uint8_t* record = bank_bytes.data() + e * size;
  std::uint32_t scales_at = 0;
  std::memcpy(&scales_at, record + 32, 4);
  const auto& expert = layers.at(0).experts.at(0);
  const std::size_t end = scales_at + 2 * (expert[0].rows + expert[1].rows + expert[2].rows);
  const auto crc =
      static_cast<std::uint32_t>(::crc32(0, record + 48, static_cast<unsigned>(end - 48)));
  std::memcpy(record + 36, &crc, 4);
}

std::vector<double> TinyContainer::weights(std::size_t slot, std::uint32_t e,
                                           std::size_t kind) const {
  const TinyLayer& l = layers.at(slot);
  const TinyMatrix& m = l.experts.at(e)[kind];
  const std::size_t positions = m.cols / 8;
  std::vector<double> out(m.rows * m.cols);
  for (std::size_t r = 0; r < m.rows; ++r) {
    for (std::size_t c = 0; c < m.cols; ++c) {
      double sum = 0;
      for (std::size_t s = 0; s < spec.stages; ++s) {
        const std::size_t i = m.index[(r * positions + c / 8) * spec.stages + s];
        sum += half_value(l.books[((kind * spec.stages + s) * spec.entries + i) * 8 + c % 8]);
      }
      out[r * m.cols + c] = half_value(m.scale[r]) * sum;
    }
  }
  return out;
}

}  // namespace waste::test
