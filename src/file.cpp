#include "waste/io/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

namespace waste::io {
namespace {

Errc errc_of(int error) noexcept {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Errc::not_found;
    case EEXIST:
      return Errc::exists;
    case ENOSPC:
    case EDQUOT:
      return Errc::no_space;
    default:
      return Errc::io;
  }
}

[[noreturn]] void fail(const char* operation, const std::filesystem::path& path, int error) {
  throw Error(fault(errc_of(error), operation), path.string(), std::strerror(error));
}

int open_fd(const std::filesystem::path& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) fail("open", path, errno);
  return fd;
}

struct stat status_of(int fd, const std::filesystem::path& path) {
  struct stat st;
  if (::fstat(fd, &st) != 0) fail("fstat", path, errno);
  return st;
}

FileIdentity identity_of(const struct stat& st) noexcept {
  return {static_cast<std::uint64_t>(st.st_dev), static_cast<std::uint64_t>(st.st_ino),
          static_cast<std::uint64_t>(st.st_size),
          static_cast<std::int64_t>(st.st_mtim.tv_sec) * 1000000000 + st.st_mtim.tv_nsec};
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  const auto dir = path.parent_path();
  return dir.empty() ? std::filesystem::path(".") : dir;
}

}  // namespace

File::File(File&& other) noexcept { *this = std::move(other); }

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(direct_, other.direct_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File File::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end before it is refused.
  File file(open_fd(path, O_RDONLY | O_NONBLOCK), path);
  if (!S_ISREG(status_of(file.fd_, path).st_mode)) {
    throw Error(fault(Errc::bad_field, "file type"), path.string(), "wanted a regular file");
  }
  return file;
}

File File::create(const std::filesystem::path& path) {
  return File(open_fd(path, O_RDWR | O_CREAT | O_TRUNC), path);
}

File File::open_or_create(const std::filesystem::path& path) {
  return File(open_fd(path, O_RDWR | O_CREAT), path);
}

std::uint64_t File::size() const {
  return static_cast<std::uint64_t>(status_of(fd_, path_).st_size);
}

FileIdentity File::identity() const { return identity_of(status_of(fd_, path_)); }

Fault File::check_unchanged(const FileIdentity& before) const noexcept {
  struct stat st;
  if (::fstat(fd_, &st) != 0) return fault(Errc::io, "fstat");
  const FileIdentity now = identity_of(st);
  if (now == before) return {};
  return now.size != before.size ? fault(Errc::changed, "file size", now.size, before.size)
                                 : fault(Errc::changed, "modification time");
}

Fault File::try_pread(std::span<std::uint8_t> out, std::uint64_t offset) const noexcept {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0) {
      return fault(Errc::truncated, "read", offset + done, offset + out.size());
    } else if (errno != EINTR) {
      return fault(Errc::io, "read");
    }
  }
  return {};
}

void File::pread(std::span<std::uint8_t> out, std::uint64_t offset) const {
  if (const Fault f = try_pread(out, offset)) {
    throw Error(f, path_.string(),
                f.code == Errc::io
                    ? std::strerror(errno)
                    : std::to_string(out.size()) + " bytes at offset " + std::to_string(offset));
  }
}

void File::pwrite(std::span<const std::uint8_t> bytes, std::uint64_t offset) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n < 0 && errno != EINTR) {
      fail("write", path_, errno);
    } else if (n == 0) {
      fail("write", path_, ENOSPC);
    }
  }
}

void File::truncate(std::uint64_t size) const {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) fail("truncate", path_, errno);
}

void File::sync() const {
  if (::fsync(fd_) != 0) fail("fsync", path_, errno);
}

bool File::try_enable_direct() noexcept {
  if (direct_) return true;
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0 || ::fcntl(fd_, F_SETFL, flags | O_DIRECT) != 0) return false;
  const std::unique_ptr<void, void (*)(void*)> page(
      ::operator new(4096, std::align_val_t(4096), std::nothrow),
      [](void* p) { ::operator delete(p, std::align_val_t(4096)); });
  // Some file systems accept the flag and refuse the read, so only a read is proof.
  if (page && ::pread(fd_, page.get(), 4096, 0) > 0) {
    direct_ = true;
    return true;
  }
  ::fcntl(fd_, F_SETFL, flags);
  return false;
}

void File::drop_cache(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const File file = File::open(path);
  const std::uint64_t size = file.size();
  if (size > max_bytes) {
    throw Error(fault(Errc::out_of_range, "file size", size, max_bytes), path.string());
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file.pread({reinterpret_cast<std::uint8_t*>(text.data()), text.size()}, 0);
  return text;
}

void sync_directory(const std::filesystem::path& dir) {
  const int fd = open_fd(dir, O_RDONLY | O_DIRECTORY);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some file systems cannot sync a directory and say EINVAL; the rename itself stays atomic.
  if (result != 0 && error != EINVAL) fail("fsync", dir, error);
}

void publish(const std::filesystem::path& temporary, const std::filesystem::path& final_path) {
  {
    const int fd = open_fd(temporary, O_RDONLY);
    const int result = ::fsync(fd);
    const int error = errno;
    ::close(fd);
    if (result != 0) fail("fsync", temporary, error);
  }
  if (::rename(temporary.c_str(), final_path.c_str()) != 0) fail("rename", final_path, errno);
  sync_directory(directory_of(final_path));
}

void write_atomically(const std::filesystem::path& path,
                      const std::function<void(const File&)>& write) {
  const std::filesystem::path temporary =
      path.string() + ".tmp" + std::to_string(static_cast<long>(::getpid()));
  try {
    write(File::create(temporary));
    publish(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void write_atomically(const std::filesystem::path& path, std::string_view bytes) {
  write_atomically(path, [&](const File& file) {
    file.pwrite({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, 0);
  });
}

std::uint64_t free_bytes(const std::filesystem::path& dir) {
  struct statvfs vfs;
  if (::statvfs(dir.c_str(), &vfs) != 0) fail("statvfs", dir, errno);
  return static_cast<std::uint64_t>(vfs.f_bavail) * vfs.f_frsize;
}

}  // namespace waste::io
