#include "waste/io/read_queue.hpp"

#include <string>

#ifdef WASTE_LIBURING
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>
#endif

namespace waste::io {
namespace {

void check_depth(unsigned depth) {
  if (depth == 0 || depth > ReadQueue::most_depth) {
    throw Error(fault(Errc::bad_argument, "reads in flight", depth, ReadQueue::most_depth));
  }
}

}  // namespace

#ifdef WASTE_LIBURING

namespace {

/// User data of what is no read of a caller's; theirs have their tags.
constexpr std::uint64_t wake_data = ~std::uint64_t{0};
constexpr std::uint64_t other_data = wake_data - 1;

[[noreturn]] void refuse(const char* what, int error) {
  throw Error(fault(Errc::unsupported, "io_uring"), {},
              std::string(what) + ": " + std::strerror(error));
}

}  // namespace

struct ReadQueue::Ring {
  struct Read {
    const File* file = nullptr;
    std::span<std::uint8_t> out;
    std::uint64_t offset = 0;
    std::size_t done = 0;  ///< bytes
  };
  struct End {
    std::uint64_t data;
    int result;
  };

  ::io_uring uring{};
  int event = -1;  ///< wake() adds to it; a read of it is always under way
  std::uint64_t event_count = 0;
  bool listening = false;   ///< that read is in the ring
  std::vector<Read> reads;  ///< [tag]
  std::vector<Done> ended;  ///< without the ring's help; never grows past reads.size()
  unsigned in_flight = 0;   ///< in the ring

  explicit Ring(unsigned depth) : reads(depth) {
    ended.reserve(depth);
    // One for each read, and for the event's.
    if (const int error = ::io_uring_queue_init(depth + 1, &uring, 0)) {
      refuse("set-up of a ring", -error);
    }
    event = ::eventfd(0, EFD_CLOEXEC);
    if (event < 0) {
      const int error = errno;
      ::io_uring_queue_exit(&uring);
      refuse("eventfd", error);
    }
    // The proof: wake() and the read that it ends.
    wake();
    End end{};
    int error = listen();
    if (error == 0) error = wait_for(1, end);
    listening = false;
    if (error == 0 && end.result < 0) error = end.result;
    if (error == 0 && (end.data != wake_data || end.result != 8)) error = -EIO;
    if (error != 0) {
      close();
      refuse("a read through the ring", -error);
    }
  }

  void close() noexcept {
    ::io_uring_queue_exit(&uring);
    ::close(event);
  }

