// What kinds of damage are made of: cuts, flips, other numbers, texts that are no JSON.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "waste/core/half.hpp"
#include "worlds.hpp"

namespace waste::damage {

namespace fs = std::filesystem;
using test::Random;

inline bool container(const World& w) { return !w.source; }
inline bool files_summed(const World& w) { return w.files_summed(); }
inline bool source(const World& w) { return w.source; }
inline bool packed(const World& w) { return w.source && w.name == "mxfp4"; }
inline bool few_entries(const World& w) {
  return container(w) && w.name.find('-') != std::string::npos;
}
inline bool blocks(const World& w) { return container(w) && w.tiny.spec.index_block == 64; }

template <class T>
const T& one_of(const std::vector<T>& v, Random& r) {
  return v[r.below(v.size())];
}
inline std::string any_name(const World& w, const std::string& stem, Random& r) {
  return one_of(w.named(stem), r);
}
inline std::string text_of(const World& w, const std::string& file) {
  const Bytes& b = w.files.at(file);
  return {b.begin(), b.end()};
}
inline Hurt hurt(const std::string& file, Bytes bytes, Errc code, const std::string& field = "") {
  Hurt h;
  h.file = file;
  h.bytes = std::move(bytes);
  h.code = code;
  h.field = field;
  return h;
}
inline Hurt hurt(const std::string& file, const std::string& text, Errc code,
                 const std::string& field = "") {
  return hurt(file, Bytes(text.begin(), text.end()), code, field);
}

inline Bytes cut(const Bytes& b, Random& r) {
  return {b.begin(), b.begin() + static_cast<std::ptrdiff_t>(r.below(b.size()))};
}
inline Bytes grown(Bytes b, Random& r) {
  const std::size_t more = 1 + r.below(5000);
  for (std::size_t i = 0; i < more; ++i) b.push_back(static_cast<std::uint8_t>(r.bits()));
  return b;
}
inline void flip(Bytes& b, std::size_t at, Random& r) {
  b[at] ^= static_cast<std::uint8_t>(1u << r.below(8));
}
inline std::uint32_t u32(const Bytes& b, std::size_t at) { return load_le<std::uint32_t>(&b[at]); }

/// One bit of a file that checksums.json has the crc32 of.
inline Hurt summed_bit(const World& w, const std::string& file, Random& r) {
  Bytes b = w.files.at(file);
  flip(b, r.below(b.size()), r);
  return hurt(file, b, Errc::ok);
}

/// A random number of a JSON text at or behind `from`, replaced.
inline std::string another_number(std::string text, std::size_t from, Random& r) {
  std::vector<std::pair<std::size_t, std::size_t>> numbers;
  for (std::size_t i = from; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (end > i && (i == 0 || text[i - 1] != '"')) numbers.emplace_back(i, end - i);
    i = end + 1;
  }
  const auto [at, n] = one_of(numbers, r);
  const std::string old = text.substr(at, n);
  std::string digits = std::to_string(r.bits() >> r.below(64));
  if (digits == old) digits += '1';
  return text.replace(at, n, digits);
}

/// Something else in the file's place.
inline Hurt no_file(const World& w, const std::string& file, Random& r) {
  Hurt h;
  h.file = file;
  const std::size_t what = r.below(6), many = r.below(5);
  h.distinct = std::to_string(what) + w.name;
  const Errc codes[] = {Errc::not_found, Errc::bad_field, Errc::bad_field,
                        Errc::io,        Errc::not_found, Errc::ok};
  h.code = codes[what];
  h.place = [what, many](const fs::path& path) {
    switch (what) {
      case 0:
        break;  // absent
      case 1:
        fs::create_directory(path);
        break;
      case 2:
        ::mkfifo(path.c_str(), 0600);
        break;
      case 3:
        fs::create_symlink(path.filename(), path);  // a loop of one
        break;
      case 4:
        fs::create_symlink("nowhere", path);
        break;
      case 5:  // ten terabytes, and a few more bytes
        ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
        if (::truncate(path.c_str(), (10ll << 40) + static_cast<long long>(many)) != 0) {
          fs::remove(path);
        }
        break;
    }
  };
  return h;
}

inline Hurt json_text(const std::string& file, const std::string& text, Random& r) {
  const char* numbers[] = {"NaN", "Infinity", "-Infinity", "0x10", "01",  "+1", "1.",
                           ".5",  "1e",       "1e999",     "True", "nul", "'a'"};
  const std::size_t open = text.find('{') + 1;
  const auto with = [&](const std::string& member) {
    return hurt(file, text.substr(0, open) + member + "," + text.substr(open), Errc::bad_json);
  };
  switch (r.below(7)) {
    case 0:
      return hurt(file, text.substr(0, r.below(text.rfind('}'))), Errc::bad_json);
    case 1:
      return hurt(file, text + one_of<std::string>({"x", "{}", "]", "}", ",", "\v", "null"}, r),
                  Errc::bad_json);
    case 2:
      return hurt(file, "\xef\xbb\xbf" + text, Errc::bad_json);
    case 3:
      return with("\"z" + std::to_string(r.below(100)) + "\":" + numbers[r.below(13)]);
    case 4: {
      const std::string key = "\"z" + std::to_string(r.below(1000)) + "\":0";
      return with(key + "," + key);
    }
    case 5:
      return with("\"z\":\"" + std::string(1, static_cast<char>(0x80 + r.below(64))) + "\"");
    default: {
      const std::size_t deep = 65 + r.below(3000);
      return with("\"z\":" + std::string(deep, '[') + std::string(deep, ']'));
    }
  }
}

}  // namespace waste::damage
