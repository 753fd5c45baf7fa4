#include "waste/io/drives.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "waste/core/error.hpp"
#include "waste/io/file.hpp"

namespace waste::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* part_suffix = ".part";

[[noreturn]] void fail(const char* operation, const fs::path& path, const std::error_code& ec) {
  Errc code = Errc::io;
  if (ec == std::errc::no_space_on_device) code = Errc::no_space;
  if (ec == std::errc::no_such_file_or_directory || ec == std::errc::not_a_directory) {
    code = Errc::not_found;
  }
  throw Error(fault(code, operation), path.string(), ec.message());
}

/// Whether anything, a link that leads nowhere included, has this name.
bool taken(const fs::path& path) {
  std::error_code ec;
  return fs::exists(fs::symlink_status(path, ec));
}

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

Drives::Drives(fs::path container, const std::vector<fs::path>& drives)
    : container_(fs::absolute(container).lexically_normal()) {
  if (container_.filename().empty()) container_ = container_.parent_path();
  for (const fs::path& drive : drives) {
    std::error_code ec;
    fs::path folder = fs::weakly_canonical(fs::absolute(drive), ec);
    if (ec) fail("drive", drive, ec);
    folder /= container_.filename();
    if (folder == fs::weakly_canonical(container_, ec)) {
      throw Error(fault(Errc::bad_argument, "drive"), drive.string(),
                  "the container itself would lie there");
    }
    if (std::find(folders_.begin(), folders_.end(), folder) != folders_.end()) {
      throw Error(fault(Errc::duplicate, "drive"), drive.string());
    }
    folders_.push_back(std::move(folder));
  }
}

void Drives::place(const std::string& bank_file, std::size_t turn) const {
  if (empty() || taken(container_ / bank_file)) return;
  const fs::path part = container_ / (bank_file + part_suffix);
  if (!taken(part)) {
    const fs::path target = folder(turn) / bank_file;
    std::error_code ec;
    fs::create_directories(target.parent_path(), ec);
    if (ec) fail("create directory", target.parent_path(), ec);
    if (taken(target)) {
      throw Error(fault(Errc::exists, "bank"), target.string(),
                  "no link of " + container_.string() + " leads to it");
    }
    fs::create_symlink(target, part, ec);
    if (ec) fail("link", part, ec);
    sync_directory(container_);
  }
  std::error_code ec;
  if (!fs::is_symlink(part, ec)) return;  // begun without drives: goes on where it is
  File::open_or_create(part);
  sync_directory(parent_of(fs::canonical(part)));
}

fs::path Drives::home(const std::string& bank_file, std::size_t turn) const {
  const fs::path part = container_ / (bank_file + part_suffix);
  std::error_code ec;
  fs::path out = container_;
  if (fs::is_symlink(part, ec)) {
    out = fs::read_symlink(part, ec).parent_path();
  } else if (!empty() && !taken(part)) {
    out = folder(turn);
  }
  while (!fs::exists(out, ec) && out.has_relative_path()) out = out.parent_path();
  return out;
}

void Drives::remove_banks() const {
  std::vector<fs::path> banks;
  std::error_code ec;
  for (const fs::path& folder : folders_) {
    for (const fs::directory_entry& e : fs::directory_iterator(folder, ec)) {
      const std::string name = e.path().filename().string();
      for (const char* suffix : {"", part_suffix}) {
        const fs::path link = container_ / (name + suffix);
        if (fs::is_symlink(link, ec) && fs::equivalent(link, e.path(), ec)) {
          banks.push_back(e.path());
        }
      }
    }
  }
  for (const fs::path& bank : banks) {
    fs::remove(bank, ec);
    if (ec) fail("remove", bank, ec);
  }
  for (const fs::path& folder : folders_) fs::remove(folder, ec);  // where it is empty
}

std::uint64_t device_of(const fs::path& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) {
    fail("stat", path, std::error_code(errno, std::generic_category()));
  }
  return static_cast<std::uint64_t>(st.st_dev);
}

void copy_link(const fs::path& from, const fs::path& to) {
  std::error_code ec;
  const fs::path target = fs::canonical(from, ec);
  if (ec) fail("link", from, ec);
  const fs::path part = to.string() + part_suffix;
  fs::remove(part, ec);
  fs::create_symlink(target, part, ec);
  if (ec) fail("link", part, ec);
  publish(part, to);
}

}  // namespace waste::io
