// What every fuzz target shares: the entry point's name and properties that must hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

/// The entry point that libFuzzer and the replay program call.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Ends the process where a property is broken, so that the fuzzer keeps the input.
#define WASTE_FUZZ_CHECK(condition)                                                \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace waste::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) noexcept {
  return {reinterpret_cast<const char*>(data), size};
}

/// Takes values off the front of an input; zeros when it has run out.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) noexcept : rest_(data, size) {}
  std::size_t left() const noexcept { return rest_.size(); }
  std::span<const std::uint8_t> rest() const noexcept { return rest_; }
  std::uint64_t take(std::size_t bytes) noexcept {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes && !rest_.empty(); ++i) {
      value |= std::uint64_t{rest_.front()} << (8 * i);
      rest_ = rest_.subspan(1);
    }
    return value;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace waste::fuzz
