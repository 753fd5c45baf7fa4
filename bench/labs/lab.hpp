// What the labs share: a checkpoint with its calibration, and errors in the metric of the inputs.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "waste/convert/calibration.hpp"
#include "waste/convert/checkpoint.hpp"
#include "waste/format/index_layout.hpp"
#include "waste/quant/reference.hpp"
#include "waste/quant/vq_calibrated.hpp"
#include "waste/quant/vq_train.hpp"

namespace lab {

using namespace waste;
inline constexpr format::Kind kinds[] = {format::Kind::gate, format::Kind::up, format::Kind::down};
inline constexpr double damping = 0.01;

struct Input {
  convert::Checkpoint source;
  convert::CalibrationFile calibration;

  Input(const char* checkpoint, const char* file)
      : source(convert::Checkpoint::open(checkpoint)),
        calibration(convert::CalibrationFile::open(
            file, source.model(), convert::config_identity(source.container_config()))) {}

  std::uint32_t first_layer() const { return source.model().first_k_dense_replace; }
  std::uint32_t layers() const { return source.model().num_hidden_layers; }
  std::uint32_t experts() const { return source.model().num_experts; }
  convert::MomentKey key(std::uint32_t layer, format::Kind kind) const {
    return {static_cast<std::uint16_t>(layer),
            kind == format::Kind::down ? convert::Site::expert_down : convert::Site::expert};
  }
  /// Of the layer's inputs.
  quant::MomentFactor factor(std::uint32_t layer, format::Kind kind) const {
    return {calibration.moments(key(layer, kind)), damping, 0};
  }
  /// Of the expert's own where the file has them, else of the layer's.
  quant::MomentFactor factor(std::uint32_t layer, format::Kind kind, std::uint32_t expert) const {
    convert::MomentKey own = key(layer, kind);
    own.expert = static_cast<std::uint16_t>(expert);
    return calibration.has(own) ? quant::MomentFactor(calibration.moments(own), damping, 0)
                                : factor(layer, kind);
  }
};

/// |M R|^2: what a weight matrix, or an error of one, is at the output.
inline double output_square(const std::vector<float>& m, std::size_t cols,
                            const quant::MomentFactor& factor) {
  double total = 0;
  for (std::size_t at = 0; at < m.size(); at += cols) {
    for (std::size_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (std::size_t i = factor.block_begin(j); i <= j; ++i) {
        sum += static_cast<double>(m[at + i]) * factor.at(i, j);
      }
      total += sum * sum;
    }
  }
  return total;
}

struct Coder {
  quant::EncodeOptions options;
  std::vector<float> books;

  /// Codebooks for matrices like these.
  Coder(const format::ExpertQuant& quant, quant::Effort effort,
        const std::vector<std::vector<float>>& matrices, std::size_t cols) {
    options.quant = quant;
    options.effort = effort;
    options.threads = 0;
    quant::VectorSample sample(1);
    for (const auto& m : matrices) sample.append({m.data(), m.size() / cols, cols}, m.size());
    books = quant::train_codebooks(sample.view(), options);
  }
  /// What a reader would decode; coded for the weights, or (factor not null) for the output.
  std::vector<float> decoded(const std::vector<float>& m, std::size_t cols,
                             const quant::MomentFactor* factor) const {
    const std::size_t rows = m.size() / cols;
    std::vector<std::uint8_t> index(format::IndexLayout(options.quant, rows, cols).bytes());
    std::vector<std::uint8_t> scales(2 * rows);
    const MatrixView<const float> w(m.data(), rows, cols);
    if (factor) {
      quant::CalibratedEncoder(*factor, books.data(), options)
          .encode(w, index.data(), scales.data());
    } else {
      quant::encode_matrix(w, books.data(), options, index.data(), scales.data());
    }
    VqMatrix view;
    view.indices = index.data();
    view.scales = scales.data();
    view.codebooks = books.data();
    view.quant = options.quant;
    view.n_rows = rows;
    view.n_cols = cols;
    std::vector<float> out(m.size());
    quant::reference::dequantize(view, MatrixView<float>(out.data(), rows, cols));
    return out;
  }
};

inline std::vector<float> minus(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

inline std::vector<std::vector<float>> matrices(const Input& in, std::uint32_t layer,
                                                format::Kind kind) {
  std::vector<std::vector<float>> out;
  for (std::uint32_t e = 0; e < in.experts(); ++e) {
    const auto expert = in.source.expert(LayerId{layer}, ExpertId{e});
    const MatrixView<const float> w = expert.matrix(kind);
    out.emplace_back(w.data, w.data + w.rows * w.cols);
  }
  return out;
}

/// Runs a lab and turns its errors into messages.
inline int run(int argc, char** argv, const char* usage, const std::function<void(Input&)>& body) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CHECKPOINT CALIBRATION\n%s", argv[0], usage);
    return 64;
  }
  try {
    Input in(argv[1], argv[2]);
    body(in);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace lab
