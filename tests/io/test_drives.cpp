// Banks on several drives: where they go, what a kill leaves, what is removed, what a container of
// links gives.
#include <algorithm>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/files.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/io/container.hpp"
#include "waste/io/drives.hpp"
#include "waste/io/file.hpp"

using namespace waste;
using namespace waste::test;
using io::Drives;
namespace fs = std::filesystem;

TEST_CASE("banks go to the drives in turn, through a link that is renamed") {
  const fs::path root = scratch_dir("drives");
  const fs::path container = root / "c.waste";
  fs::create_directories(container);
  const Drives drives(container, {root / "a", root / "b"});
  for (const std::size_t turn : {0u, 1u, 2u}) {
    const std::string name = "experts-L" + std::to_string(turn + 1) + ".bin";
    drives.place(name, turn);
    const fs::path target = root / (turn % 2 == 0 ? "a" : "b") / "c.waste" / name;
    REQUIRE(fs::read_symlink(container / (name + ".part")) == fs::weakly_canonical(target));
    REQUIRE(fs::file_size(target) == 0);
    // What a BankWriter does: open, write, publish.
    io::File::open_or_create(container / (name + ".part")).pwrite(std::vector<std::uint8_t>(9), 0);
    CHECK_FALSE(fs::exists(container / name));
    io::publish(container / (name + ".part"), container / name);
    CHECK(fs::is_symlink(container / name));
    CHECK(fs::file_size(container / name) == 9);
    CHECK_FALSE(fs::exists(fs::symlink_status(container / (name + ".part"))));
    drives.place(name, turn + 1);  // there already
    CHECK_FALSE(fs::exists(root / (turn % 2 == 0 ? "b" : "a") / "c.waste" / name));
  }
}

TEST_CASE("a bank that was begun goes on where it is") {
  const fs::path root = scratch_dir("drives-begun");
  const fs::path container = root / "c.waste";
  fs::create_directories(container);
  const Drives drives(container, {root / "a", root / "b"});
  // Killed between the link and its file.
  fs::create_directories(root / "b" / "c.waste");
  fs::create_symlink(root / "b" / "c.waste" / "experts-L1.bin", container / "experts-L1.bin.part");
  drives.place("experts-L1.bin", 0);
  CHECK(fs::exists(root / "b" / "c.waste" / "experts-L1.bin"));
  CHECK_FALSE(fs::exists(root / "a" / "c.waste" / "experts-L1.bin"));
  // Begun without drives.
  write_file(container / "experts-L2.bin.part", "xyz");
  drives.place("experts-L2.bin", 1);
  CHECK(fs::is_regular_file(fs::symlink_status(container / "experts-L2.bin.part")));
  CHECK(fs::file_size(container / "experts-L2.bin.part") == 3);
}

TEST_CASE("a file on a drive that no link leads to is not taken over") {
  const fs::path root = scratch_dir("drives-foreign");
  const fs::path container = root / "c.waste", folder = root / "a" / "c.waste";
  fs::create_directories(container);
  fs::create_directories(folder);
  write_file(folder / "experts-L1.bin", "another container's");
  const Drives drives(container, {root / "a"});
  const Error e = failure_of([&] { drives.place("experts-L1.bin", 0); });
  CHECK(e.code() == Errc::exists);
  CHECK(std::string(e.what()).find("experts-L1.bin") != std::string::npos);
  CHECK(fs::is_empty(container));

  // Only what a link leads to is removed, and the folder only once it is empty.
  write_file(folder / "experts-L2.bin", "ours");
  write_file(folder / "experts-L3.bin", "a part of ours");
  fs::create_symlink(folder / "experts-L2.bin", container / "experts-L2.bin");
  fs::create_symlink(folder / "experts-L3.bin", container / "experts-L3.bin.part");
  write_file(root / "elsewhere", "kept");
  fs::create_symlink(root / "elsewhere", container / "experts-L4.bin");
  drives.remove_banks();
  CHECK(fs::exists(folder / "experts-L1.bin"));
  CHECK_FALSE(fs::exists(folder / "experts-L2.bin"));
  CHECK_FALSE(fs::exists(folder / "experts-L3.bin"));
  CHECK(fs::exists(root / "elsewhere"));
  fs::remove(folder / "experts-L1.bin");
  drives.remove_banks();
  CHECK_FALSE(fs::exists(folder));
}

