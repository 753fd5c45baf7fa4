// The only translation unit that sees nlohmann_json: its SAX reader feeds JsonValue.
#include "waste/format/json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

namespace waste {
namespace {

using Sax = nlohmann::json_sax<nlohmann::json>;

/// Where in `text` a byte stands, for a person.
std::string place(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  std::size_t line = 1;
  std::size_t start = 0;
  for (std::size_t i = 0; i < offset; ++i) {
    if (text[i] == '\n') {
      ++line;
      start = i + 1;
    }
  }
  return "line " + std::to_string(line) + ", column " + std::to_string(offset - start + 1);
}

/// At most 160 bytes of printable ASCII, so that a hostile file cannot fill a message.
std::string printable(std::string_view text) {
  constexpr std::size_t longest = 160;
  std::string out(text.substr(0, longest));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > longest) out += "...";
  return out;
}

/// Length of the valid UTF-8 sequence at `at` (1 to 4) with its code point, or 0.
std::size_t utf8_sequence(std::string_view s, std::size_t at, std::uint32_t& code_point) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(s[at + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    code_point = lead;
    return 1;
  }
  const std::size_t n = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || s.size() - at < n) return 0;
  code_point = lead & (0x7fu >> n);
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  return code_point >= least[n] && code_point <= 0x10ffff && !surrogate ? n : 0;
}

/// Reads characters and says how far the lexer has come.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  TrackingIterator operator++(int) {
    const TrackingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

class TreeBuilder final : public Sax {
 public:
  TreeBuilder(std::string_view text, std::string_view file, const JsonLimits& limits)
      : text_(text), file_(file), limits_(limits) {}

  [[noreturn]] void refuse(const char* what, std::size_t offset,
                           const std::string& detail = {}) const {
    throw Error(fault(Errc::bad_json, what), file_,
                place(text_, offset) + (detail.empty() ? "" : ": " + detail));
  }

  bool null() override { return add(JsonValue()); }
  bool boolean(bool v) override { return add(JsonValue(v)); }
  bool number_integer(number_integer_t v) override { return add(JsonValue(std::int64_t{v})); }
  bool number_unsigned(number_unsigned_t v) override { return add(JsonValue(std::uint64_t{v})); }
  bool number_float(number_float_t v, const string_t&) override {
    if (!std::isfinite(v)) refuse("number", reached());
    return add(JsonValue(v));
  }
  bool string(string_t& v) override {
    bound_string(v);
    return add(JsonValue(std::move(v)));
  }
  bool binary(binary_t&) override { refuse("binary", reached()); }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(string_t& v) override {
    bound_string(v);
    stack_.back().object.emplace_back(std::move(v), JsonValue());
    return true;
  }
  bool end_object() override {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    refuse_duplicates(frame.object);
    return place_value(JsonValue(std::move(frame.object)));
  }
  bool end_array() override {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    return place_value(JsonValue(std::move(frame.array)));
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    const std::size_t offset = position == 0 ? 0 : position - 1;
    if (complete_) refuse("trailing bytes", offset);
    if (e.id == 406) refuse("number", offset, "too large for a 64-bit float");
    std::string_view what = e.what();
    if (const auto column = what.find("column "); column != std::string_view::npos) {
      if (const auto colon = what.find(": ", column); colon != std::string_view::npos) {
        what = what.substr(colon + 2);
      }
    }
    refuse("syntax", offset, printable(what));
  }

  const char** cursor() { return &cursor_; }
  void start(const char* begin) { cursor_ = begin; }
  JsonValue take() { return std::move(root_); }

 private:
  struct Frame {
    bool is_object = false;
    JsonValue::Object object;
    JsonValue::Array array;
  };

  /// The last byte that the lexer took.
  std::size_t reached() const {
    return cursor_ == text_.data() ? 0 : static_cast<std::size_t>(cursor_ - text_.data()) - 1;
  }

  void bound_string(const std::string& s) const {
    if (s.size() > limits_.string_bytes) {
      refuse("string length", reached(),
             "longer than " + std::to_string(limits_.string_bytes) + " bytes");
    }
  }
  void count() {
    if (++values_ > limits_.values) {
      refuse("number of values", reached(), "more than " + std::to_string(limits_.values));
    }
  }
  bool open(bool is_object) {
    count();
    if (stack_.size() >= limits_.depth) {
      refuse("depth", reached(), "deeper than " + std::to_string(limits_.depth));
    }
    stack_.emplace_back().is_object = is_object;
    return true;
  }
  bool add(JsonValue v) {
    count();
    return place_value(std::move(v));
  }
  bool place_value(JsonValue v) {
    if (stack_.empty()) {
      root_ = std::move(v);
      complete_ = true;
    } else if (stack_.back().is_object) {
      stack_.back().object.back().second = std::move(v);
    } else {
      stack_.back().array.push_back(std::move(v));
    }
    return true;
  }
  void refuse_duplicates(const JsonValue::Object& object) const {
    std::vector<const std::string*> keys;
    keys.reserve(object.size());
    for (const auto& member : object) keys.push_back(&member.first);
    std::sort(keys.begin(), keys.end(), [](auto* a, auto* b) { return *a < *b; });
    const auto twice =
        std::adjacent_find(keys.begin(), keys.end(), [](auto* a, auto* b) { return *a == *b; });
    if (twice != keys.end()) {
      refuse("duplicate key", reached(),
             "\"" + printable(**twice) + "\" in the object ending here");
    }
  }

