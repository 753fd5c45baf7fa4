// usage.waste: layout, joining of entries, and indifference to damage.
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/tiny_container.hpp"
#include "waste/format/manifest.hpp"
#include "waste/format/usage_log.hpp"

namespace {

using namespace waste;
using namespace waste::format;
using Bytes = std::vector<std::uint8_t>;

/// Layers 1 to 3 with 5 experts each.
ModelConfig model() {
  return parse_model_config(parse_json(test::tiny_config(test::TinySpec{}).dump(), "c"), "c");
}

const Bytes known = {'W', 'U', 'S', 'G', 1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0,   // clock 2^32 + 7
                     1,   0,   4,   0,   3, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0,   // layer 1 expert 4
                     3,   0,   0,   0,   1, 1, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0};  // layer 3 expert 0

TEST_CASE("a log is read and written byte by byte", "[usage]") {
  UsageLog log;
  REQUIRE(parse_usage(known, model(), log).ok());
  CHECK(log.clock == (std::uint64_t{1} << 32) + 7);
  CHECK(log.entries == std::vector<UsageEntry>{{1, 4, 3, 6, 0}, {3, 0, 257, 7, 9}});
  CHECK(log.ignored == 0);
  CHECK(dump_usage(log) == known);
  CHECK(dump_usage({}).size() == 16);
}

TEST_CASE("entries nobody has are dropped, a cut last one too", "[usage]") {
  Bytes bytes = known;
  const auto add = [&](std::uint8_t layer, std::uint8_t expert) {
    Bytes e(16, 0);
    e[0] = layer;
    e[2] = expert;
    e[4] = 1;
    bytes.insert(bytes.end(), e.begin(), e.end());
  };
  add(0, 0);    // a dense layer
  add(4, 0);    // no layer
  add(255, 0);  // no layer
  add(2, 5);    // no expert
  bytes.resize(bytes.size() + 15, 0xff);
  UsageLog log;
  REQUIRE(parse_usage(bytes, model(), log).ok());
  CHECK(log.entries.size() == 2);
  CHECK(log.ignored == 4);
}

TEST_CASE("entries of one expert are joined without wrapping", "[usage]") {
  UsageLog twice;
  twice.entries = {{1, 1, 5, 30, 0}, {2, 2, 1, 1, 0}, {1, 1, 0xfffffffe, 20, 0}, {1, 1, 9, 40, 0}};
  UsageLog log;
  REQUIRE(parse_usage(dump_usage(twice), model(), log).ok());
  REQUIRE(log.entries.size() == 2);
  CHECK(log.entries[0] == UsageEntry{1, 1, 0xffffffff, 40, 0});
  CHECK(log.entries[1] == UsageEntry{2, 2, 1, 1, 0});
}

TEST_CASE("what is no log is refused and leaves nothing", "[usage]") {
  const auto refused = [](Bytes bytes) {
    UsageLog log;
    log.entries.resize(3);
    const Fault f = parse_usage(bytes, model(), log);
    CHECK(log.entries.empty());
    return f.code;
  };
  CHECK(refused({}) == Errc::truncated);
  CHECK(refused(Bytes(known.begin(), known.begin() + 15)) == Errc::truncated);
  Bytes bad = known;
  bad[0] = 'X';
  CHECK(refused(bad) == Errc::bad_magic);
  bad = known;
  bad[4] = 2;
  CHECK(refused(bad) == Errc::bad_version);
  bad = known;
  bad.resize(usage_limit_bytes(model()) + 1);
  CHECK(refused(bad) == Errc::out_of_range);
  CHECK(usage_limit_bytes(model()) == 16 + 16 * 16 * 15);
  bad.resize(usage_limit_bytes(model()));
  UsageLog log;
  CHECK(parse_usage(bad, model(), log).ok());
}

}  // namespace
