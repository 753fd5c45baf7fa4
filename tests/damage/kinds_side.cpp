// The table for side files and source checkpoints.
#include "bytes.hpp"

namespace waste::damage {
namespace {

Hurt checksums(const World& w, Random& r) {
  const std::string file = "checksums.json", text = text_of(w, file);
  if (r.below(3) == 0) return json_text(file, text, r);
  return hurt(file, another_number(text, text.find("\"trunk\""), r), Errc::ok);
}

Hurt ranks(const World& w, Random& r) {
  const std::string file = "tokenizer.model";
  std::vector<std::string> lines;
  std::string text = text_of(w, file);
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  const std::size_t i = r.below(lines.size() - 1);
  const std::size_t what = r.below(7);
  switch (what) {
    case 0:
      lines[i] = lines[i + 1];  // a token twice, out of order
      break;
    case 1:
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    case 2:
      lines[i][r.below(4)] = "!*~ \t"[r.below(5)];
      break;
    case 3:
      lines[i].insert(lines[i].find(' ') + 1, "0");
      break;
    case 4:
      lines[i] += one_of<std::string>({" ", "x", "9", " 1"}, r);
      break;
    case 5:
      lines[i].clear();
      break;
    default:
      std::swap(lines[i], lines[i + 1]);
  }
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return hurt(file, out, Errc::ok);
}

Hurt specials(const World&, Random& r) {
  const std::string id = std::to_string(256 + r.below(10000)),
                    i2 = std::to_string(300 + r.below(99));
  const std::string texts[] = {
      "{\"id\": " + id + "}",
      "[{\"id\": " + id + ", \"text\": \"\"}]",
      "[{\"id\": -" + id + ", \"text\": \"a\"}]",
      "[{\"id\": " + id + ".5, \"text\": \"a\"}]",
      "[{\"id\": " + id + ", \"text\": 1}]",
      "[{\"text\": \"" + id + "\"}]",
      "[{\"id\": " + std::to_string(r.below(256)) + ", \"text\": \"a\"}]",
      "[{\"id\": " + id + ", \"text\": \"a\"}, {\"id\": " + id + ", \"text\": \"b\"}]",
      "[{\"id\": " + id + ", \"text\": \"a\"}, {\"id\": 1" + i2 + "11, \"text\": \"a\"}]",
      "[{\"id\": 4" + i2 + "000000, \"text\": \"a\"}]",
      "[{\"id\": " + id + ", \"text\": \"" + std::string(300, 'a') + "\"}]"};
  return hurt("specials.json", texts[r.below(11)], Errc::ok);
}

Hurt chat(const World&, Random& r) {
  const std::string n = std::to_string(r.below(1000));
  const std::string texts[] = {"[" + n + "]",
                               "{\"user\": \"" + n + "\"}",
                               "{\"user\": [\"" + n + "\"]}",
                               "{\"user\": [1, " + n + "]}",
                               "{\"open\": " + n + "}",
                               "{\"system\": [\"a\", \"b\", \"" + n + "\"]}",
                               "{\"open\": \"" + n};
  return hurt("chat.json", texts[r.below(7)], Errc::ok);
}

Hurt hints(const World& w, Random& r) {
  Bytes b = w.files.at("usage.waste");
  const std::size_t many = 1 + r.below(4);
  for (std::size_t i = 0; i < many; ++i) flip(b, r.below(b.size()), r);
  if (r.below(3) == 0) b.resize(r.below(b.size()));
  Hurt h = hurt("usage.waste", b, Errc::ok);
  h.refused = false;
  return h;
}

Hurt calibration(const World& w, Random& r) {
  Bytes b = w.files.at("c.wcal");
  if (r.below(4) == 0) return hurt("c.wcal", r.below(2) ? cut(b, r) : grown(b, r), Errc::truncated);
  flip(b, r.below(b.size()), r);
  return hurt("c.wcal", b, Errc::ok);
}

Hurt trace(const World&, Random& r) {
  const std::string n = std::to_string(r.below(100000));
  std::string wide = "{\"layers\": [[" + n;
  for (int i = 0; i < 20000; ++i) wide += "],[65535";
  const std::string texts[] = {
      "",
      "{\"tok\": " + n + "}",
      "{\"layers\": " + n + "}",
      "{\"layers\": [[1,1]], \"tok\": " + n + "}",
      "{\"layers\": [[]], \"tok\": " + n + "}",
      "{\"layers\": [[" + std::to_string(65536 + r.below(1u << 30)) + "]]}",
      "{\"layers\": [[-" + n + "]]}",
      "{\"layers\": [[1],[2]]}\n{\"layers\": [[" + n + "]]}",
      "{\"layers\": [[1." + n + "]]}",
      wide + "]]}"};
  return hurt("trace.jsonl", texts[r.below(10)], Errc::ok);
}

Hurt shard_header(const World& w, Random& r) {
  const std::string file = any_name(w, "model-", r);
  Bytes b = w.files.at(file);
  const std::size_t header = load_le<std::uint64_t>(b.data());
  std::string text(b.begin() + 8, b.begin() + 8 + static_cast<std::ptrdiff_t>(header));
  const auto rebuilt = [&](const std::string& json) {
    Bytes out(8);
    store_le<std::uint64_t>(out.data(), json.size());
    out.insert(out.end(), json.begin(), json.end());
    out.insert(out.end(), b.begin() + 8 + static_cast<std::ptrdiff_t>(header), b.end());
    return hurt(file, out, Errc::ok);
  };
  switch (r.below(6)) {
    case 0:
      store_le<std::uint64_t>(b.data(), r.bits() >> r.below(64));
      return hurt(file, b, Errc::ok);
    case 1:
      return hurt(file, cut(b, r), Errc::ok);
    case 2:
      return hurt(file, grown(b, r), Errc::mismatch);
    case 3:
      return rebuilt(another_number(text, text.find("\"dtype\""), r));
    case 4: {
      const auto at = text.find("\"dtype\":\"", r.below(text.size() / 2));
      const auto from = at + 9, end = text.find('"', from);
      return rebuilt(
          text.replace(from, end - from,
                       one_of<std::string>({"F64", "I32", "BOOL", "F8_E4M3", "", "bf16", "X"}, r)));
    }
    default: {
      const Hurt h = json_text(file, text, r);
      return rebuilt({h.bytes.begin(), h.bytes.end()});
    }
  }
}

Hurt index(const World& w, Random& r) {
  const std::string file = "model.safetensors.index.json", text = text_of(w, file);
  if (r.below(3) == 0) return json_text(file, text, r);
  const auto shard = text.find("model-", r.below(text.size() - 40));
  const std::string names[] = {
      "../x.safetensors", "/dev/zero", "nowhere.safetensors", "", ".", "a/b"};
  return hurt(file, text.substr(0, shard) + names[r.below(6)] + text.substr(shard + 19), Errc::ok);
}

Hurt scale_255(const World& w, Random& r) {
  for (;;) {
    const std::string file = any_name(w, "model-", r);
    Bytes b = w.files.at(file);
    const std::size_t header = load_le<std::uint64_t>(b.data());
    const std::string text(b.begin() + 8, b.begin() + 8 + static_cast<std::ptrdiff_t>(header));
    const auto name = text.find("weight_scale", r.below(text.size()));
    if (name == std::string::npos) continue;
    const auto at = text.find("\"data_offsets\":[", name) + 16;
    const std::size_t from = std::stoul(text.substr(at));
    const std::size_t end = std::stoul(text.substr(text.find(',', at) + 1));
    b[8 + header + from + r.below(end - from)] = 255;
    return hurt(file, b, Errc::bad_field, "weight_scale");
  }
}

Hurt config(const World& w, Random& r) {
  return json_text("config.json", text_of(w, "config.json"), r);
}

}  // namespace

const std::vector<Kind>& side_kinds() {
  const auto gone = [](const char* stem) {
    return [stem](const World& w, Random& r) { return no_file(w, any_name(w, stem, r), r); };
  };
  static const std::vector<Kind> all = {
      {"checksums.json", container, checksums},
      {"tokenizer ranks", container, ranks},
      {"tokenizer ranks or specials: one bit", files_summed,
       [](const World& w, Random& r) {
         return summed_bit(w, r.below(4) == 0 ? "specials.json" : "tokenizer.model", r);
       }},
      {"specials.json", container, specials},
      {"chat.json", container, chat},
      {"usage.waste (hints)", container, hints},
      {"calibration", container, calibration},
      {"calibration: no regular file, or 10 TB", container, gone("c.wcal")},
      {"routing trace", container, trace},
      {"source: config.json", source, config},
      {"source: safetensors header or length", source, shard_header},
      {"source: index", source, index},
      {"source: no regular file, or 10 TB", source, gone("model-")},
      {"source: E8M0 scale 255", packed, scale_255},
  };
  return all;
}

}  // namespace waste::damage
