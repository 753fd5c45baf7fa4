// A float matrix of your own to residual VQ and back, with the error printed.
//
//     quantize_matrix                       # a random matrix
//     quantize_matrix FILE ROWS COLS        # raw f32, row after row; COLS a multiple of 8
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>
#include <waste/core/aligned_buffer.hpp>
#include <waste/quant/vq_encode.hpp>
#include <waste/quant/vq_train.hpp>
#include <waste/waste.hpp>

namespace {

/// Sums of twelve uniforms: close to a normal distribution.
std::vector<float> random_matrix(std::size_t count) {
  std::vector<float> out(count);
  std::uint64_t seed = 1;
  for (float& v : out) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<double>(seed >> 11) * 0x1p-53;
    }
    v = static_cast<float>(sum);
  }
  return out;
}

std::vector<float> read_matrix(const char* path, std::size_t count) {
  std::vector<float> out(count);
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(4 * count));
  if (!in) throw std::runtime_error(std::string(path) + ": fewer than ROWS * COLS floats");
  return out;
}

void quantize(waste::MatrixView<const float> w, const waste::format::ExpertQuant& quant) {
  waste::quant::EncodeOptions options;
  options.quant = quant;
  options.threads = 0;  // all of them; the bytes are the same for any number

  // Codebooks are trained on vectors of 8 weights, each divided by the scale of its row.
  waste::quant::VectorSample sample(options.seed);
  sample.append(w, 20000);
  const auto trained = waste::quant::train_codebooks(sample.view(), options);
  waste::AlignedBuffer<float> books(trained.size(), 64);  // tables are built from aligned ones
  std::copy(trained.begin(), trained.end(), books.begin());

  // Indices and f16 row scales, the bytes that an expert record holds.
  const waste::format::IndexLayout layout(quant, w.rows, w.cols);
  std::vector<std::uint8_t> indices(layout.bytes()), scales(2 * w.rows);
  const auto stats =
      waste::quant::encode_matrix(w, books.data(), options, indices.data(), scales.data());

  // The same bytes as a matrix again: decoded, and multiplied without decoding.
  const waste::VqMatrix v{indices.data(), scales.data(), books.data(), w.rows, w.cols, quant};
  std::vector<float> back(w.rows * w.cols), x(w.cols, 1.0f), y(w.rows);
  waste::quant::reference::dequantize(v, {back.data(), w.rows, w.cols});
  waste::matvec(v, x, y);
  std::printf("%s: %zu bytes, relative error %.4f; w[0][0] %.4f -> %.4f, (W 1)[0] = %.4f\n",
              std::string(to_string(quant.fmt)).c_str(), indices.size() + scales.size(),
              stats.relative_error(), static_cast<double>(w(0, 0)), static_cast<double>(back[0]),
              static_cast<double>(y[0]));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 1 && argc != 4) {
    return std::fprintf(stderr, "usage: %s [FILE ROWS COLS]\n", argv[0]), 64;
  }
  const std::size_t rows = argc == 4 ? std::strtoull(argv[2], nullptr, 10) : 128;
  const std::size_t cols = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 256;
  const auto values = argc == 4 ? read_matrix(argv[1], rows * cols) : random_matrix(rows * cols);
  std::printf("%zu x %zu, %zu bytes as f32\n", rows, cols, 4 * values.size());
  for (const auto& quant : {waste::format::vq3r, waste::format::vq4p, waste::format::vq2r}) {
    quantize({values.data(), rows, cols}, quant);
  }
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
