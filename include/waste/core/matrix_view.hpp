// A row-major matrix somebody else owns.
#pragma once

#include <cstddef>
#include <span>

namespace waste {

/// `rows` x `cols` elements, row r starting at `data + r * stride`, stride >= cols.
template <class T>
struct MatrixView {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t stride = 0;

  MatrixView() = default;
  MatrixView(T* d, std::size_t r, std::size_t c) noexcept : MatrixView(d, r, c, c) {}
  MatrixView(T* d, std::size_t r, std::size_t c, std::size_t s) noexcept
      : data(d), rows(r), cols(c), stride(s) {}

  std::span<T> row(std::size_t r) const noexcept { return {data + r * stride, cols}; }
  T& operator()(std::size_t r, std::size_t c) const noexcept { return data[r * stride + c]; }
  operator MatrixView<const T>() const noexcept { return {data, rows, cols, stride}; }
};

}  // namespace waste
