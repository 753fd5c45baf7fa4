// Runs a fuzz target over a corpus without libFuzzer, and over seeded mutations of it.
// Usage: PROGRAM [--mutations N] [--seed S] FILE_OR_FOLDER...
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz_target.hpp"

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

/// One to four changes: flips, small numbers, cuts, copies within and from another input.
Bytes mutate(Bytes bytes, const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  for (std::size_t n = 1 + below(4); n > 0; --n) {
    const std::size_t at = below(bytes.size());
    const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<std::uint8_t>(random());
        break;
      case 2: {
        static const std::uint64_t numbers[] = {0,      1,      0x7f,       0xff,
                                                0x7c00, 0xffff, 0x7fffffff, 0xffffffff};
        const std::uint64_t value = numbers[below(8)];
        const std::size_t count = std::min<std::size_t>(4, bytes.size() - at);
        if (count > 0) std::memcpy(bytes.data() + at, &value, count);
        break;
      }
      case 3:
        bytes.resize(at);
        break;
      case 4: {
        const auto count =
            static_cast<std::ptrdiff_t>(below(std::min<std::size_t>(64, bytes.size() - at) + 1));
        bytes.erase(here, here + count);
        break;
      }
      case 5: {
        const Bytes& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size());
        const std::size_t count = below(std::min<std::size_t>(256, other.size() - from) + 1);
        bytes.insert(here, other.begin() + static_cast<std::ptrdiff_t>(from),
                     other.begin() + static_cast<std::ptrdiff_t>(from + count));
        break;
      }
      case 6: {  // another number in a text
        const std::string digits = std::to_string(random() >> below(64));
        auto end = here;
        while (end != bytes.end() && *end >= '0' && *end <= '9') ++end;
        const auto place = bytes.erase(here, end);
        bytes.insert(place, digits.begin(), digits.end());
        break;
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t mutations = 0;
  std::uint64_t seed = 1;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--mutations" && i + 1 < argc) {
      mutations = std::stoul(argv[++i]);
    } else if (arg == "--seed" && i + 1 < argc) {
      seed = std::stoul(argv[++i]);
    } else if (fs::is_directory(arg)) {
      for (const auto& entry : fs::directory_iterator(arg)) files.push_back(entry.path());
    } else {
      files.emplace_back(arg);
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const fs::path& path : files) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", path.c_str());
      return 1;
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "no inputs\n");
    return 1;
  }
  std::size_t runs = 0;
  std::mt19937_64 random(seed);
  const auto run = [&](const Bytes& input) {
    ::alarm(120);  // a hang ends the process; nothing here takes a second
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ++runs;
  };
  for (const Bytes& input : corpus) run(input);
  for (std::size_t n = 0; n < mutations; ++n) {
    run(mutate(corpus[random() % corpus.size()], corpus, random));
  }
  std::printf("%zu inputs, %zu runs, no broken property\n", corpus.size(), runs);
  return 0;
}
