// The table for manifest, banks, codebooks and trunk: each byte class, and the error it must give
// where the class decides that.
#include "bytes.hpp"

namespace waste::damage {
namespace {

/// One record of a bank, and where its parts lie.
struct Record {
  std::string file;
  Bytes bank;
  std::uint32_t expert = 0;
  std::size_t at = 0, scales = 0, end = 0, size = 0;

  Record(const World& w, Random& r) : file(any_name(w, "experts-L", r)), bank(w.files.at(file)) {
    expert = static_cast<std::uint32_t>(r.below(w.tiny.spec.experts));
    size = w.tiny.record_bytes();
    at = expert * size;
    scales = at + u32(bank, at + 32);
    end = scales + 2 * (2 * w.tiny.spec.inter + w.tiny.spec.width());
  }
  Hurt done(Errc code, const std::string& field) { return hurt(file, bank, code, field); }
  /// With the crc32 of what is there now.
  Hurt mended(const World& w, Errc code, const std::string& field) {
    w.tiny.fix_crc(bank, expert);
    return hurt(file, bank, code, field);
  }
};

Hurt header_byte(const World& w, Random& r) {
  Record x(w, r);
  std::size_t at = r.below(48);
  // fmt 4 and 5 stand for each other, and flags 2 and 4 are legal hints.
  while (at == 8 || at == 9) at = r.below(48);
  flip(x.bank, x.at + at, r);
  const struct {
    std::size_t end;
    Errc code;
    const char* field;
  } classes[] = {{4, Errc::bad_magic, "magic"},         {6, Errc::mismatch, "layer"},
                 {8, Errc::mismatch, "expert_id"},      {12, Errc::mismatch, "codebook_id"},
                 {14, Errc::unsupported, "lowrank_id"}, {16, Errc::bad_field, "reserved0"},
                 {20, Errc::mismatch, "rec_4k_blocks"}, {24, Errc::mismatch, "gate_off"},
                 {28, Errc::mismatch, "up_off"},        {32, Errc::mismatch, "down_off"},
                 {36, Errc::mismatch, "chan_corr_off"}, {40, Errc::checksum, "crc32"},
                 {48, Errc::bad_field, "reserved1"}};
  for (const auto& c : classes) {
    if (at < c.end) return x.done(c.code, c.field);
  }
  return {};
}

Hurt payload_byte(const World& w, Random& r, bool scales) {
  Record x(w, r);
  const std::size_t from = scales ? x.scales : x.at + 48, end = scales ? x.end : x.scales;
  flip(x.bank, from + r.below(end - from), r);
  return x.done(Errc::checksum, "crc32");
}

Hurt scale_not_finite(const World& w, Random& r) {
  Record x(w, r);
  const std::size_t at = x.scales + 2 * r.below((x.end - x.scales) / 2);
  store_le<std::uint16_t>(&x.bank[at], static_cast<std::uint16_t>(0x7c00 | (r.bits() & 0x83ff)));
  return x.mended(w, Errc::bad_field, "scale is not finite");
}

Hurt wild_index(const World& w, Random& r) {
  Record x(w, r);
  const std::size_t gate = x.at + u32(x.bank, x.at + 20), run = w.tiny.spec.run();
  const std::size_t rows = w.tiny.spec.inter, positions = w.tiny.spec.width() / 8;
  const std::size_t position = r.below(positions), row = r.below(rows);
  const std::size_t vector = blocks(w) ? position * 64 + row : row * positions + position;
  // 255 as a byte index; all four 6-bit indices 63.
  if (w.tiny.spec.index_bits == 8) {
    x.bank[gate + vector * run + r.below(run)] = 255;
  } else {
    std::fill_n(&x.bank[gate + vector * run], run, std::uint8_t{255});
  }
  return x.mended(w, Errc::out_of_range, "gate index");
}

Hurt row_padding(const World& w, Random& r) {
  Record x(w, r);
  // Rows inter .. 63 of the first vector position of gate.
  const std::size_t run = w.tiny.spec.run(), row = w.tiny.spec.inter;
  const std::size_t at = x.at + u32(x.bank, x.at + 20) + run * row + r.below(run * (64 - row));
  x.bank[at] = static_cast<std::uint8_t>(1 + r.below(255));
  return x.mended(w, Errc::bad_field, "gate index padding");
}

Hurt record_padding(const World& w, Random& r) {
  Record x(w, r);
  x.bank[x.end + r.below(x.at + x.size - x.end)] = static_cast<std::uint8_t>(1 + r.below(255));
  return x.done(Errc::bad_field, "record padding");
}

Hurt swapped(const World& w, Random& r) {
  Record x(w, r);
  const std::uint32_t other = (x.expert + 1) % w.tiny.spec.experts;
  std::swap_ranges(x.bank.begin() + static_cast<std::ptrdiff_t>(x.at),
                   x.bank.begin() + static_cast<std::ptrdiff_t>(x.at + x.size),
                   x.bank.begin() + static_cast<std::ptrdiff_t>(other * x.size));
  return x.done(Errc::mismatch, "expert_id");
}

Hurt other_layer(const World& w, Random& r) {
  const std::vector<std::string> banks = w.named("experts-L");
  const std::size_t i = r.below(banks.size());
  return hurt(banks[i], w.files.at(banks[(i + 1) % banks.size()]), Errc::mismatch, "layer");
}

Hurt codebook(const World& w, Random& r, int what) {
  const std::string file = "codebooks.bin";
  Bytes b = w.files.at(file);
  const std::size_t record = 16 + 16 * w.tiny.spec.entries, id = r.below(b.size() / record);
  const std::size_t at = id * record;
  if (what == 0) {
    flip(b, at + one_of<std::size_t>({0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15}, r), r);
    return hurt(file, b, Errc::ok, "codebook");
  }
  const std::size_t value = at + 16 + 2 * r.below(8 * w.tiny.spec.entries);
  if (what == 1) {
    store_le<std::uint16_t>(&b[value], static_cast<std::uint16_t>(0x7c00 | (r.bits() & 0x83ff)));
    return hurt(file, b, Errc::bad_field, "codebook entry is not finite");
  }
  b[value] ^= static_cast<std::uint8_t>(1 + r.below(255));
  return hurt(file, b, Errc::checksum, "crc32");
}

Hurt of_size(const World& w, const std::string& file, Random& r) {
  const Bytes& b = w.files.at(file);
  return r.below(2) == 0 ? hurt(file, cut(b, r), Errc::truncated, "file size")
                         : hurt(file, grown(b, r), Errc::mismatch, "file size");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// "key":value in a manifest's text, with another value.
Hurt manifest_value(const World& w, Random& r) {
  struct Change {
    const char *key, *value;
    Errc code;
  };
  static const std::vector<Change> changes = {
      {"format_version", "1", Errc::bad_version},
      {"format_version", "0.5", Errc::bad_version},
      {"format_version", "\"0\"", Errc::bad_version},
      {"format_version", "null", Errc::bad_version},
      {"format_version", "-1", Errc::bad_version},
      {"hidden_act", "\"gelu_tanh\"", Errc::unsupported},
      {"hidden_act", "1", Errc::bad_field},
      {"vocab_size", "1e3", Errc::ok},
      {"vocab_size", "4294967568", Errc::out_of_range},
      {"hidden_size", "-16", Errc::ok},
      {"hidden_size", "16.5", Errc::ok},
      {"hidden_size", "18446744073709551616", Errc::ok},
      {"num_hidden_layers", "1000000000", Errc::out_of_range},
      {"num_experts", "70000", Errc::out_of_range},
      {"stages", "9", Errc::out_of_range},
      {"vec_dim", "4", Errc::unsupported},
      {"index_block", "32", Errc::unsupported},
      {"index_bits", "7", Errc::unsupported},
      {"entries", "0", Errc::out_of_range},
      {"entries", "257", Errc::out_of_range},
      {"group", "64", Errc::ok},
      {"codebook_base", "4000000000", Errc::ok},
      {"trunk", "{}", Errc::ok},
      {"layers", "[]", Errc::ok},
      {"config", "null", Errc::ok}};
  const Change& c = one_of(changes, r);
  auto m = w.tiny.manifest;
  std::function<bool(nlohmann::ordered_json&)> set = [&](nlohmann::ordered_json& at) {
    if (at.is_object() && at.contains(c.key)) {
      at[c.key] = nlohmann::ordered_json::parse("\"@@@\"");
      return true;
    }
    if (at.is_structured()) {
      for (auto& child : at) {
        if (set(child)) return true;
      }
    }
    return false;
  };
  set(m);
  m["note"] = r.below(1000);  // ignored; makes it another input
  Hurt h = hurt("manifest.json", replaced(m.dump(), "\"@@@\"", c.value), c.code);
  h.or_code = Errc::unsupported;  // what one format has, another may not
  return h;
}

Hurt bank_name(const World& w, Random& r) {
  auto m = w.tiny.manifest;
  const std::string names[] = {"../experts-L1.bin", "/etc/passwd", "a/b.bin", "..", ".", "",
                               "a\\u0000b"};
  const std::string name = names[r.below(7)];
  auto& layers = m["layers"];
  auto layer = layers.begin();
  std::advance(layer, static_cast<std::ptrdiff_t>(r.below(layers.size())));
  (*layer)["file"] = "@@@";
  m["note"] = r.below(1000);
  return hurt("manifest.json", replaced(m.dump(), "@@@", name), Errc::bad_field);
}

Hurt dimension(const World& w, Random& r) {
  const std::string text = text_of(w, "manifest.json");
  return hurt("manifest.json", another_number(text, text.find("\"expert_quant\""), r), Errc::ok);
}

Hurt trunk_byte(const World& w, Random& r) {
  Bytes b = w.files.at("trunk.bin");
  flip(b, r.below(b.size()), r);
  Hurt h = hurt("trunk.bin", b, Errc::checksum);
  h.or_code = Errc::bad_field;  // not finite, or padding that is no longer zero
  return h;
}

}  // namespace

const std::vector<Kind>& container_kinds() {
  const auto size_of = [](const char* stem) {
    return [stem](const World& w, Random& r) { return of_size(w, any_name(w, stem, r), r); };
  };
  const auto gone = [](const char* stem) {
    return [stem](const World& w, Random& r) { return no_file(w, any_name(w, stem, r), r); };
  };
  static const std::vector<Kind> all = {
      {"manifest: text that is not strict JSON", container,
       [](const World& w, Random& r) {
         return json_text("manifest.json", text_of(w, "manifest.json"), r);
       }},
      {"manifest: a value that is refused", container, manifest_value},
      {"manifest: a bank's name that leaves the folder", container, bank_name},
      {"manifest: another number in the layout", container, dimension},
      {"manifest: one bit", files_summed,
       [](const World& w, Random& r) { return summed_bit(w, "manifest.json", r); }},
      {"manifest: no regular file", container, gone("manifest.json")},
      {"record: header byte", container, header_byte},
      {"record: index byte", container,
       [](const World& w, Random& r) { return payload_byte(w, r, false); }},
      {"record: scale byte", container,
       [](const World& w, Random& r) { return payload_byte(w, r, true); }},
      {"record: scale infinite or NaN, crc mended", container, scale_not_finite},
      {"record: index past the codebook, crc mended", few_entries, wild_index},
      {"record: padding rows, crc mended", blocks, row_padding},
      {"record: padding after the payload", container, record_padding},
      {"bank: two records in each other's place", container, swapped},
      {"bank: that of another layer", container, other_layer},
      {"bank: cut or grown", container, size_of("experts-L")},
      {"bank: no regular file, or 10 TB", container, gone("experts-L")},
      {"codebooks: header byte", container,
       [](const World& w, Random& r) { return codebook(w, r, 0); }},
      {"codebooks: entry infinite or NaN", container,
       [](const World& w, Random& r) { return codebook(w, r, 1); }},
      {"codebooks: entry byte", container,
       [](const World& w, Random& r) { return codebook(w, r, 2); }},
      {"codebooks: no regular file, or 10 TB", container, gone("codebooks.bin")},
      {"trunk: byte", container, trunk_byte},
      {"trunk: cut or grown", container, size_of("trunk.bin")},
      {"trunk: no regular file, or 10 TB", container, gone("trunk.bin")},
  };
  return all;
}

}  // namespace waste::damage
