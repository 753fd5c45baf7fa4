// A move-only array whose storage begins at a chosen alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace waste {

/// Asks for storage that is not zeroed, because every byte is about to be written.
struct Uninitialized {};

/// Owns `size` elements of a trivial type at an address that is a multiple of `alignment`.
/// 4096 (the default) suits O_DIRECT reads; 64 suits vector code. Storage is zeroed unless
/// Uninitialized. Throws std::bad_alloc.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size, std::size_t alignment = 4096)
      : AlignedBuffer(size, alignment, Uninitialized{}) {
    if (size != 0) std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
  }
  AlignedBuffer(std::size_t size, std::size_t alignment, Uninitialized)
      : size_(size), alignment_(alignment) {
    if (size == 0) return;
    if (size > static_cast<std::size_t>(-1) / 2 / sizeof(T)) throw std::bad_alloc();
    data_ = static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t(alignment)));
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer(std::move(other)).swap(*this);
    return *this;
  }
  ~AlignedBuffer() {
    if (data_) ::operator delete(static_cast<void*>(data_), std::align_val_t(alignment_));
  }

  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }
  T* begin() noexcept { return data_; }
  T* end() noexcept { return data_ + size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }
  std::span<T> span() noexcept { return {data_, size_}; }
  std::span<const T> span() const noexcept { return {data_, size_}; }

  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(alignment_, other.alignment_);
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t alignment_ = 4096;
};

}  // namespace waste
