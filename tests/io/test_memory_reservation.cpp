// Reservations of memory between processes, in folders of the test's own.
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/io/memory_limit.hpp"
#include "waste/io/memory_reservation.hpp"

namespace {

namespace fs = std::filesystem;
using waste::io::MemoryReservation;
using waste::io::ReservationPlace;

/// A folder for the file and a made-up proc.
struct Machine {
  ReservationPlace place;
  explicit Machine(const std::string& name) {
    place.root = waste::test::scratch_dir("machine-" + name);
    place.directory = place.root / "run";
    fs::create_directories(place.directory);
    process(static_cast<std::uint64_t>(::getpid()), 77, 0);
  }
  fs::path file() const { return place.directory / "waste-memory"; }
  void process(std::uint64_t pid, std::uint64_t started, std::uint64_t resident_pages) const {
    const fs::path dir = place.root / "proc" / std::to_string(pid);
    fs::create_directories(dir);
    std::ofstream(dir / "stat") << pid << " (a (strange) name) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 "
                                << "15 16 17 18 " << started << " 20 21\n";
    std::ofstream(dir / "statm") << "100000 " << resident_pages << " 3 4 5 6 7\n";
  }
  void write(const std::string& text) const { std::ofstream(file()) << text; }
  std::string text() const {
    std::ifstream in(file());
    return {std::istreambuf_iterator<char>(in), {}};
  }
  MemoryReservation reserve(std::uint64_t bytes, std::uint64_t* others = nullptr) const {
    return MemoryReservation(
        [&](std::uint64_t o) {
          if (others != nullptr) *others = o;
          return bytes;
        },
        place);
  }
};

std::string line(std::uint64_t pid, std::uint64_t started, std::uint64_t bytes) {
  return std::to_string(pid) + ' ' + std::to_string(started) + ' ' + std::to_string(bytes) + '\n';
}

const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

}  // namespace

TEST_CASE("what others reserved counts until they use it, or are gone", "[reservation]") {
  const Machine m("others");
  m.process(1000, 5, 10);   // uses ten pages of what it reserved
  m.process(1001, 6, 900);  // uses more than it reserved
  m.process(1002, 8, 0);    // another process than the one that wrote
  m.write(line(1000, 5, 100 * page) + line(1000, 5, 50 * page) + line(1001, 6, 300 * page) +
          line(1002, 7, 1000 * page) + line(1003, 9, 2000 * page) + "nonsense\n12 x\n");
  CHECK(MemoryReservation::others(m.place) == 140 * page);
  std::uint64_t others = 0;
  {
    const MemoryReservation mine = m.reserve(4096, &others);
    CHECK(others == 140 * page);
    CHECK(mine.bytes() == 4096);
    const std::string left = line(1000, 5, 100 * page) + line(1000, 5, 50 * page) +
                             line(1001, 6, 300 * page);  // the dead are swept
    CHECK(m.text() == left + line(static_cast<std::uint64_t>(::getpid()), 77, 4096));
  }
  CHECK(MemoryReservation::others(m.place) == 140 * page);
  CHECK(m.text().find(std::to_string(::getpid())) == std::string::npos);
}

TEST_CASE("reservations of one process are apart, move, and end one by one", "[reservation]") {
  const Machine m("apart");
  MemoryReservation a = m.reserve(10 * page);
  {
    MemoryReservation b = m.reserve(7 * page);
    CHECK(MemoryReservation::others(m.place) == 17 * page);
    a = std::move(b);  // b now ends the first
  }
  CHECK(MemoryReservation::others(m.place) == 7 * page);
  a = MemoryReservation();
  CHECK(MemoryReservation::others(m.place) == 0);
  CHECK(m.reserve(0).bytes() == 0);
  CHECK(m.text().empty());
  CHECK_THROWS_AS(MemoryReservation([](std::uint64_t) -> std::uint64_t { throw 1; }, m.place), int);
  CHECK(MemoryReservation::others(m.place) == 0);
}

TEST_CASE("what cannot be had is no error", "[reservation]") {
  Machine m("without");
  std::uint64_t others = 1;
  m.place.directory = m.place.root / "no such folder";
  CHECK(m.reserve(100, &others).bytes() == 0);
  CHECK(others == 0);

  const Machine link("link");  // a trap in a folder that everyone may write to
  const fs::path victim = link.place.root / "victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, link.file());
  CHECK(link.reserve(100).bytes() == 0);
  CHECK(fs::file_size(victim) == 8);
  fs::remove(link.file());
  fs::create_hard_link(victim, link.file());
  CHECK(link.reserve(100).bytes() == 0);
  CHECK(fs::file_size(victim) == 8);
  fs::remove(link.file());
  fs::create_directory(link.file());
  CHECK(link.reserve(100).bytes() == 0);

  const Machine held("held");
  held.write(line(static_cast<std::uint64_t>(::getpid()), 77, page));
  const int fd = ::open(held.file().c_str(), O_RDWR);
  REQUIRE(::flock(fd, LOCK_EX) == 0);
  CHECK(held.reserve(100).bytes() == 0);  // after a second, not never
  ::close(fd);
  CHECK(held.reserve(100).bytes() == 100);
}

// qemu tells a process another time of its start than others.
TEST_CASE("two processes that decide at once see each other", "[reservation][native]") {
  ReservationPlace place;  // with the real proc
  place.directory = waste::test::scratch_dir("reservation-two");
  const std::uint64_t much = std::uint64_t{1} << 40;
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  pid_t children[2];
  for (pid_t& child : children) {
    child = ::fork();
    if (child != 0) continue;
    std::uint64_t seen = 0;
    const MemoryReservation mine(
        [&](std::uint64_t others) {
          seen = others;
          ::usleep(20000);
          return much;
        },
        place);
    const bool wrote = ::write(pipe[1], &seen, sizeof seen) == sizeof seen;
    ::usleep(300000);  // until the other has decided
    ::_exit(wrote ? 0 : 1);
  }
  std::uint64_t seen[2] = {};
  for (std::uint64_t& s : seen) REQUIRE(::read(pipe[0], &s, sizeof s) == sizeof s);
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  CHECK(std::min(seen[0], seen[1]) == 0);
  CHECK(std::max(seen[0], seen[1]) > much / 2);  // less what the other one uses already
  CHECK(MemoryReservation::others(place) == 0);  // they are gone without a goodbye
}

TEST_CASE("what is free is bounded by every limit and by the others", "[memory]") {
  waste::io::MemoryLimit l;
  l.physical_bytes = 1000;
  CHECK(l.free_bytes() == 1000);
  CHECK(l.free_bytes(300) == 700);
  l.available_bytes = 600;
  CHECK(l.free_bytes() == 600);
  CHECK(l.free_bytes(100) == 500);
  CHECK(l.free_bytes(601) == 0);
  l.cgroup_bytes = 400;
  CHECK(l.free_bytes() == 400);
  CHECK(l.free_bytes(100) == 400);
  CHECK(l.free_bytes(300) == 300);
}