  std::string_view text_;
  std::string_view file_;
  const JsonLimits& limits_;
  const char* cursor_ = nullptr;
  std::vector<Frame> stack_;
  JsonValue root_;
  bool complete_ = false;
  std::uint64_t values_ = 0;
};

class Writer {
 public:
  explicit Writer(int indent) : indent_(indent) {}

  void value(const JsonValue& v, std::size_t depth) {
    if (depth > deepest) throw Error(fault(Errc::bad_argument, "depth", depth, deepest));
    if (v.is_null()) {
      out_ += "null";
    } else if (const bool* b = v.as_bool()) {
      out_ += *b ? "true" : "false";
    } else if (const auto* u = v.as_unsigned()) {
      out_ += std::to_string(*u);
    } else if (const auto* i = v.as_negative()) {
      out_ += std::to_string(*i);
    } else if (const auto* d = v.as_double()) {
      number(*d);
    } else if (const auto* s = v.as_string()) {
      string(*s);
    } else if (const auto* a = v.as_array()) {
      list('[', ']', a->size(), depth, [&](std::size_t i) { value((*a)[i], depth + 1); });
    } else if (const auto* o = v.as_object()) {
      list('{', '}', o->size(), depth, [&](std::size_t i) {
        string((*o)[i].first);
        out_ += indent_ < 0 ? ":" : ": ";
        value((*o)[i].second, depth + 1);
      });
    }
  }
  std::string take() { return std::move(out_); }

 private:
  static constexpr std::size_t deepest = 512;

  template <class Item>
  void list(char open, char close, std::size_t n, std::size_t depth, Item item) {
    out_ += open;
    for (std::size_t i = 0; i < n; ++i) {
      if (i != 0) out_ += ',';
      line(depth + 1);
      item(i);
    }
    if (n != 0) line(depth);
    out_ += close;
  }
  void line(std::size_t depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(depth * static_cast<std::size_t>(indent_), ' ');
  }
  /// The shortest text that reads back as the same double, always visibly not an integer.
  void number(double d) {
    if (!std::isfinite(d)) throw Error(fault(Errc::bad_argument, "number"), {}, "not finite");
    const double magnitude = std::fabs(d);
    const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
    char text[64];
    const auto end = std::to_chars(text, text + sizeof text, d,
                                   plain ? std::chars_format::fixed : std::chars_format::scientific)
                         .ptr;
    const std::string_view digits(text, static_cast<std::size_t>(end - text));
    out_ += digits;
    if (plain && digits.find('.') == std::string_view::npos) out_ += ".0";
  }
  void unit(std::uint32_t u) {
    char text[16];
    std::snprintf(text, sizeof text, "\\u%04x", static_cast<unsigned>(u));
    out_ += text;
  }
  void string(const std::string& s) {
    out_ += '"';
    for (std::size_t i = 0; i < s.size();) {
      std::uint32_t c = 0;
      const std::size_t n = utf8_sequence(s, i, c);
      if (n == 0) throw Error(fault(Errc::bad_argument, "string"), {}, "not valid UTF-8");
      i += n;
      constexpr std::string_view named = "\"\\\b\f\n\r\t";
      constexpr std::string_view letters = "\"\\bfnrt";
      const auto short_form = c < 0x80 ? named.find(static_cast<char>(c)) : std::string_view::npos;
      if (short_form != std::string_view::npos) {
        out_ += '\\';
        out_ += letters[short_form];
      } else if (c >= 0x10000) {
        unit(0xd800 + ((c - 0x10000) >> 10));
        unit(0xdc00 + ((c - 0x10000) & 0x3ff));
      } else if (c < 0x20 || c > 0x7e) {
        unit(c);
      } else {
        out_ += static_cast<char>(c);
      }
    }
    out_ += '"';
  }

  int indent_;
  std::string out_;
};

}  // namespace

JsonValue parse_json(std::string_view text, std::string_view file, const JsonLimits& limits) {
  TreeBuilder builder(text, file, limits);
  if (text.size() > limits.bytes) {
    throw Error(fault(Errc::bad_json, "size", text.size(), limits.bytes), file);
  }
  // The lexer behind this skips a byte-order mark and ends quietly at a NUL byte.
  if (text.starts_with("\xef\xbb\xbf")) builder.refuse("byte-order mark", 0);
  for (std::size_t i = 0; i < text.size();) {
    std::uint32_t code_point = 0;
    const std::size_t n = utf8_sequence(text, i, code_point);
    if (n == 0) builder.refuse("UTF-8", i);
    if (code_point == 0) builder.refuse("NUL byte", i);
    i += n;
  }
  builder.start(text.data());
  nlohmann::json::sax_parse(TrackingIterator(text.data(), builder.cursor()),
                            TrackingIterator(text.data() + text.size(), builder.cursor()),
                            static_cast<Sax*>(&builder));
  return builder.take();
}

std::string dump_json(const JsonValue& value, int indent) {
  Writer writer(indent);
  writer.value(value, 0);
  return writer.take();
}

}  // namespace waste
