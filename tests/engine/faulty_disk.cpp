// Both names of pread are replaced; with this macro <unistd.h> would make one of the other.
#undef _FILE_OFFSET_BITS

#include "engine/faulty_disk.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include <memory>
#include <thread>

namespace waste::test {
namespace {

std::atomic<const FaultyDisk::Fault*> current{nullptr};
std::atomic<int> inside{0};

ssize_t real_pread(int fd, void* to, std::size_t bytes, off_t offset) {
  return syscall(SYS_pread64, fd, to, bytes, offset);
}

ssize_t faulty_pread(int fd, void* to, std::size_t bytes, off_t offset) {
  if (bytes < 4096 || offset % 4096 != 0) return real_pread(fd, to, bytes, offset);
  ++inside;
  const FaultyDisk::Fault* fault = current;
  const ssize_t n = fault != nullptr ? (*fault)(DiskRead{fd, to, bytes, offset})
                                     : real_pread(fd, to, bytes, offset);
  --inside;
  return n;
}

}  // namespace

ssize_t DiskRead::pass(std::size_t at_most) const { return real_pread(fd, to, at_most, offset); }

void DiskRead::die() const {
  --inside;
  syscall(SYS_exit, 0);
  __builtin_unreachable();
}

std::atomic<bool> refuse_threads{false};

FaultyDisk::FaultyDisk(Fault fault) { current = new Fault(std::move(fault)); }

FaultyDisk::~FaultyDisk() {
  const Fault* fault = current.exchange(nullptr);
  while (inside != 0) std::this_thread::yield();
  delete fault;
}

}  // namespace waste::test

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  if (waste::test::refuse_threads) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}
extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  return waste::test::faulty_pread(fd, to, bytes, offset);
}
extern "C" ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
  return waste::test::faulty_pread(fd, to, bytes, offset);
}
