// A container's banks on several drives: each a link in the container's directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace waste::io {

/// Folders that take a container's banks in turn, so that reads of neighbouring layers come from
/// different drives. A bank lives in DRIVE/<name of the container's directory>/ under its own name.
///
/// The link comes first: `experts-L3.bin.part` in the container is a link to the bank's file before
/// that file exists, a BankWriter writes through it, and publishing renames the link. So a link
/// under a bank's final name always leads to a whole bank, and after a kill at any instant the
/// link tells where to go on.
class Drives {
 public:
  /// `drives` may be empty: then nothing is placed. Throws Error: duplicate for a folder named
  /// twice, bad_argument for one that holds the container's directory itself.
  Drives(std::filesystem::path container, const std::vector<std::filesystem::path>& drives);

  bool empty() const noexcept { return folders_.empty(); }
  /// Where the `turn`-th bank goes. Precondition: not empty().
  const std::filesystem::path& folder(std::size_t turn) const noexcept {
    return folders_[turn % folders_.size()];
  }

  /// Has a BankWriter of `bank_file` write on the drive of `turn`; does nothing where the bank, or
  /// a part of it, is there already. Creates the folder. Throws Error: exists where the drive holds
  /// a file of this name that no link of the container leads to; io, no_space.
  void place(const std::string& bank_file, std::size_t turn) const;

  /// A folder that exists, on the file system that the bank is, or will be, written to.
  std::filesystem::path home(const std::string& bank_file, std::size_t turn) const;

  /// Removes banks on these drives that links of the container lead to, and folders that this
  /// empties. What else lies there stays. Call it before the links go.
  void remove_banks() const;

 private:
  std::filesystem::path container_;
  std::vector<std::filesystem::path> folders_;
};

/// Number of the file system that holds `path`, which exists. Throws Error.
std::uint64_t device_of(const std::filesystem::path& path);

/// Gives the file behind the link `from` a second link, `to`, which appears whole or not at all.
/// Throws Error.
void copy_link(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace waste::io
