// Strict, bounded JSON as a plain value tree (the parser itself is in the compiled part).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/format/constants.hpp"

namespace waste {

/// A JSON value. Objects keep the order of their keys; keys are unique. Integers that fit keep
/// their exact value (i64 when negative, u64 otherwise), all other numbers are f64.
class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Object = std::vector<std::pair<std::string, JsonValue>>;

  JsonValue() = default;
  JsonValue(std::nullptr_t) {}
  JsonValue(bool v) : value_(v) {}
  JsonValue(double v) : value_(v) {}
  JsonValue(int v) : JsonValue(static_cast<std::int64_t>(v)) {}
  JsonValue(std::int64_t v) {
    if (v < 0) {
      value_ = v;
    } else {
      value_ = static_cast<std::uint64_t>(v);
    }
  }
  JsonValue(std::uint64_t v) : value_(v) {}
  JsonValue(std::uint32_t v) : value_(static_cast<std::uint64_t>(v)) {}
  JsonValue(const char* v) : value_(std::string(v)) {}
  JsonValue(std::string v) : value_(std::move(v)) {}
  JsonValue(std::string_view v) : value_(std::string(v)) {}
  JsonValue(Array v) : value_(std::move(v)) {}
  JsonValue(Object v) : value_(std::move(v)) {}

  bool is_null() const noexcept { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const noexcept { return std::holds_alternative<bool>(value_); }
  bool is_unsigned() const noexcept { return std::holds_alternative<std::uint64_t>(value_); }
  bool is_number() const noexcept {
    return is_unsigned() || std::holds_alternative<std::int64_t>(value_) ||
           std::holds_alternative<double>(value_);
  }
  bool is_string() const noexcept { return std::holds_alternative<std::string>(value_); }
  bool is_array() const noexcept { return std::holds_alternative<Array>(value_); }
  bool is_object() const noexcept { return std::holds_alternative<Object>(value_); }

  /// The content; null pointer when the value is of another type.
  const bool* as_bool() const noexcept { return std::get_if<bool>(&value_); }
  const std::uint64_t* as_unsigned() const noexcept { return std::get_if<std::uint64_t>(&value_); }
  const std::int64_t* as_negative() const noexcept { return std::get_if<std::int64_t>(&value_); }
  const double* as_double() const noexcept { return std::get_if<double>(&value_); }
  const std::string* as_string() const noexcept { return std::get_if<std::string>(&value_); }
  const Array* as_array() const noexcept { return std::get_if<Array>(&value_); }
  const Object* as_object() const noexcept { return std::get_if<Object>(&value_); }
  Array* as_array() noexcept { return std::get_if<Array>(&value_); }
  Object* as_object() noexcept { return std::get_if<Object>(&value_); }

  /// Any number as f64 (0 when not a number).
  double number() const noexcept {
    if (const auto* u = as_unsigned()) return static_cast<double>(*u);
    if (const auto* i = as_negative()) return static_cast<double>(*i);
    if (const auto* d = as_double()) return *d;
    return 0.0;
  }

  /// The member of an object, or null pointer.
  const JsonValue* find(std::string_view key) const noexcept {
    if (const auto* o = as_object()) {
      for (const auto& [k, v] : *o) {
        if (k == key) return &v;
      }
    }
    return nullptr;
  }
  /// Appends or replaces a member; makes an empty object of a null value first.
  void set(std::string key, JsonValue value) {
    if (is_null()) value_ = Object{};
    auto* o = as_object();
    for (auto& [k, v] : *o) {
      if (k == key) {
        v = std::move(value);
        return;
      }
    }
    o->emplace_back(std::move(key), std::move(value));
  }
  void push_back(JsonValue value) {
    if (is_null()) value_ = Array{};
    as_array()->push_back(std::move(value));
  }

  bool operator==(const JsonValue&) const = default;

 private:
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

struct JsonLimits {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  std::uint64_t depth = format::limits::json_depth;
  std::uint64_t values = std::uint64_t{1} << 24;
  std::uint64_t string_bytes = std::uint64_t{1} << 24;  ///< of one string or key, decoded
};

/// Parses strict JSON (RFC 8259). Refused with Errc::bad_json: more than the limits, a byte-order
/// mark, trailing bytes, duplicate keys, invalid UTF-8, NaN, Infinity, numbers that overflow f64,
/// comments. The fault's field says which ("size", "depth", "number of values", "string length",
/// "byte-order mark", "NUL byte", "UTF-8", "trailing bytes", "duplicate key", "number", "syntax"),
/// the message where: line and column in bytes. Throws Error.
JsonValue parse_json(std::string_view text, std::string_view file, const JsonLimits& limits = {});

/// ASCII JSON: other characters escaped; indent < 0 for one line. Non-finite numbers and invalid
/// UTF-8 throw Error (bad_argument).
std::string dump_json(const JsonValue& value, int indent = -1);

}  // namespace waste
