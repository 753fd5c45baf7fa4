// Errors: one truth (Fault) with two faces, a noexcept value and an exception.
#pragma once

#if __cplusplus < 202002L
#error "waste needs C++20: compile with -std=c++20"
#endif

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace waste {

/// Zero-based layer number. A distinct type, so that a layer and an expert cannot be swapped.
enum class LayerId : std::uint32_t {};
/// Zero-based expert number within its layer.
enum class ExpertId : std::uint32_t {};

constexpr std::uint32_t to_index(LayerId id) noexcept { return static_cast<std::uint32_t>(id); }
constexpr std::uint32_t to_index(ExpertId id) noexcept { return static_cast<std::uint32_t>(id); }

/// What went wrong, as a class a program can switch on.
enum class Errc : std::uint8_t {
  ok = 0,
  io,            ///< the operating system refused or failed an operation
  not_found,     ///< a file or directory does not exist
  exists,        ///< an output is already there
  truncated,     ///< fewer bytes than the layout derives
  bad_magic,     ///< the first bytes are another format's
  bad_version,   ///< format_version (or a side file's version) is not the one read here
  bad_json,      ///< the text is not strict JSON within the limits
  bad_field,     ///< a field has the wrong type or an impossible value
  missing,       ///< a required field, tensor or shard is absent
  duplicate,     ///< a name, key or id occurs twice
  out_of_range,  ///< a number is outside what its field may hold
  overflow,      ///< a product or sum of sizes does not fit
  mismatch,      ///< two places that must agree do not
  checksum,      ///< a crc32 does not match its bytes
  unsupported,   ///< legal elsewhere, refused here by name
  shape,         ///< matrix and vector sizes do not fit each other
  no_space,      ///< the disk cannot hold the output
  over_budget,   ///< the memory budget cannot hold what is asked
  changed,       ///< a file changed while it was open
  cancelled,     ///< the caller withdrew the request
  bad_argument,  ///< a caller's argument violates the stated contract
};

/// The stable name of a code, for logs and tests ("checksum", "out_of_range", ...).
constexpr std::string_view to_string(Errc code) noexcept {
  constexpr std::string_view names[] = {
      "ok",          "io",       "not_found", "exists",      "truncated", "bad_magic",
      "bad_version", "bad_json", "bad_field", "missing",     "duplicate", "out_of_range",
      "overflow",    "mismatch", "checksum",  "unsupported", "shape",     "no_space",
      "over_budget", "changed",  "cancelled", "bad_argument"};
  const auto i = static_cast<std::size_t>(code);
  return i < sizeof(names) / sizeof(names[0]) ? names[i] : std::string_view("unknown");
}

/// A failure as a trivially copyable value: validators and worker threads return it.
/// `field` points to a string with static storage. `got` and `want` are meaningful when
/// `has_values`; `layer` and `expert` when not `none`.
struct Fault {
  static constexpr std::uint32_t none = 0xffffffffu;

  Errc code = Errc::ok;
  bool has_values = false;
  std::uint32_t layer = none;
  std::uint32_t expert = none;
  const char* field = "";
  std::uint64_t got = 0;
  std::uint64_t want = 0;

  constexpr bool ok() const noexcept { return code == Errc::ok; }
  constexpr explicit operator bool() const noexcept { return !ok(); }  ///< true when faulty

  constexpr Fault at(LayerId l) const noexcept {
    Fault f = *this;
    f.layer = to_index(l);
    return f;
  }
  constexpr Fault at(LayerId l, ExpertId e) const noexcept {
    Fault f = at(l);
    f.expert = to_index(e);
    return f;
  }
};
static_assert(std::is_trivially_copyable_v<Fault>);

/// A fault without numbers. `field` must have static storage.
constexpr Fault fault(Errc code, const char* field) noexcept {
  Fault f;
  f.code = code;
  f.field = field;
  return f;
}
/// A fault with the value found and the value wanted. `field` must have static storage.
constexpr Fault fault(Errc code, const char* field, std::uint64_t got,
                      std::uint64_t want) noexcept {
  Fault f = fault(code, field);
  f.has_values = true;
  f.got = got;
  f.want = want;
  return f;
}

/// The one message of a fault: "FILE: expert 412 of layer 37: crc32: checksum mismatch, got
/// 0x1, wanted 0x2; DETAIL". Empty parts are left out.
std::string describe(const Fault& fault, std::string_view file = {}, std::string_view detail = {});

/// The exception face of a Fault: carries it and one message that a person can act on.
class Error : public std::runtime_error {
 public:
  explicit Error(const Fault& fault, std::string_view file = {}, std::string_view detail = {})
      : std::runtime_error(describe(fault, file, detail)), fault_(fault), file_(file) {}

  const Fault& fault() const noexcept { return fault_; }
  Errc code() const noexcept { return fault_.code; }
  /// The file the fault was found in; empty when none was involved.
  const std::string& file() const noexcept { return file_; }

 private:
  Fault fault_;
  std::string file_;
};

/// Throws Error when `f` is a fault.
inline void check(const Fault& f, std::string_view file = {}, std::string_view detail = {}) {
  if (f) throw Error(f, file, detail);
}

}  // namespace waste
