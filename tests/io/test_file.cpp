// Files: exact reads, refusals, atomic publication.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"
#include "waste/core/aligned_buffer.hpp"
#include "waste/io/file.hpp"

namespace {

namespace fs = std::filesystem;
using namespace waste;
using io::File;
using test::write_file;

std::string text_of(const fs::path& path) { return io::read_text(path, 1 << 20); }
std::span<const std::uint8_t> bytes_of(const std::string& s) {
  return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()};
}

template <class F>
Errc code(F f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK_FALSE(e.file().empty());
    return e.code();
  }
  return Errc::ok;
}

TEST_CASE("reads are exact or a fault", "[file]") {
  const auto dir = test::scratch_dir("file");
  write_file(dir / "f", "0123456789");
  const File f = File::open(dir / "f");
  CHECK(f.is_open());
  CHECK(f.size() == 10);
  CHECK(f.path() == dir / "f");
  std::vector<std::uint8_t> out(4);
  CHECK(f.try_pread(out, 3).ok());
  CHECK(std::memcmp(out.data(), "3456", 4) == 0);
  CHECK(f.try_pread(out, 6).ok());
  const Fault end = f.try_pread(out, 7);
  CHECK(end.code == Errc::truncated);
  CHECK(end.got == 10);
  CHECK(end.want == 11);
  CHECK(f.try_pread(out, 1000).code == Errc::truncated);
  CHECK(f.try_pread(out, std::uint64_t{1} << 63).code == Errc::io);
  CHECK(f.try_pread({}, 1000).ok());
  CHECK(code([&] { f.pread(out, 8); }) == Errc::truncated);
}

TEST_CASE("only regular files are opened, and a pipe is not waited for", "[file]") {
  const auto dir = test::scratch_dir("kinds");
  CHECK(code([&] { File::open(dir / "nothing"); }) == Errc::not_found);
  CHECK(code([&] { File::open(dir); }) == Errc::bad_field);
  CHECK(code([&] { File::open("/dev/null"); }) == Errc::bad_field);
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(code([&] { File::open(dir / "pipe"); }) == Errc::bad_field);
  write_file(dir / "f", "x");
  CHECK(code([&] { File::open(dir / "f" / "g"); }) == Errc::not_found);
  CHECK(code([&] { File::create(dir / "no" / "such"); }) == Errc::not_found);
  fs::create_symlink("loop", dir / "loop");
  CHECK(code([&] { File::open(dir / "loop"); }) == Errc::io);
  if (::geteuid() != 0) {
    fs::permissions(dir / "f", fs::perms::none);
    CHECK(code([&] { File::open(dir / "f"); }) == Errc::io);
  }
}

TEST_CASE("files move and close", "[file]") {
  const auto dir = test::scratch_dir("move");
  write_file(dir / "f", "abc");
  File a = File::open(dir / "f");
  File b = std::move(a);
  CHECK_FALSE(a.is_open());
  CHECK(b.size() == 3);
  a = std::move(b);
  CHECK(a.size() == 3);
  const int fd = a.native_handle();
  { const File closes = std::move(a); }
  struct stat st;
  CHECK(::fstat(fd, &st) != 0);
}

TEST_CASE("writing, growing and cutting", "[file]") {
  const auto dir = test::scratch_dir("write");
  {
    const File f = File::create(dir / "f");
    f.pwrite(bytes_of("world"), 6);
    f.pwrite(bytes_of("hello "), 0);
    f.sync();
    CHECK(f.size() == 11);
    f.truncate(5);
  }
  CHECK(text_of(dir / "f") == "hello");
  CHECK(File::open_or_create(dir / "f").size() == 5);
  CHECK(File::open_or_create(dir / "g").size() == 0);
  CHECK(File::create(dir / "f").size() == 0);
  const File read_only = File::open(dir / "f");
  CHECK(code([&] { read_only.pwrite(bytes_of("x"), 0); }) == Errc::io);
  CHECK(code([&] { File::create("/dev/full").pwrite(bytes_of("x"), 0); }) == Errc::no_space);
}

