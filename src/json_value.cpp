#include <utility>

#include "waste/format/json.hpp"

namespace waste {

JsonValue::JsonValue() noexcept = default;
JsonValue::JsonValue(std::nullptr_t) noexcept {}
JsonValue::JsonValue(bool v) noexcept : value_(v) {}
JsonValue::JsonValue(double v) noexcept : value_(v) {}
JsonValue::JsonValue(int v) noexcept : JsonValue(static_cast<std::int64_t>(v)) {}
JsonValue::JsonValue(std::int64_t v) noexcept {
  if (v < 0) {
    value_ = v;
  } else {
    value_ = static_cast<std::uint64_t>(v);
  }
}
JsonValue::JsonValue(std::uint64_t v) noexcept : value_(v) {}
JsonValue::JsonValue(std::uint32_t v) noexcept : value_(static_cast<std::uint64_t>(v)) {}
JsonValue::JsonValue(const char* v) : value_(std::string(v)) {}
JsonValue::JsonValue(std::string v) noexcept : value_(std::move(v)) {}
JsonValue::JsonValue(std::string_view v) : value_(std::string(v)) {}
JsonValue::JsonValue(Array v) noexcept : value_(std::move(v)) {}
JsonValue::JsonValue(Object v) noexcept : value_(std::move(v)) {}
JsonValue::JsonValue(const JsonValue& other) = default;
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(const JsonValue& other) = default;
JsonValue& JsonValue::operator=(JsonValue&& other) noexcept = default;
JsonValue::~JsonValue() = default;

bool JsonValue::is_null() const noexcept { return std::holds_alternative<std::monostate>(value_); }

const bool* JsonValue::as_bool() const noexcept { return std::get_if<bool>(&value_); }
const std::uint64_t* JsonValue::as_unsigned() const noexcept {
  return std::get_if<std::uint64_t>(&value_);
}
const std::int64_t* JsonValue::as_negative() const noexcept {
  return std::get_if<std::int64_t>(&value_);
}
const double* JsonValue::as_double() const noexcept { return std::get_if<double>(&value_); }
const std::string* JsonValue::as_string() const noexcept {
  return std::get_if<std::string>(&value_);
}
const JsonValue::Array* JsonValue::as_array() const noexcept { return std::get_if<Array>(&value_); }
const JsonValue::Object* JsonValue::as_object() const noexcept {
  return std::get_if<Object>(&value_);
}
JsonValue::Array* JsonValue::as_array() noexcept { return std::get_if<Array>(&value_); }
JsonValue::Object* JsonValue::as_object() noexcept { return std::get_if<Object>(&value_); }

double JsonValue::number() const noexcept {
  if (const auto* u = as_unsigned()) return static_cast<double>(*u);
  if (const auto* i = as_negative()) return static_cast<double>(*i);
  if (const auto* d = as_double()) return *d;
  return 0.0;
}

const JsonValue* JsonValue::find(std::string_view key) const noexcept {
  if (const auto* o = as_object()) {
    for (const auto& [k, v] : *o) {
      if (k == key) return &v;
    }
  }
  return nullptr;
}

void JsonValue::set(std::string key, JsonValue value) {
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

void JsonValue::push_back(JsonValue value) {
  if (is_null()) value_ = Array{};
  as_array()->push_back(std::move(value));
}

bool JsonValue::operator==(const JsonValue& other) const { return value_ == other.value_; }

}  // namespace waste