  void wake() const noexcept {
    const std::uint64_t one = 1;
    // Interrupted before it counted; otherwise it cannot fail short of 2^64 - 1 calls.
    while (::write(event, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  /// 0 when what was prepared is the kernel's; else -errno, and `sqe` does nothing when it gets
  /// there.
  int submit(::io_uring_sqe* sqe) noexcept {
    for (;;) {
      const int n = ::io_uring_submit(&uring);
      if (n > 0) return 0;
      if (n == -EINTR) continue;
      ::io_uring_prep_nop(sqe);
      ::io_uring_sqe_set_data64(sqe, other_data);
      return n < 0 ? n : -EBUSY;
    }
  }

  int listen() noexcept {
    ::io_uring_sqe* sqe = ::io_uring_get_sqe(&uring);
    if (sqe == nullptr) return -EBUSY;
    ::io_uring_prep_read(sqe, event, &event_count, sizeof event_count, 0);
    ::io_uring_sqe_set_data64(sqe, wake_data);
    const int error = submit(sqe);
    listening = error == 0;
    return error;
  }

  /// The next entry of the completion queue: 0 and `end`, -EAGAIN where `count` is 0 and none is
  /// there, else -errno.
  int wait_for(unsigned count, End& end) noexcept {
    ::io_uring_cqe* cqe = nullptr;
    int error = 0;
    do {
      error = ::io_uring_wait_cqes(&uring, &cqe, count, nullptr, nullptr);
    } while (error == -EINTR);
    if (error != 0) return error;
    if (cqe == nullptr) return -EAGAIN;
    end = {::io_uring_cqe_get_data64(cqe), cqe->res};
    ::io_uring_cqe_seen(&uring, cqe);
    return 0;
  }

  /// Puts what is left of a read into the ring.
  void go_on(std::size_t tag) noexcept {
    const Read& r = reads[tag];
    ::io_uring_sqe* sqe = ::io_uring_get_sqe(&uring);
    if (sqe != nullptr) {
      const std::size_t left = std::min<std::size_t>(r.out.size() - r.done, 1u << 30);
      ::io_uring_prep_read(sqe, r.file->native_handle(), r.out.data() + r.done,
                           static_cast<unsigned>(left), r.offset + r.done);
      ::io_uring_sqe_set_data64(sqe, tag);
      if (submit(sqe) == 0) {
        ++in_flight;
        return;
      }
    }
    by_pread(tag);
  }

  void by_pread(std::size_t tag) noexcept {
    const Read& r = reads[tag];
    ended.push_back({tag, r.file->try_pread(r.out.subspan(r.done), r.offset + r.done)});
  }

  /// What an end means; nothing where the read goes on or it was none.
  std::optional<Done> take(const End& end) noexcept {
    if (end.data >= reads.size()) {
      if (end.data == wake_data) listening = false;
      return std::nullopt;
    }
    --in_flight;
    const auto tag = static_cast<std::size_t>(end.data);
    Read& r = reads[tag];
    if (end.result > 0) {
      r.done += static_cast<std::size_t>(end.result);
      if (r.done == r.out.size()) return Done{tag, {}};
      go_on(tag);
    } else if (end.result == 0) {
      return Done{tag, fault(Errc::truncated, "read", r.offset + r.done, r.offset + r.out.size())};
    } else if (end.result == -EINTR) {
      go_on(tag);
    } else if (end.result == -EAGAIN || end.result == -EOPNOTSUPP) {
      by_pread(tag);  // the ring could not; the file may
    } else {
      return Done{tag, fault(Errc::io, "read")};
    }
    return std::nullopt;
  }

  std::optional<Done> next(bool wait) noexcept {
    for (;;) {
      if (!ended.empty()) {
        const Done out = ended.back();
        ended.pop_back();
        return out;
      }
      if (wait && !listening && listen() != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        wait = false;  // nothing could wake it: let the caller look again
      }
      End end{};
      const int error = wait_for(wait ? 1 : 0, end);
      if (error == 0) {
        if (const auto out = take(end)) return out;
        if (end.data == wake_data) return std::nullopt;
      } else {
        if (error != -EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return std::nullopt;
      }
    }
  }

  ~Ring() {
    if (listening) wake();
    while (in_flight > 0 || listening) {
      End end{};
      if (wait_for(1, end) == 0) {
        if (end.data == wake_data) listening = false;
        if (end.data < reads.size()) --in_flight;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    close();
  }
};

ReadQueue::ReadQueue(unsigned depth) {
  check_depth(depth);
  ring_ = std::make_unique<Ring>(depth);
}

ReadQueue::~ReadQueue() = default;

unsigned ReadQueue::depth() const noexcept { return static_cast<unsigned>(ring_->reads.size()); }
unsigned ReadQueue::in_flight() const noexcept {
  return ring_->in_flight + static_cast<unsigned>(ring_->ended.size());
}

void ReadQueue::start(std::size_t tag, const File& file, std::span<std::uint8_t> out,
                      std::uint64_t offset) noexcept {
  ring_->reads[tag] = {&file, out, offset, 0};
  if (out.empty()) {
    ring_->ended.push_back({tag, {}});
  } else {
    ring_->go_on(tag);
  }
}

std::optional<ReadQueue::Done> ReadQueue::poll() noexcept { return ring_->next(false); }
std::optional<ReadQueue::Done> ReadQueue::wait() noexcept { return ring_->next(true); }
void ReadQueue::wake() noexcept { ring_->wake(); }

#else

struct ReadQueue::Ring {};

ReadQueue::ReadQueue(unsigned depth) {
  check_depth(depth);
  throw Error(fault(Errc::unsupported, "io_uring"), {}, "built without liburing");
}
ReadQueue::~ReadQueue() = default;
unsigned ReadQueue::depth() const noexcept { return 0; }
unsigned ReadQueue::in_flight() const noexcept { return 0; }
void ReadQueue::start(std::size_t, const File&, std::span<std::uint8_t>, std::uint64_t) noexcept {}
std::optional<ReadQueue::Done> ReadQueue::poll() noexcept { return std::nullopt; }
std::optional<ReadQueue::Done> ReadQueue::wait() noexcept { return std::nullopt; }
void ReadQueue::wake() noexcept {}

#endif

}  // namespace waste::io