TEST_CASE("drives that cannot be are refused") {
  const fs::path root = scratch_dir("drives-refused");
  const auto code = [&](const std::vector<fs::path>& drives) {
    return code_of([&] { Drives(root / "c.waste", drives); });
  };
  CHECK(code({}) == Errc::ok);
  CHECK(code({root / "a", root / "b"}) == Errc::ok);
  CHECK(code({root / "a", root / "b", root / "." / "a"}) == Errc::duplicate);
  CHECK(code({root}) == Errc::bad_argument);
  // Named with a slash at its end, or relative to here, it is the same folder.
  CHECK(code_of([&] { Drives(root / "c.waste/", {root}); }) == Errc::bad_argument);
  write_file(root / "file", "x");
  const Drives under(root / "c.waste", {root / "file"});
  CHECK(code_of([&] { under.place("experts-L1.bin", 0); }) == Errc::not_found);
}

TEST_CASE("a container of links opens, reads and is refused like any other") {
  const fs::path root = scratch_dir("drives-container");
  const TinyContainer tiny = make_tiny(TinySpec::vq3r());
  tiny.write(root / "plain");
  tiny.write(root / "c");
  std::vector<std::string> banks;
  for (const auto& e : fs::directory_iterator(root / "c")) {
    const std::string name = e.path().filename().string();
    if (name.starts_with("experts-L")) banks.push_back(name);
  }
  std::sort(banks.begin(), banks.end());
  REQUIRE(banks.size() >= 2);
  for (std::size_t i = 0; i < banks.size(); ++i) {
    const fs::path drive = root / ("drive" + std::to_string(i % 2));
    fs::create_directories(drive);
    fs::rename(root / "c" / banks[i], drive / banks[i]);
    fs::create_symlink(drive / banks[i], root / "c" / banks[i]);
  }
  const Container plain = Container::open(root / "plain"), links = Container::open(root / "c");
  for (std::size_t b = 0; b < banks.size(); ++b) {
    for (std::uint32_t e = 0; e < plain.banks()[b].experts(); ++e) {
      const Expert want = plain.banks()[b].read(ExpertId{e});
      const Expert got = links.banks()[b].read(ExpertId{e});
      REQUIRE(std::ranges::equal(want.record(), got.record()));
    }
  }
  // A link may lead anywhere, but only to a bank of the right size with this layer's records.
  fs::remove(root / "c" / banks[0]);
  CHECK(code_of([&] { Container::open(root / "c"); }) == Errc::not_found);
  fs::create_symlink(root / "c", root / "c" / banks[0]);
  CHECK(code_of([&] { Container::open(root / "c"); }) == Errc::bad_field);
  fs::remove(root / "c" / banks[0]);
  fs::create_symlink(root / "c" / "manifest.json", root / "c" / banks[0]);
  CHECK(code_of([&] { Container::open(root / "c"); }) == Errc::truncated);
  fs::remove(root / "c" / banks[0]);
  fs::create_symlink(root / "drive1" / banks[1], root / "c" / banks[0]);
  const Container crossed = Container::open(root / "c");
  CHECK(code_of([&] { crossed.banks()[0].read(ExpertId{0}); }) != Errc::ok);
}

TEST_CASE("copying a link gives a second one to the same file") {
  const fs::path root = scratch_dir("drives-copy");
  write_file(root / "bank", "bytes");
  fs::create_directories(root / "a");
  fs::create_directories(root / "b");
  fs::create_symlink("../bank", root / "a" / "l");
  io::copy_link(root / "a" / "l", root / "b" / "l");
  CHECK(fs::is_symlink(root / "b" / "l"));
  CHECK(fs::equivalent(root / "b" / "l", root / "bank"));
  fs::create_symlink("nowhere", root / "a" / "broken");
  CHECK(code_of([&] { io::copy_link(root / "a" / "broken", root / "b" / "broken"); }) ==
        Errc::not_found);
  CHECK_FALSE(fs::exists(fs::symlink_status(root / "b" / "broken")));
}
