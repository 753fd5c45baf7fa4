// Conversions onto several drives: the same bytes through links, whatever interrupts them.
#include <algorithm>
#include <set>
#include <stdexcept>

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"
#include "waste/io/container.hpp"

using namespace waste;
using namespace waste::test;
using convert::ConvertOptions;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

ConvertOptions fast(const std::vector<fs::path>& drives = {}) {
  ConvertOptions o;
  o.quant = format::vq2r;
  o.effort = quant::Effort::fast;
  o.jobs = 1;
  o.codebook_sample = 1;
  o.drives = drives;
  return o;
}

const fs::path& source() {
  static const fs::path dir = [] {
    SmallSource s;
    s.inter = 32;
    return make_source(scratch_dir("source-drives"), s);
  }();
  return dir;
}

const fs::path& plain() {
  static const fs::path dir = [] {
    const fs::path out = scratch_dir("drives-plain") / "c.waste";
    convert::convert(source(), out, fast());
    return out;
  }();
  return dir;
}

std::vector<std::string> names(const fs::path& dir) {
  std::vector<std::string> out;
  for (const auto& e : fs::directory_iterator(dir)) out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

/// Every bank is a link to its own name on the drive whose turn it is, and nothing else is there.
void check_striped(const fs::path& container, const std::vector<fs::path>& drives) {
  std::set<std::string> seen;
  const Container c = Container::open(container);
  for (std::size_t i = 0; i < c.banks().size(); ++i) {
    const std::string& file = c.manifest().layers[i].file;
    const fs::path target = drives[i % drives.size()] / container.filename() / file;
    REQUIRE(fs::is_symlink(container / file));
    REQUIRE(fs::equivalent(container / file, target));
    seen.insert(target.string());
  }
  for (const fs::path& d : drives) {
    for (const std::string& name : names(d / container.filename())) {
      CHECK(seen.count((d / container.filename() / name).string()) == 1);
    }
  }
}

}  // namespace

TEST_CASE("a conversion onto drives has the bytes of one into a folder") {
  const fs::path root = scratch_dir("drives-whole");
  const std::vector<fs::path> drives{root / "a", root / "b"};
  const fs::path out = root / "c.waste";
  const auto report = convert::convert(source(), out, fast(drives));
  REQUIRE(report.complete);
  REQUIRE(report.layers_total >= 2);
  check_striped(out, drives);
  CHECK(folder_difference(plain(), out) == "");
  CHECK(names(plain()) == names(out));  // no part is left

  // In the way: an error without force, and with it replaced, on the drives too.
  CHECK(code_of([&] { convert::convert(source(), out, fast(drives)); }) == Errc::exists);
  ConvertOptions again = fast({root / "b", root / "a"});
  again.replace = true;
  REQUIRE(convert::convert(source(), out, again).complete);
  check_striped(out, again.drives);
  CHECK(folder_difference(plain(), out) == "");

  // Without the drives only the links go; what they led to is not taken over by the next.
  again.drives.clear();
  REQUIRE(convert::convert(source(), out, again).complete);
  CHECK_FALSE(fs::is_symlink(out / "experts-L1.bin"));
  CHECK(names(root / "b" / "c.waste") == std::vector<std::string>{"experts-L1.bin"});
  again.drives = {root / "b"};
  CHECK(code_of([&] { convert::convert(source(), out, again); }) == Errc::exists);
}

TEST_CASE("interrupted at any step and continued, the bytes are the same", "[native]") {
  const fs::path root = scratch_dir("drives-interrupted");
  int steps = 0;
  ConvertOptions o = fast();
  o.progress = [&](const convert::ConvertProgress&) { ++steps; };
  convert::convert(source(), root / "count", o);
  REQUIRE(steps > 20);
  std::uint64_t kept = 0;
  for (int step = 1; step <= steps; step += step < 6 ? 1 : 5) {
    INFO("interrupted at step " << step << " of " << steps);
    const fs::path at = root / std::to_string(step), out = at / "c.waste";
    const std::vector<fs::path> drives{at / "a", at / "b"};
    ConvertOptions stopped = fast(drives);
    int left = step;
    stopped.progress = [&](const convert::ConvertProgress&) {
      if (--left == 0) throw std::runtime_error("stopped");
    };
    REQUIRE_THROWS_AS(convert::convert(source(), out, stopped), std::runtime_error);
    CHECK_FALSE(fs::exists(out / "manifest.json"));
    kept += convert::convert(source(), out, fast(drives)).records_kept;
    REQUIRE(folder_difference(plain(), out) == "");
    check_striped(out, drives);
  }
  CHECK(kept > 5);
}

TEST_CASE("banks that were begun go on where they are, whatever drives are named later") {
  const fs::path root = scratch_dir("drives-moved"), out = root / "c.waste";
  ConvertOptions slice = fast({root / "a"});
  slice.layers = {1, 1};
  convert::convert(source(), out, slice);
  convert::convert(source(), out, fast({root / "b", root / "c"}));
  CHECK(folder_difference(plain(), out) == "");
  CHECK(names(root / "a" / "c.waste") == std::vector<std::string>{"experts-L1.bin"});
  CHECK(fs::exists(root / "c" / "c.waste" / "experts-L2.bin"));  // the second layer's turn
}

TEST_CASE("slices on drives are merged into links to the same banks") {
  const fs::path root = scratch_dir("drives-merged");
  ConvertOptions first = fast({root / "a", root / "b"}), rest = fast(), trunk = fast();
  const Container c = Container::open(plain());
  const std::uint32_t last = c.manifest().layers.back().layer;
  first.layers = {1, 1};
  rest.layers = {2, last};
  trunk.trunk_only = true;
  convert::convert(source(), root / "one", first);
  convert::convert(source(), root / "two", rest);
  convert::convert(source(), root / "three", trunk);
  const fs::path out = root / "merged";
  REQUIRE(convert::merge(out, {root / "one", root / "two", root / "three"}).complete);
  CHECK(folder_difference(plain(), out) == "");
  CHECK(fs::equivalent(out / "experts-L1.bin", root / "a" / "one" / "experts-L1.bin"));
  CHECK(fs::is_symlink(out / "experts-L1.bin"));
  CHECK_FALSE(fs::is_symlink(out / "experts-L2.bin"));
}

TEST_CASE("what cannot be put on the drives is refused before anything is written") {
  const fs::path root = scratch_dir("drives-refusal"), out = root / "c.waste";
  ConvertOptions full = fast({root / "a"});
  full.free_bytes_limit = 1000;
  CHECK(code_of([&] { convert::convert(source(), out, full); }) == Errc::no_space);
  CHECK_FALSE(fs::exists(out));
  CHECK_FALSE(fs::exists(root / "a"));
  CHECK(code_of([&] { convert::convert(source(), out, fast({root})); }) == Errc::bad_argument);
  CHECK(code_of([&] {
          convert::convert(source(), out, fast({root / "a", root / "a"}));
        }) == Errc::duplicate);
  CHECK_FALSE(fs::exists(out));
  // Another container of this name has its banks there.
  fs::create_directories(root / "a" / "c.waste");
  write_file(root / "a" / "c.waste" / "experts-L1.bin", "x");
  const Error e = failure_of([&] { convert::convert(source(), out, fast({root / "a"})); });
  CHECK(e.code() == Errc::exists);
  CHECK(read_bytes(root / "a" / "c.waste" / "experts-L1.bin") == "x");
}
