// Typed, bounded reading of the members of a JSON object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "waste/core/error.hpp"
#include "waste/format/json.hpp"

namespace waste::format {

/// What a value is, for messages: "null", "a boolean", "a string", "an integer", ...
std::string_view kind_of(const JsonValue& value) noexcept;

/// Reads members of one object. A `field` is a string literal "a.b.key" whose last part is the
/// member's key; the whole is what errors name. Every function throws Error: missing (no such
/// member), bad_field (another type), out_of_range (a number outside its bounds). A member that is
/// null counts as absent for the optional_ forms and as another type for the rest.
class JsonFields {
 public:
  /// Where the object stands, for errors: `file`, and what more there is to say.
  struct Where {
    std::string_view file;
    std::string_view context = {};  ///< leads the detail of every message
    std::uint32_t layer = Fault::none;
  };

  /// `object` and the texts of `where` must outlive this. Throws bad_field when it is no object.
  JsonFields(const JsonValue& object, const char* field, Where where);

  const JsonValue* find(const char* field) const noexcept;
  const JsonValue& require(const char* field) const;

  /// An integer written as one (1.0 and 1e0 are refused), least <= value <= most.
  std::uint64_t integer(const char* field, std::uint64_t least, std::uint64_t most) const;
  std::uint64_t integer_or(const char* field, std::uint64_t least, std::uint64_t most,
                           std::uint64_t otherwise) const;
  std::optional<std::uint64_t> optional_integer(const char* field, std::uint64_t least,
                                                std::uint64_t most) const;
  std::uint32_t u32(const char* field, std::uint32_t least, std::uint32_t most) const {
    return static_cast<std::uint32_t>(integer(field, least, most));
  }

  /// true or false; a number is no boolean.
  bool boolean_or(const char* field, bool otherwise) const;

  /// A finite number, least <= value <= most.
  std::optional<double> optional_number(const char* field, double least, double most) const;
  double number_or(const char* field, double least, double most, double otherwise) const;

  /// A string of at most `most_bytes` bytes without control characters.
  const std::string& string(const char* field, std::size_t most_bytes) const;
  const std::string* optional_string(const char* field, std::size_t most_bytes) const;

  const JsonValue::Array& array(const char* field) const;

  std::string_view file() const noexcept { return where_.file; }
  [[noreturn]] void refuse(Errc code, const char* field, std::string_view detail) const {
    refuse(fault(code, field), detail);
  }
  [[noreturn]] void refuse(Fault fault, std::string_view detail = {}) const;

 private:
  const JsonValue* find_value(const char* field) const noexcept;  ///< null counts as absent
  std::uint64_t bounded(const JsonValue& value, const char* field, std::uint64_t least,
                        std::uint64_t most) const;

  const JsonValue& object_;
  Where where_;
};

}  // namespace waste::format
