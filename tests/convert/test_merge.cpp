// Slices of a conversion made in directories of their own, joined to the bytes of a single run.

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"

using namespace waste;
using namespace waste::test;
using convert::ConvertOptions;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

const fs::path& source() {
  static const fs::path dir = [] {
    SmallSource s;
    s.k3 = true;
    s.layers = 5;
    return make_source(scratch_dir("source-merge"), s);
  }();
  return dir;
}

fs::path fresh(const std::string& name) {
  const fs::path dir = scratch_dir(name);
  fs::remove(dir);
  return dir;
}

ConvertOptions fast() {
  ConvertOptions o;
  o.quant = format::vq4p;
  o.effort = quant::Effort::fast;
  o.jobs = 2;
  o.codebook_sample = 1;
  return o;
}

fs::path slice(const std::string& name, std::uint32_t first, std::uint32_t last) {
  const fs::path out = fresh(name);
  ConvertOptions o = fast();
  o.layers = {first, last};
  CHECK_FALSE(convert::convert(source(), out, o).complete);
  return out;
}

fs::path trunk(const std::string& name) {
  const fs::path out = fresh(name);
  ConvertOptions o = fast();
  o.trunk_only = true;
  CHECK_FALSE(convert::convert(source(), out, o).complete);
  CHECK_FALSE(fs::exists(out / "manifest.json"));
  return out;
}

}  // namespace

TEST_CASE("merged slices are byte for byte a single run") {
  const fs::path whole = fresh("whole");
  convert::convert(source(), whole, fast());
  const fs::path a = slice("a", 1, 1), b = slice("b", 2, 3), c = slice("c", 4, 4),
                 t = trunk("trunk");
  const auto parts = {c, t, a, b};
  std::vector<std::map<std::string, std::string>> before;
  for (const fs::path& p : parts) before.push_back(folder_bytes(p));
  const fs::path merged = fresh("merged");
  const auto report = convert::merge(merged, parts);
  CHECK(report.complete);
  CHECK(report.layers_done == 4);
  CHECK(report.layers_total == 4);
  CHECK(folder_difference(whole, merged) == "");
  std::size_t i = 0;
  for (const fs::path& p : parts) CHECK(folder_bytes(p) == before[i++]);
  convert::VerifyOptions against;
  against.source = source();
  CHECK(convert::verify(merged, against).ok());

  // A second time: what is there stays.
  CHECK(failure_of([&] { convert::merge(merged, parts); }).code() == Errc::exists);
  // Slices of a run into one directory serve as a part too.
  const fs::path both = slice("both", 1, 2);
  ConvertOptions o = fast();
  o.layers = {3, 4};
  convert::convert(source(), both, o);
  o.layers.reset();
  o.trunk_only = true;
  convert::convert(source(), both, o);
  const fs::path again = fresh("again");
  CHECK(convert::merge(again, {both}).complete);
  CHECK(folder_difference(whole, again) == "");
  // And a directory with all of it can be finished where it is.
  o.trunk_only = false;
  o.merge_only = true;
  CHECK(convert::convert(source(), both, o).complete);
  CHECK(folder_difference(whole, both) == "");
}

TEST_CASE("a merge that was stopped continues") {
  const fs::path whole = fresh("whole-2");
  convert::convert(source(), whole, fast());
  const fs::path a = slice("a2", 1, 2), b = slice("b2", 3, 4), t = trunk("trunk2");
  const fs::path out = fresh("stopped");
  convert::merge(out, {a, b, t});
  // What a kill between any two steps leaves: the plan, and some of the files.
  const std::string plan = read_bytes(a / "convert-plan.json");
  write_file(out / "convert-plan.json", plan);
  CHECK(convert::merge(out, {a, b, t}).complete);
  CHECK(folder_difference(whole, out) == "");
  for (const char* lost : {"manifest.json", "experts-L3.bin", "trunk.bin", "codebooks.bin"}) {
    fs::remove(out / lost);
    fs::remove(out / "manifest.json");
    write_file(out / "convert-plan.json", plan);
    write_file(out / "experts-L3.bin.part", "half");
    CHECK(convert::merge(out, {a, b, t}).complete);
    CHECK(folder_difference(whole, out) == "");
  }
}

TEST_CASE("slices that do not make a container are refused, and nothing is written") {
  const fs::path a = slice("a3", 1, 2), b = slice("b3", 3, 4), t = trunk("trunk3");
  const fs::path out = fresh("refused");
  const auto refused = [&](const std::vector<fs::path>& parts) {
    const Error e = failure_of([&] { convert::merge(out, parts); });
    INFO(e.what());
    CHECK_FALSE(fs::exists(out));
    return e;
  };
  CHECK(refused({}).code() == Errc::bad_argument);
  Error e = refused({a, t});
  CHECK(e.code() == Errc::missing);
  CHECK(e.fault().layer == 3);
  CHECK(refused({a, b}).code() == Errc::missing);  // no trunk
  e = refused({a, b, t, source()});
  CHECK(e.code() == Errc::missing);
  CHECK(e.file() == source().string());
  const fs::path twice = slice("twice", 2, 3);
  e = refused({a, b, t, twice});
  CHECK(e.code() == Errc::duplicate);
  CHECK(e.fault().layer == 2);
  CHECK(refused({a, b, t, trunk("trunk4")}).code() == Errc::duplicate);
  CHECK(refused({a, b, t, a}).code() == Errc::exists);  // locked: named twice

  const fs::path other = fresh("other");
  ConvertOptions o = fast();
  o.seed = 9;
  o.layers = {3, 4};
  convert::convert(source(), other, o);
  e = refused({a, other, t});
  CHECK(e.code() == Errc::mismatch);
  CHECK(std::string(e.what()).find("seed") != std::string::npos);

  fs::resize_file(b / "experts-L4.bin", fs::file_size(b / "experts-L4.bin") - 4096);
  e = refused({a, b, t});
  CHECK(e.code() == Errc::missing);
  CHECK(e.fault().layer == 4);
  CHECK(failure_of([&] { convert::merge(t, {a, b, t}); }).code() == Errc::bad_argument);

  o = fast();
  o.trunk_only = true;
  o.layers = {1, 1};
  CHECK(failure_of([&] { convert::convert(source(), out, o); }).code() == Errc::bad_argument);
}