TEST_CASE("text is read whole and bounded", "[file]") {
  const auto dir = test::scratch_dir("text");
  write_file(dir / "f", std::string("a\0b", 3));
  CHECK(io::read_text(dir / "f", 3) == std::string("a\0b", 3));
  CHECK(code([&] { io::read_text(dir / "f", 2); }) == Errc::out_of_range);
  write_file(dir / "empty", "");
  CHECK(io::read_text(dir / "empty", 0).empty());
  fs::resize_file(dir / "f", std::uintmax_t{1} << 42);
  CHECK(code([&] { io::read_text(dir / "f", 1 << 20); }) == Errc::out_of_range);
}

TEST_CASE("an atomic write leaves the new file and nothing else", "[file]") {
  const auto dir = test::scratch_dir("atomic");
  write_file(dir / "f", "old");
  io::write_atomically(dir / "f", "new text");
  CHECK(text_of(dir / "f") == "new text");
  io::write_atomically(dir / "g", "");
  CHECK(text_of(dir / "g").empty());
  CHECK(std::distance(fs::directory_iterator(dir), fs::directory_iterator()) == 2);
  CHECK(code([&] { io::write_atomically(dir / "no" / "f", "x"); }) == Errc::not_found);
  // The target cannot be replaced: the old thing stays and no temporary file does.
  fs::create_directories(dir / "d" / "full");
  CHECK(code([&] { io::write_atomically(dir / "d", "x"); }) != Errc::ok);
  CHECK(fs::is_directory(dir / "d"));
  CHECK(std::distance(fs::directory_iterator(dir), fs::directory_iterator()) == 3);
}

TEST_CASE("publishing renames a finished file", "[file]") {
  const auto dir = test::scratch_dir("publish");
  write_file(dir / "f.part", "whole");
  write_file(dir / "f", "old");
  io::publish(dir / "f.part", dir / "f");
  CHECK(text_of(dir / "f") == "whole");
  CHECK_FALSE(fs::exists(dir / "f.part"));
  CHECK(code([&] { io::publish(dir / "f.part", dir / "f"); }) == Errc::not_found);
  CHECK(text_of(dir / "f") == "whole");
}

TEST_CASE("identity tells a rewritten file", "[file]") {
  const auto dir = test::scratch_dir("identity");
  write_file(dir / "f", "abc");
  fs::last_write_time(dir / "f", fs::file_time_type::clock::now() - std::chrono::hours(1));
  const File f = File::open(dir / "f");
  const io::FileIdentity before = f.identity();
  CHECK(f.check_unchanged(before).ok());
  CHECK(before.size == 3);
  write_file(dir / "f", "abcd");
  const Fault grown = f.check_unchanged(before);
  CHECK(grown.code == Errc::changed);
  CHECK(grown.got == 4);
  CHECK(grown.want == 3);
  write_file(dir / "f", "xyz");
  CHECK(std::string(f.check_unchanged(before).field) == "modification time");
  const io::FileIdentity now = f.identity();
  CHECK_FALSE(now == before);
  fs::remove(dir / "f");
  CHECK(f.check_unchanged(now).ok());  // still open, still the same bytes
}

TEST_CASE("direct reads, where they are to be had, give the same bytes", "[file]") {
  const auto dir = test::scratch_dir("direct-file");
  std::string text(3 * 4096, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 % 251);
  write_file(dir / "f", text);
  File f = File::open(dir / "f");
  CHECK_FALSE(f.direct());
  const bool direct = f.try_enable_direct();
  CHECK(f.direct() == direct);
  CHECK(f.try_enable_direct() == direct);
  AlignedBuffer<std::uint8_t> out(4096);
  CHECK(f.try_pread(out.span(), 4096).ok());
  CHECK(std::memcmp(out.data(), text.data() + 4096, 4096) == 0);
  f.drop_cache(0, text.size());
  CHECK(f.try_pread(out.span(), 8192).ok());
  // An empty file proves nothing, so it stays with the page cache.
  write_file(dir / "empty", "");
  CHECK_FALSE(File::open(dir / "empty").try_enable_direct());
}

TEST_CASE("free space is told", "[file]") {
  CHECK(io::free_bytes(test::scratch_dir("space")) > 0);
  CHECK(code([] { io::free_bytes("/nowhere"); }) == Errc::not_found);
}

}  // namespace
