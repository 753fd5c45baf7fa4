// Does a low-rank basis shared by a layer's experts buy output error at 0.15 bits a weight or less?
//
//   low_rank CHECKPOINT CALIBRATION
//
// W_e ~ U_e V^T + VQ of the rest: V [cols][rank] shared by the experts of a layer and kind, U_e
// [rows][rank], both f16. Two bases:
//   plain      V spans the leading eigenvectors of sum W_e^T W_e, U_e = W_e V
//   whitened   the same of W_e R, R the factor of the layer's input moments, so that it is the
//   output that V captures:
//              U_e = W_e R B, V = R^-T B
// The rest is coded with 2 and 3 stages (effort fast, books fitted on the rests), for its
// weights and for its output.
#include <cmath>
#include <Eigen/Eigenvalues>

#include "lab.hpp"
#include "waste/core/half.hpp"

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Weights = std::vector<std::vector<float>>;

Matrix of(const std::vector<float>& m, std::size_t cols) {
  const auto n = static_cast<Eigen::Index>(cols);
  return Eigen::Map<const FloatMatrix>(m.data(), static_cast<Eigen::Index>(m.size()) / n, n)
      .cast<double>();
}

Matrix rounded(const Matrix& m) {  // to f16
  return m.unaryExpr([](double v) {
    return static_cast<double>(waste::f16_to_f32(waste::f32_to_f16(static_cast<float>(v))));
  });
}

/// What U_e V^T leaves of every expert.
Weights rests(const Weights& all, std::size_t cols, const Matrix& r, Eigen::Index rank) {
  const auto n = static_cast<Eigen::Index>(cols);
  Matrix sum = Matrix::Zero(n, n);
  for (const auto& m : all) {
    const Matrix w = of(m, cols) * r;
    sum += w.transpose() * w;
  }
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(sum);
  const Matrix b = solver.eigenvectors().rightCols(rank);
  const Matrix v = rounded(r.transpose().fullPivLu().solve(b));
  Weights out;
  for (const auto& m : all) {
    const Matrix w = of(m, cols);
    const FloatMatrix rest = (w - rounded(w * r * b) * v.transpose()).cast<float>();
    out.emplace_back(rest.data(), rest.data() + rest.size());
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  return lab::run(argc, argv, "calibrate with waste calibrate\n", [](lab::Input& in) {
    std::printf(
        "relative output error %%, all experts of all layers (metric of each layer's inputs)\n");
    std::printf("%-5s %-6s %5s %9s | %18s | %18s\n", "kind", "basis", "rank", "bits more",
                "VQ2R plain  calibr", "VQ3R plain  calibr");
    for (const auto kind : lab::kinds) {
      const auto shape = in.source.model().expert_shape();
      const std::size_t cols = shape.cols(kind), rows = shape.rows(kind);
      const auto rank = static_cast<Eigen::Index>(std::max<std::size_t>(1, cols / 128));
      const double bits =
          16.0 * static_cast<double>(rank) *
          (1.0 / static_cast<double>(cols) + 1.0 / static_cast<double>(rows * in.experts()));
      for (int basis = 0; basis < 3; ++basis) {
        double norm = 0, error[4] = {};
        for (std::uint32_t layer = in.first_layer(); layer < in.layers(); ++layer) {
          const Weights all = lab::matrices(in, layer, kind);
          const auto factor = in.factor(layer, kind);
          const auto n = static_cast<Eigen::Index>(cols);
          Matrix r = Matrix::Identity(n, n);
          if (basis == 2) {
            for (std::size_t i = 0; i < cols; ++i) {
              for (std::size_t j = 0; j < cols; ++j) {
                r(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)) =
                    j < i ? 0.0 : factor.at(i, j);
              }
            }
          }
          const Weights rest = basis == 0 ? all : rests(all, cols, r, rank);
          int at = 0;
          for (const auto& quant : {lab::format::vq2r, lab::format::vq3r}) {
            const lab::Coder coder(quant, lab::quant::Effort::fast, rest, cols);
            for (const auto* metric :
                 {static_cast<const lab::quant::MomentFactor*>(nullptr), &factor}) {
              for (const auto& m : rest) {
                error[at] +=
                    lab::output_square(lab::minus(m, coder.decoded(m, cols, metric)), cols, factor);
              }
              ++at;
            }
          }
          for (const auto& m : all) norm += lab::output_square(m, cols, factor);
        }
        const char* const kind_names[] = {"gate", "up", "down"};
        const char* const basis_names[] = {"none", "plain", "white"};
        std::printf("%-5s %-6s %5d %9.3f |", kind_names[static_cast<int>(kind)], basis_names[basis],
                    basis == 0 ? 0 : static_cast<int>(rank), basis == 0 ? 0.0 : bits);
        for (int i = 0; i < 4; ++i) {
          std::printf(" %8.2f%s", 100 * std::sqrt(error[i] / norm), i == 1 ? "  |" : "");
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  });
}
