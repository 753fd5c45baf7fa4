#include "support/golden.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace waste::test {
namespace {

std::size_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::size_t> sizes = {
      {"F64", 8},  {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4}, {"U32", 4}, {"F16", 2},
      {"BF16", 2}, {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  return sizes.at(dtype);
}

std::filesystem::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::filesystem::path() : std::filesystem::path(value);
}

struct ScratchRoot {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("waste-test-" + std::to_string(static_cast<long>(::getpid())));
  ~ScratchRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

std::size_t GoldenTensor::size() const { return bytes.size() / element_bytes(dtype); }

template <class T>
std::vector<T> GoldenTensor::as() const {
  if (sizeof(T) != element_bytes(dtype)) {
    throw std::runtime_error("golden tensor of dtype " + dtype + " read as another size");
  }
  std::vector<T> out(size());
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

template std::vector<float> GoldenTensor::as() const;
template std::vector<double> GoldenTensor::as() const;
template std::vector<std::int64_t> GoldenTensor::as() const;
template std::vector<std::int32_t> GoldenTensor::as() const;
template std::vector<std::uint32_t> GoldenTensor::as() const;
template std::vector<std::int16_t> GoldenTensor::as() const;
template std::vector<std::uint16_t> GoldenTensor::as() const;
template std::vector<std::int8_t> GoldenTensor::as() const;
template std::vector<std::uint8_t> GoldenTensor::as() const;

const GoldenTensor& Golden::operator[](const std::string& name) const {
  const auto it = tensors.find(name);
  if (it == tensors.end()) throw std::runtime_error("no golden tensor " + name);
  return it->second;
}

Golden read_golden(const std::string& name) {
  return read_golden_file(data_dir() / "golden" / (name + ".safetensors"));
}

Golden read_golden_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  const std::vector<char> file((std::istreambuf_iterator<char>(in)), {});
  if (file.size() < 8) throw std::runtime_error("short golden file " + path.string());
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  const auto header = nlohmann::json::parse(
      file.begin() + 8, file.begin() + 8 + static_cast<std::ptrdiff_t>(header_bytes));
  const char* base = file.data() + 8 + header_bytes;
  Golden out;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      out.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    GoldenTensor t;
    t.dtype = entry.at("dtype").get<std::string>();
    t.shape = entry.at("shape").get<std::vector<std::size_t>>();
    const auto range = entry.at("data_offsets").get<std::vector<std::size_t>>();
    t.bytes.assign(base + range.at(0), base + range.at(1));
    out.tensors.emplace(name, std::move(t));
  }
  return out;
}

std::filesystem::path data_dir() { return from_environment("WASTE_TEST_DATA"); }
std::filesystem::path source_root() { return from_environment("WASTE_SOURCE_ROOT"); }
std::filesystem::path shared_dir() { return from_environment("WASTE_SHARED"); }

void skipped(const std::string& reason) {
  std::printf("SKIPPED: %s\n", reason.c_str());
  std::fflush(stdout);
}

std::string python() {
  const char* value = std::getenv("WASTE_PYTHON");
  return value == nullptr ? std::string() : std::string(value);
}

std::filesystem::path scratch_dir(const std::string& name) {
  static const ScratchRoot root;
  const auto dir = root.path / name;
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

}  // namespace waste::test
