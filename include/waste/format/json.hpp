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

  // Defined in the compiled part: what a variant over itself instantiates costs every user of this
  // header as much as <iostream>.
  JsonValue() noexcept;
  JsonValue(std::nullptr_t) noexcept;
  JsonValue(bool v) noexcept;
  JsonValue(double v) noexcept;
  JsonValue(int v) noexcept;
  JsonValue(std::int64_t v) noexcept;
  JsonValue(std::uint64_t v) noexcept;
  JsonValue(std::uint32_t v) noexcept;
  JsonValue(const char* v);
  JsonValue(std::string v) noexcept;
  JsonValue(std::string_view v);
  JsonValue(Array v) noexcept;
  JsonValue(Object v) noexcept;
  JsonValue(const JsonValue& other);
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(const JsonValue& other);
  JsonValue& operator=(JsonValue&& other) noexcept;
  ~JsonValue();

  bool is_null() const noexcept;
  bool is_bool() const noexcept { return as_bool() != nullptr; }
  bool is_unsigned() const noexcept { return as_unsigned() != nullptr; }
  bool is_number() const noexcept { return is_unsigned() || as_negative() || as_double(); }
  bool is_string() const noexcept { return as_string() != nullptr; }
  bool is_array() const noexcept { return as_array() != nullptr; }
  bool is_object() const noexcept { return as_object() != nullptr; }

  /// The content; null pointer when the value is of another type.
  const bool* as_bool() const noexcept;
  const std::uint64_t* as_unsigned() const noexcept;
  const std::int64_t* as_negative() const noexcept;
  const double* as_double() const noexcept;
  const std::string* as_string() const noexcept;
  const Array* as_array() const noexcept;
  const Object* as_object() const noexcept;
  Array* as_array() noexcept;
  Object* as_object() noexcept;

  /// Any number as f64 (0 when not a number).
  double number() const noexcept;

  /// The member of an object, or null pointer.
  const JsonValue* find(std::string_view key) const noexcept;
  /// Appends or replaces a member; makes an empty object of a null value first.
  void set(std::string key, JsonValue value);
  /// Appends an element; makes an empty array of a null value first.
  void push_back(JsonValue value);

  bool operator==(const JsonValue& other) const;

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
