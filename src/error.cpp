#include "waste/core/error.hpp"

#include <cstdio>

namespace waste {
namespace {

const char* phrase(Errc code) noexcept {
  switch (code) {
    case Errc::ok:
      return "no fault";
    case Errc::io:
      return "input/output error";
    case Errc::not_found:
      return "not found";
    case Errc::exists:
      return "already exists";
    case Errc::truncated:
      return "truncated";
    case Errc::bad_magic:
      return "wrong magic";
    case Errc::bad_version:
      return "wrong version";
    case Errc::bad_json:
      return "not valid JSON";
    case Errc::bad_field:
      return "invalid value";
    case Errc::missing:
      return "missing";
    case Errc::duplicate:
      return "duplicate";
    case Errc::out_of_range:
      return "out of range";
    case Errc::overflow:
      return "size overflow";
    case Errc::mismatch:
      return "mismatch";
    case Errc::checksum:
      return "checksum mismatch";
    case Errc::unsupported:
      return "unsupported";
    case Errc::shape:
      return "shape mismatch";
    case Errc::no_space:
      return "not enough disk space";
    case Errc::over_budget:
      return "over the memory budget";
    case Errc::changed:
      return "file changed while open";
    case Errc::cancelled:
      return "cancelled";
    case Errc::bad_argument:
      return "invalid argument";
  }
  return "unknown fault";
}

std::string number(std::uint64_t v, bool hex) {
  char text[32];
  if (hex) {
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  } else {
    std::snprintf(text, sizeof text, "%llu", static_cast<unsigned long long>(v));
  }
  return text;
}

}  // namespace

std::string describe(const Fault& fault, std::string_view file, std::string_view detail) {
  std::string out;
  const auto part = [&out](std::string_view text, std::string_view separator) {
    if (text.empty()) return;
    if (!out.empty()) out += separator;
    out += text;
  };
  part(file, "");
  if (fault.expert != Fault::none) {
    part("expert " + std::to_string(fault.expert) + " of layer " + std::to_string(fault.layer),
         ": ");
  } else if (fault.layer != Fault::none) {
    part("layer " + std::to_string(fault.layer), ": ");
  }
  part(fault.field, ": ");
  part(phrase(fault.code), ": ");
  if (fault.has_values) {
    const bool hex = fault.code == Errc::checksum || fault.code == Errc::bad_magic;
    const bool limit = fault.code == Errc::out_of_range && fault.got > fault.want;
    out += ", got " + number(fault.got, hex) + (limit ? ", wanted at most " : ", wanted ") +
           number(fault.want, hex);
  }
  part(detail, "; ");
  return out;
}

}  // namespace waste
