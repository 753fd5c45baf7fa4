// Files: exact positional reads, direct I/O where it works, and atomic publication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "waste/core/error.hpp"

namespace waste::io {

/// What tells one file from another that took its path or was rewritten in place.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

/// An open regular file. Move-only; safe for concurrent pread from several threads.
class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  /// Opens an existing regular file for reading; throws Error (not_found, io, bad_field for a
  /// directory, device, socket or pipe).
  static File open(const std::filesystem::path& path);
  /// Creates (or truncates) a file for writing and reading; throws Error.
  static File create(const std::filesystem::path& path);
  /// Opens an existing file, or creates one, for writing and reading without truncation.
  static File open_or_create(const std::filesystem::path& path);

  bool is_open() const noexcept { return fd_ >= 0; }
  const std::filesystem::path& path() const noexcept { return path_; }
  int native_handle() const noexcept { return fd_; }

  /// Size now, from the descriptor; throws Error.
  std::uint64_t size() const;
  FileIdentity identity() const;
  /// Errc::changed where the open file is no longer the one `before` describes: another size or
  /// modification time (io where it cannot be told).
  Fault check_unchanged(const FileIdentity& before) const noexcept;

  /// Reads exactly out.size() bytes at `offset`. Interrupted and short reads are continued; an end
  /// of file before the last byte is Errc::truncated, an OS failure Errc::io. Never partial:
  /// on a fault the contents of `out` are unspecified and must not be used.
  Fault try_pread(std::span<std::uint8_t> out, std::uint64_t offset) const noexcept;
  /// As try_pread, but throws Error naming the file and the range.
  void pread(std::span<std::uint8_t> out, std::uint64_t offset) const;

  /// Writes all bytes at `offset`; throws Error (no_space, io).
  void pwrite(std::span<const std::uint8_t> bytes, std::uint64_t offset) const;
  void truncate(std::uint64_t size) const;
  /// Flushes data and metadata to the device; throws Error.
  void sync() const;

  /// Tries to bypass the page cache: sets O_DIRECT and proves it with a real read of one page into
  /// aligned memory. Returns whether it is now on; when false, reads go through the page cache.
  /// With direct reads, offset, length and memory must be multiples of 4096.
  bool try_enable_direct() noexcept;
  bool direct() const noexcept { return direct_; }
  /// Tells the kernel that these bytes will not be used again soon. Advisory.
  void drop_cache(std::uint64_t offset, std::uint64_t bytes) const noexcept;

 private:
  File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  bool direct_ = false;
  std::filesystem::path path_;
};

/// The whole file as text; refuses one larger than `max_bytes` (out_of_range). Throws Error.
std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Replaces `path` by `bytes` so that a reader, or a crash at any instant, sees the old file or the
/// new one: temporary file beside it, fsync, rename, fsync of the directory. Throws Error.
void write_atomically(const std::filesystem::path& path, std::string_view bytes);
/// The same for bytes that `write` puts into the temporary file.
void write_atomically(const std::filesystem::path& path,
                      const std::function<void(const File&)>& write);

/// fsync of a directory, so that a rename in it is durable.
void sync_directory(const std::filesystem::path& dir);

/// Renames a finished temporary file into place (fsync of file and directory included).
void publish(const std::filesystem::path& temporary, const std::filesystem::path& final_path);

/// Bytes that an unprivileged process may still write on the file system holding `dir`.
std::uint64_t free_bytes(const std::filesystem::path& dir);

}  // namespace waste::io
