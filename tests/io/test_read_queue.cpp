// Rings of reads: whole or a fault, several at once, woken when asked.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/core/aligned_buffer.hpp"
#include "waste/io/read_queue.hpp"

using waste::AlignedBuffer;
using waste::Errc;
using waste::Error;
using waste::io::File;
using waste::io::ReadQueue;
using waste::test::code_of;

namespace {

constexpr std::size_t page = 4096, pages = 64;

/// Byte i of the file of pages.
std::uint8_t byte_at(std::uint64_t i) { return static_cast<std::uint8_t>(i * 2654435761u >> 13); }

File file_of_pages(const std::string& name) {
  const auto path = waste::test::scratch_dir(name) / "pages";
  std::vector<std::uint8_t> bytes(pages * page);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(i);
  File::create(path).pwrite(bytes, 0);
  return File::open(path);
}

bool right(std::span<const std::uint8_t> got, std::uint64_t offset) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != byte_at(offset + i)) return false;
  }
  return true;
}

/// Whether there are rings here; says so where not.
bool have_rings() {
  try {
    ReadQueue probe(1);
    return true;
  } catch (const Error& e) {
    REQUIRE(e.code() == Errc::unsupported);
    waste::test::skipped(e.what());
    return false;
  }
}

}  // namespace

TEST_CASE("many reads in flight arrive whole, each under its tag") {
  if (!have_rings()) return;
  File file = file_of_pages("queue-many");
  for (const bool direct : {false, true}) {
    if (direct && !file.try_enable_direct()) continue;
    AlignedBuffer<std::uint8_t> memory(pages * page, page);
    ReadQueue queue(16);
    REQUIRE(queue.depth() == 16);
    std::size_t started = 0, ended = 0;
    std::vector<std::size_t> at(16);  // page of each tag
    std::set<std::size_t> free;
    for (std::size_t t = 0; t < 16; ++t) free.insert(t);
    while (ended < pages) {
      while (started < pages && !free.empty()) {
        const std::size_t tag = *free.begin();
        free.erase(free.begin());
        at[tag] = (started * 37) % pages;
        queue.start(tag, file, memory.span().subspan(at[tag] * page, page), at[tag] * page);
        ++started;
      }
      REQUIRE(queue.in_flight() == started - ended);
      const auto done = queue.wait();
      REQUIRE(done);
      REQUIRE_FALSE(done->fault);
      REQUIRE(free.insert(done->tag).second);
      REQUIRE(right(memory.span().subspan(at[done->tag] * page, page), at[done->tag] * page));
      ++ended;
    }
    REQUIRE(queue.in_flight() == 0);
    REQUIRE_FALSE(queue.poll());
  }
}

TEST_CASE("a read past the end is truncated, as pread says it; one of nothing is done") {
  if (!have_rings()) return;
  const File file = file_of_pages("queue-end");
  std::vector<std::uint8_t> memory(3 * page), other(3 * page);
  ReadQueue queue(2);
  for (const std::uint64_t offset : {(pages - 2) * page, pages * page, 2 * pages * page}) {
    queue.start(1, file, memory, offset);
    const auto done = queue.wait();
    REQUIRE(done);
    REQUIRE(done->tag == 1);
    const waste::Fault want = file.try_pread(other, offset);
    REQUIRE(want.code == Errc::truncated);
    REQUIRE(done->fault.code == want.code);
    REQUIRE(done->fault.got == want.got);
    REQUIRE(done->fault.want == want.want);
  }
  queue.start(0, file, {}, 5);
  const auto done = queue.wait();
  REQUIRE(done);
  REQUIRE_FALSE(done->fault);
}

TEST_CASE("a descriptor that cannot be read is an error") {
  if (!have_rings()) return;
  std::vector<std::uint8_t> memory(page);
  ReadQueue queue(1);
  const File closed;
  queue.start(0, closed, memory, 0);
  const auto done = queue.wait();
  REQUIRE(done);
  REQUIRE(done->fault.code == Errc::io);
}

TEST_CASE("wake ends a wait, one made before it and one made from another thread") {
  if (!have_rings()) return;
  ReadQueue queue(1);
  queue.wake();
  queue.wake();
  REQUIRE_FALSE(queue.wait());
  for (int i = 0; i < 20; ++i) {
    std::thread other([&] {
      if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      queue.wake();
    });
    REQUIRE_FALSE(queue.wait());
    other.join();
  }
}

TEST_CASE("a queue that goes waits for its reads") {
  if (!have_rings()) return;
  const File file = file_of_pages("queue-ends");
  std::vector<std::uint8_t> memory(pages * page);
  {
    ReadQueue queue(1);
    queue.start(0, file, memory, 0);
  }
  REQUIRE(right(memory, 0));
}

TEST_CASE("depths that no ring has are refused") {
  REQUIRE(code_of([] { ReadQueue(0); }) == Errc::bad_argument);
  REQUIRE(code_of([] { ReadQueue(ReadQueue::most_depth + 1); }) == Errc::bad_argument);
}
