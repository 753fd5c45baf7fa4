// The memory limit as control groups of both versions state it.
#include <filesystem>
#include <fstream>
#include <string>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/io/memory_limit.hpp"

namespace {

namespace fs = std::filesystem;
using waste::io::memory_limit;
using waste::io::MemoryLimit;

class FakeRoot {
 public:
  FakeRoot() : root_(waste::test::scratch_dir("root")) {}
  FakeRoot& file(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
    return *this;
  }
  MemoryLimit limit() const { return memory_limit(root_); }

 private:
  fs::path root_;
};

const std::string meminfo = "MemTotal:       65536000 kB\nMemFree:          1234 kB\n";
constexpr std::uint64_t physical = 65536000ull * 1024;

TEST_CASE("without control groups the physical memory counts", "[memory]") {
  const MemoryLimit l = FakeRoot().file("proc/meminfo", meminfo).limit();
  CHECK(l.physical_bytes == physical);
  CHECK_FALSE(l.cgroup_bytes);
  CHECK(l.usable_bytes() == physical);
}

TEST_CASE("version 2: the smallest limit on the way to the root", "[memory]") {
  FakeRoot root;
  root.file("proc/meminfo", meminfo).file("proc/self/cgroup", "0::/a/b/c\n");
  root.file("sys/fs/cgroup/a/b/c/memory.max", "max\n");
  CHECK_FALSE(root.limit().cgroup_bytes);
  root.file("sys/fs/cgroup/a/memory.max", "8000000000\n");
  CHECK(root.limit().cgroup_bytes == 8000000000u);
  CHECK(root.limit().usable_bytes() == 8000000000u);
  root.file("sys/fs/cgroup/a/b/c/memory.high", "7000000000\n");
  CHECK(root.limit().usable_bytes() == 7000000000u);
  root.file("sys/fs/cgroup/memory.max", "5000000000\n");
  CHECK(root.limit().usable_bytes() == 5000000000u);
  root.file("sys/fs/cgroup/a/b/other/memory.max", "1\n");
  CHECK(root.limit().usable_bytes() == 5000000000u);
}

TEST_CASE("available memory is what the kernel says", "[memory]") {
  CHECK(FakeRoot().file("proc/meminfo", meminfo).limit().available_bytes == 0);
  const std::string more = meminfo + "MemAvailable:   2048 kB\n";
  const MemoryLimit l = FakeRoot().file("proc/meminfo", more).limit();
  CHECK(l.available_bytes == 2048 * 1024);
  CHECK(l.usable_bytes() == physical);
  CHECK(l.free_bytes() == 2048 * 1024);
}

TEST_CASE("a limit above the physical memory does not count", "[memory]") {
  FakeRoot root;
  root.file("proc/meminfo", meminfo).file("proc/self/cgroup", "0::/\n");
  root.file("sys/fs/cgroup/memory.max", "1000000000000\n");
  CHECK(root.limit().usable_bytes() == physical);
}

TEST_CASE("version 1: memory.limit_in_bytes, its largest number meaning none", "[memory]") {
  FakeRoot root;
  root.file("proc/meminfo", meminfo);
  root.file("proc/self/cgroup", "12:cpu,cpuacct:/x\n7:memory:/job/1\n0::/\n");
  root.file("sys/fs/cgroup/memory/job/1/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_FALSE(root.limit().cgroup_bytes);
  root.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3000000000\n");
  CHECK(root.limit().usable_bytes() == 3000000000u);
}

TEST_CASE("damaged and absent files count as no limit", "[memory]") {
  FakeRoot root;
  CHECK(root.limit().usable_bytes() == 0);
  root.file("proc/meminfo", "MemTotal: many kB\n").file("proc/self/cgroup", "nonsense\n0:\n:::\n");
  CHECK(root.limit().usable_bytes() == 0);
  root.file("proc/meminfo", "MemTotal: 18446744073709551615 kB\n");
  CHECK(root.limit().physical_bytes == 0);
  root.file("proc/self/cgroup", "0::/../../../../etc\n");
  CHECK_NOTHROW(root.limit());
}

TEST_CASE("this machine has memory", "[memory]") {
  CHECK(memory_limit().usable_bytes() > 64u << 20);
}

}  // namespace
