// Both names of pread are replaced, and where there is liburing what hands reads to the kernel and
// fetches their results; with this macro <unistd.h> would make one of the other.
#undef _FILE_OFFSET_BITS

#include "engine/faulty_disk.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if __has_include(<liburing.h>)
#include <liburing.h>
#include <sys/eventfd.h>
#define WASTE_TEST_RINGS
#endif

namespace waste::test {
namespace {

std::atomic<const FaultyDisk::Fault*> current{nullptr};
std::atomic<int> inside{0};

ssize_t real_pread(int fd, void* to, std::size_t bytes, off_t offset) {
  return syscall(SYS_pread64, fd, to, bytes, offset);
}

bool is_record(std::size_t bytes, off_t offset) { return bytes >= 4096 && offset % 4096 == 0; }

constexpr int reader_dies = 1 << 30;  ///< no result of a read

ssize_t faulty_pread(int fd, void* to, std::size_t bytes, off_t offset) {
  if (!is_record(bytes, offset)) return real_pread(fd, to, bytes, offset);
  ++inside;
  const FaultyDisk::Fault* fault = current;
  const ssize_t n = fault != nullptr ? (*fault)(DiskRead{fd, to, bytes, offset, {}})
                                     : real_pread(fd, to, bytes, offset);
  --inside;
  return n;
}

}  // namespace

ssize_t DiskRead::pass(std::size_t at_most) const { return real_pread(fd, to, at_most, offset); }

void DiskRead::die() const {
  if (ring_end) ring_end(reader_dies);
  --inside;
  syscall(SYS_exit, 0);
  __builtin_unreachable();
}

std::atomic<bool> refuse_threads{false};
std::atomic<bool> refuse_rings{false};

FaultyDisk::FaultyDisk(Fault fault) { current = new Fault(std::move(fault)); }

FaultyDisk::~FaultyDisk() {
  const Fault* fault = current.exchange(nullptr);
  while (inside != 0) std::this_thread::yield();
  delete fault;
}

}  // namespace waste::test

#ifdef WASTE_TEST_RINGS

namespace waste::test {
namespace {

template <class Function>
Function* next_of(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// What reads in rings came to, by the event that ends each.
std::mutex ring_mutex;
struct RingRead {
  ::io_uring* ring;
  std::uint64_t data;
  int result;
  int event;
  std::thread::id reader;  ///< who dies of it; not who clears up after that
};
std::vector<RingRead> ring_reads;

/// Turns a read that was prepared into one of an event, which a thread of its own ends once the
/// fault has had it.
void divert(::io_uring* ring, ::io_uring_sqe* sqe) {
  const FaultyDisk::Fault* fault = current;
  if (fault == nullptr) return;
  ++inside;
  static std::uint64_t count;
  const int event = ::eventfd(0, EFD_CLOEXEC);
  const std::uint64_t data = sqe->user_data;
  DiskRead read{
      sqe->fd, reinterpret_cast<void*>(sqe->addr), sqe->len, static_cast<off_t>(sqe->off), {}};
  read.ring_end = [=, reader = std::this_thread::get_id()](int result) {
    const std::lock_guard lock(ring_mutex);
    ring_reads.push_back({ring, data, result, event, reader});
    const std::uint64_t one = 1;
    if (::write(event, &one, sizeof one) != sizeof one) std::terminate();
  };
  std::thread([fault, read] {
    const ssize_t n = (*fault)(read);
    read.ring_end(n < 0 ? -errno : static_cast<int>(n));
    --inside;
  }).detach();
  ::io_uring_prep_read(sqe, event, &count, sizeof count, 0);
  sqe->user_data = data;
}

}  // namespace
}  // namespace waste::test

extern "C" int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  static const auto real = waste::test::next_of(&io_uring_queue_init, "io_uring_queue_init");
  return waste::test::refuse_rings ? -EPERM : real(entries, ring, flags);
}

extern "C" int io_uring_submit(io_uring* ring) {
  static const auto real = waste::test::next_of(&io_uring_submit, "io_uring_submit");
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
    io_uring_sqe* sqe = &ring->sq.sqes[i & *ring->sq.kring_mask];
    if (sqe->opcode == IORING_OP_READ &&
        waste::test::is_record(sqe->len, static_cast<off_t>(sqe->off))) {
      waste::test::divert(ring, sqe);
    }
  }
  return real(ring);
}

extern "C" int io_uring_wait_cqes(io_uring* ring, io_uring_cqe** cqe, unsigned count,
                                  __kernel_timespec* time, sigset_t* signals) {
  static const auto real = waste::test::next_of(&io_uring_wait_cqes, "io_uring_wait_cqes");
  const int error = real(ring, cqe, count, time, signals);
  if (error != 0 || *cqe == nullptr) return error;
  std::unique_lock lock(waste::test::ring_mutex);
  auto& reads = waste::test::ring_reads;
  for (auto it = reads.begin(); it != reads.end(); ++it) {
    if (it->ring != ring || it->data != (*cqe)->user_data) continue;
    const int result = it->result;
    const bool mine = it->reader == std::this_thread::get_id();
    ::close(it->event);
    reads.erase(it);
    (*cqe)->res = result == waste::test::reader_dies ? -ECANCELED : result;
    lock.unlock();
    if (result == waste::test::reader_dies && mine) syscall(SYS_exit, 0);
    break;
  }
  return 0;
}

#endif

#ifdef WASTE_TESTS_ARE_STATIC
// glibc's own name for what a static program has no next of.
extern "C" int __pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
#endif

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  if (waste::test::refuse_threads) return EAGAIN;
#ifdef WASTE_TESTS_ARE_STATIC
  return __pthread_create(thread, attributes, start, argument);
#else
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
#endif
}
extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  return waste::test::faulty_pread(fd, to, bytes, offset);
}
extern "C" ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
  return waste::test::faulty_pread(fd, to, bytes, offset);
}
