// The Error that a call ends in.
#pragma once

#include <functional>

#include "support/catch.hpp"
#include "waste/core/error.hpp"

namespace waste::test {

/// What `f` throws; fails the test where it throws nothing.
inline Error failure_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  FAIL("no Error was thrown");
  throw 0;
}

/// The code of what `f` throws; ok where it throws nothing.
template <class F>
Errc code_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.code();
  }
  return Errc::ok;
}

}  // namespace waste::test
