// Reads golden files (safetensors) without the library under test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace waste::test {

struct GoldenTensor {
  std::string dtype;  ///< F32, F64, I32, I64, U8, U16, I8, ...
  std::vector<std::size_t> shape;
  std::vector<std::uint8_t> bytes;

  std::size_t size() const;
  /// The elements as T; throws std::runtime_error when sizeof(T) is not the dtype's.
  template <class T>
  std::vector<T> as() const;
};

struct Golden {
  std::map<std::string, GoldenTensor> tensors;
  std::map<std::string, std::string> metadata;

  const GoldenTensor& operator[](const std::string& name) const;
  template <class T>
  std::vector<T> get(const std::string& name) const {
    return (*this)[name].as<T>();
  }
};

/// Reads tests/data/golden/NAME.safetensors (folder from WASTE_TEST_DATA).
Golden read_golden(const std::string& name);
Golden read_golden_file(const std::filesystem::path& path);

/// The folder of committed test data, and the root of the source tree.
std::filesystem::path data_dir();
std::filesystem::path source_root();
/// The folder of external check data, or empty when WASTE_SHARED is unset (say so and skip).
std::filesystem::path shared_dir();
/// Says on standard output that a check was skipped ("SKIPPED: reason"); tests/run.sh counts it.
void skipped(const std::string& reason);
/// A Python interpreter that has NumPy (WASTE_PYTHON), or empty: say so with skipped() and return.
std::string python();
/// An empty folder of this process's own, removed at exit.
std::filesystem::path scratch_dir(const std::string& name);

}  // namespace waste::test
