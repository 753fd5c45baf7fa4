// A folder of this process's own, and a tiny container in it, whose files a fuzz target rewrites.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/tiny_container.hpp"

namespace waste::fuzz {

/// A folder in memory where there is a file system for that; goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    static int number = 0;
    const std::filesystem::path shm = "/dev/shm";
    const auto root =
        std::filesystem::is_directory(shm) ? shm : std::filesystem::temp_directory_path();
    dir = root / ("waste-fuzz-" + std::to_string(static_cast<long>(::getpid())) + "-" +
                  std::to_string(number++));
    std::filesystem::create_directories(dir);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(dir, ignored);
  }
  void put(const std::string& name, const void* bytes, std::size_t size) const {
    std::ofstream out(dir / name, std::ios::binary | std::ios::trunc);
    out.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  }

  std::filesystem::path dir;
};

/// Writes the container once; put() replaces one file, restore() puts it back.
class ScratchContainer : public ScratchFolder {
 public:
  explicit ScratchContainer(const test::TinySpec& spec)
      : tiny(test::make_tiny(spec)), manifest(tiny.manifest.dump()) {
    tiny.write(dir);
  }
  void restore(const std::string& name) const {
    if (name == "manifest.json") {
      put(name, manifest.data(), manifest.size());
    } else {
      const auto& bytes = tiny.files.at(name);
      put(name, bytes.data(), bytes.size());
    }
  }

  test::TinyContainer tiny;
  std::string manifest;
};

/// Mends the crc of the record that position `at` of a damaged bank lies in; false where the bank
/// has another size or the record's header is too wild to tell where the payload ends.
inline bool mend_record(const test::TinyContainer& tiny, std::uint32_t layer,
                        std::vector<std::uint8_t>& bank, std::size_t at) {
  const std::size_t bank_bytes = tiny.bank(layer).size();
  if (bank.size() != bank_bytes) return false;
  const std::size_t record_bytes = tiny.record_bytes(), record = at % bank_bytes / record_bytes;
  std::uint32_t scales_at = 0;
  std::memcpy(&scales_at, bank.data() + record * record_bytes + 32, 4);
  if (scales_at >= record_bytes - 256) return false;
  tiny.fix_crc(bank, static_cast<std::uint32_t>(record));
  return true;
}

/// A spec small enough that a record is one page and a container a few hundred kilobytes.
inline test::TinySpec small(test::TinySpec spec) {
  spec.hidden = 16;
  spec.inter = 8;
  spec.latent = 8;
  spec.experts = 2;
  spec.layers = 3;
  spec.entries = 4;
  spec.trunk_threshold = 64;
  return spec;
}

}  // namespace waste::fuzz
