// The only code that meets PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <string>

#include "tokenizer_unicode.hpp"
#include "waste/core/error.hpp"
#include "waste/text/pretokenize.hpp"
#include "waste/text/utf8.hpp"

namespace waste::text {
namespace {

// Of the seven groups of general categories L, M, N, P, S, Z, C a class intersected with "not Han"
// is the complement of all others together with Han: one class, so that its repetition needs
// neither a lookahead nor a stack frame per character. \p{Han} alone would mean Script_Extensions
// here, and \s would take in U+180E, which is no White_Space.
#define WASTE_UPPER R"([^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])"
#define WASTE_LOWER R"([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])"
#define WASTE_SPACE \
  R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
#define WASTE_LEAD R"([^\r\n\p{L}\p{N}]?)"
#define WASTE_SUFFIX R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"

constexpr char pattern[] =
    R"([\p{sc:Han}]+)"
    "|" WASTE_LEAD WASTE_UPPER "*" WASTE_LOWER "+" WASTE_SUFFIX "|" WASTE_LEAD WASTE_UPPER
    "+" WASTE_LOWER "*" WASTE_SUFFIX R"(|\p{N}{1,3})"
    "| ?[^" WASTE_SPACE R"(\p{L}\p{N}]+[\r\n]*)"
    "|[" WASTE_SPACE R"(]*[\r\n]+)"
    "|[" WASTE_SPACE "]+(?![^" WASTE_SPACE
    "])"
    "|[" WASTE_SPACE "]+";

// A repetition of n characters gives back at most n of them, so 400,000 characters stay far below.
constexpr std::uint32_t match_limit = 200'000'000;
constexpr std::uint32_t heap_limit_kib = 64 * 1024;

[[noreturn]] void fail(int code, Errc errc) {
  PCRE2_UCHAR message[256] = {};
  pcre2_get_error_message(code, message, sizeof message);
  throw Error(fault(errc, "pre-tokenizer pattern"), {}, reinterpret_cast<const char*>(message));
}

struct Compiled {
  Compiled() {
    int error = 0;
    PCRE2_SIZE where = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), sizeof pattern - 1,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &where, nullptr);
    if (code == nullptr) fail(error, Errc::unsupported);
    jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  ~Compiled() { pcre2_code_free(code); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  pcre2_code* code = nullptr;
  bool jit = false;
};

const Compiled& compiled() {
  static const Compiled instance;
  return instance;
}

/// The stand-in for a character that the matcher's Unicode tables may lack, or null.
const char* stand_in(const Utf8Step& step) noexcept {
  if (!step.valid) return "!";
  if (step.point < added_ranges[0].first) return nullptr;
  const auto* range =
      std::lower_bound(std::begin(added_ranges), std::end(added_ranges), step.point,
                       [](const AddedRange& r, std::uint32_t point) { return r.last < point; });
  if (range == std::end(added_ranges) || step.point < range->first) return nullptr;
  return added_stand_ins[static_cast<std::size_t>(range->kind)][step.bytes - 3];
}

}  // namespace

struct PieceCursor::Matcher {
  std::string_view text;
  std::string_view subject;  // what is matched: text, or `changed`
  std::string changed;       // text with stand-ins, byte for byte as long
  std::size_t at = 0;
  bool jit = false;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;

  ~Matcher() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
  }
};

PieceCursor::PieceCursor(std::string_view text) : matcher_(std::make_unique<Matcher>()) {
  Matcher& m = *matcher_;
  m.text = text;
  m.jit = compiled().jit;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (const char* replacement = stand_in(step)) {
      if (m.changed.empty()) m.changed.assign(text);
      m.changed.replace(at, step.bytes, replacement, step.bytes);
    }
    at += step.bytes;
  }
  m.subject = m.changed.empty() ? text : std::string_view(m.changed);
  m.match = pcre2_match_data_create(1, nullptr);
  m.context = pcre2_match_context_create(nullptr);
  if (m.match == nullptr || m.context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(m.context, match_limit);
  pcre2_set_heap_limit(m.context, heap_limit_kib);
}

PieceCursor::~PieceCursor() = default;

std::string_view PieceCursor::next() {
  Matcher& m = *matcher_;
  if (m.at == m.text.size()) return {};
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(m.subject.data());
  const pcre2_code* code = compiled().code;
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (m.jit) {
    found = pcre2_jit_match(code, subject, m.subject.size(), m.at, 0, m.match, m.context);
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code, subject, m.subject.size(), m.at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                        m.match, m.context);
  }
  if (found < 0) fail(found, Errc::over_budget);
  const std::size_t end = pcre2_get_ovector_pointer(m.match)[1];
  const std::string_view piece = m.text.substr(m.at, end - m.at);
  m.at = end;
  return piece;
}

std::vector<std::string_view> pretokenize(std::string_view text) {
  std::vector<std::string_view> pieces;
  PieceCursor cursor(text);
  for (auto piece = cursor.next(); !piece.empty(); piece = cursor.next()) pieces.push_back(piece);
  return pieces;
}

}  // namespace waste::text
