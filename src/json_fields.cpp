#include "waste/format/json_fields.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace waste::format {
namespace {

std::string_view last_part(std::string_view field) noexcept {
  const auto dot = field.rfind('.');
  return dot == std::string_view::npos ? field : field.substr(dot + 1);
}

std::string wanted_range(const std::string& least, const std::string& most) {
  return "wanted " + least + " to " + most;
}

std::string text_of(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%g", v);
  return text;
}

}  // namespace

std::string_view kind_of(const JsonValue& value) noexcept {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "a boolean";
  if (value.is_string()) return "a string";
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_unsigned()) return "an integer";
  if (value.as_negative() != nullptr) return "a negative integer";
  const double d = value.number();
  if (d >= 0x1p64 || d <= -0x1p63) return "a number beyond 64 bits";
  return "a number with fraction or exponent";
}

JsonFields::JsonFields(const JsonValue& object, const char* field, Where where)
    : object_(object), where_(where) {
  if (!object.is_object()) {
    refuse(Errc::bad_field, field, "wanted an object, got " + std::string(kind_of(object)));
  }
}

void JsonFields::refuse(Fault fault, std::string_view detail) const {
  fault.layer = where_.layer;
  std::string text(where_.context);
  if (!text.empty() && !detail.empty()) text += ": ";
  text += detail;
  throw Error(fault, where_.file, text);
}

const JsonValue* JsonFields::find(const char* field) const noexcept {
  return object_.find(last_part(field));
}

const JsonValue* JsonFields::find_value(const char* field) const noexcept {
  const JsonValue* v = find(field);
  return v == nullptr || v->is_null() ? nullptr : v;
}

const JsonValue& JsonFields::require(const char* field) const {
  const JsonValue* v = find(field);
  if (v == nullptr) refuse(Errc::missing, field, "");
  return *v;
}

std::uint64_t JsonFields::bounded(const JsonValue& value, const char* field, std::uint64_t least,
                                  std::uint64_t most) const {
  const std::uint64_t* u = value.as_unsigned();
  if (u == nullptr) {
    refuse(Errc::bad_field, field,
           "wanted a non-negative integer, got " + std::string(kind_of(value)));
  }
  if (*u < least || *u > most) {
    refuse(fault(Errc::out_of_range, field, *u, *u < least ? least : most),
           wanted_range(std::to_string(least), std::to_string(most)));
  }
  return *u;
}

std::uint64_t JsonFields::integer(const char* field, std::uint64_t least,
                                  std::uint64_t most) const {
  return bounded(require(field), field, least, most);
}

std::optional<std::uint64_t> JsonFields::optional_integer(const char* field, std::uint64_t least,
                                                          std::uint64_t most) const {
  const JsonValue* v = find_value(field);
  if (v == nullptr) return std::nullopt;
  return bounded(*v, field, least, most);
}

std::uint64_t JsonFields::integer_or(const char* field, std::uint64_t least, std::uint64_t most,
                                     std::uint64_t otherwise) const {
  return optional_integer(field, least, most).value_or(otherwise);
}

bool JsonFields::boolean_or(const char* field, bool otherwise) const {
  const JsonValue* v = find_value(field);
  if (v == nullptr) return otherwise;
  const bool* b = v->as_bool();
  if (b == nullptr) {
    refuse(Errc::bad_field, field, "wanted true or false, got " + std::string(kind_of(*v)));
  }
  return *b;
}

std::optional<double> JsonFields::optional_number(const char* field, double least,
                                                  double most) const {
  const JsonValue* v = find_value(field);
  if (v == nullptr) return std::nullopt;
  if (!v->is_number()) {
    refuse(Errc::bad_field, field, "wanted a number, got " + std::string(kind_of(*v)));
  }
  const double d = v->number();
  if (!(d >= least && d <= most)) {
    refuse(Errc::out_of_range, field,
           "got " + text_of(d) + ", " + wanted_range(text_of(least), text_of(most)));
  }
  return d;
}

double JsonFields::number_or(const char* field, double least, double most, double otherwise) const {
  return optional_number(field, least, most).value_or(otherwise);
}

const std::string& JsonFields::string(const char* field, std::size_t most_bytes) const {
  require(field);
  const std::string* s = optional_string(field, most_bytes);
  if (s == nullptr) refuse(Errc::bad_field, field, "wanted a string, got null");
  return *s;
}

const std::string* JsonFields::optional_string(const char* field, std::size_t most_bytes) const {
  const JsonValue* v = find_value(field);
  if (v == nullptr) return nullptr;
  const std::string* s = v->as_string();
  if (s == nullptr) {
    refuse(Errc::bad_field, field, "wanted a string, got " + std::string(kind_of(*v)));
  }
  if (s->size() > most_bytes) {
    refuse(fault(Errc::out_of_range, field, s->size(), most_bytes), "string length");
  }
  if (std::any_of(s->begin(), s->end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) {
    refuse(Errc::bad_field, field, "control characters in a name");
  }
  return s;
}

const JsonValue::Array& JsonFields::array(const char* field) const {
  const JsonValue& v = require(field);
  const JsonValue::Array* a = v.as_array();
  if (a == nullptr) {
    refuse(Errc::bad_field, field, "wanted an array, got " + std::string(kind_of(v)));
  }
  return *a;
}

}  // namespace waste::format
