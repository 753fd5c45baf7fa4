// Runs the independent NumPy reference, where Python with NumPy is at hand.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/golden.hpp"

namespace waste::test {

/// A Python that can import numpy, WASTE_PYTHON first; empty where there is none.
inline const std::string& numpy_python() {
  static const std::string found = [] {
    const char* const chosen = std::getenv("WASTE_PYTHON");
    for (const char* candidate : {chosen, "python3", "/usr/bin/python3"}) {
      if (candidate == nullptr || *candidate == '\0') continue;
      const std::string probe = std::string(candidate) + " -c 'import numpy' >/dev/null 2>&1";
      if (std::system(probe.c_str()) == 0) return std::string(candidate);
    }
    return std::string();
  }();
  return found;
}

/// Runs tests/oracle/SCRIPT with `arguments` (quoted by the caller); its exit status.
inline int run_oracle(const std::string& script, const std::string& arguments) {
  const std::string command = numpy_python() + " -B '" +
                              (source_root() / "tests/oracle" / script).string() + "' " + arguments;
  return std::system(command.c_str());
}

/// A random-weight checkpoint of "kimi-linear" or "k3", made once per process.
inline std::filesystem::path random_checkpoint(const std::string& arch) {
  const std::filesystem::path dir = scratch_dir("checkpoint-" + arch);
  if (run_oracle("make_checkpoint.py", arch + " '" + dir.string() + "'") != 0) {
    throw std::runtime_error("make_checkpoint.py failed");
  }
  return dir;
}

}  // namespace waste::test
