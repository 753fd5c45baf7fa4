#include "codebook_fit.hpp"

#include <algorithm>
#include <cmath>

#include "search_books.hpp"
#include "vq_effort.hpp"
#include "waste/core/checked.hpp"
#include "waste/core/parallel.hpp"

namespace waste::quant {
namespace {
using format::vec_dim;

double squared_norm(const float* v) noexcept {
  double sum = 0;
  for (std::size_t d = 0; d < vec_dim; ++d) sum += static_cast<double>(v[d]) * v[d];
  return sum;
}

std::vector<double> cumulative_norms(const std::vector<float>& x) {
  std::vector<double> out(x.size() / vec_dim);
  double total = 0;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = total += squared_norm(&x[vec_dim * i]);
  return out;
}

}  // namespace

CodebookFit::CodebookFit(std::vector<float> x, const EncodeOptions& options)
    : x_(std::move(x)),
      n_(x_.size() / vec_dim),
      stages_(options.quant.stages),
      entries_(options.quant.entries),
      table_(std::size_t{1} << options.quant.index_bits),
      threads_(options.threads),
      kernel_(encode_kernels(options)),
      random_(options.seed),
      books_(stages_ * table_ * vec_dim),
      indices_(n_ * stages_) {}

// An element drawn in proportion to its share of the cumulative sum.
std::size_t CodebookFit::draw(const std::vector<double>& cumulative) {
  const double total = cumulative.back();
  if (!(total > 0)) return random_.below(cumulative.size());
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), random_.unit() * total);
  return std::min<std::size_t>(static_cast<std::size_t>(at - cumulative.begin()),
                               cumulative.size() - 1);
}

void CodebookFit::search(const std::vector<float>& x, const float* books, std::size_t stages,
                         std::size_t beam, std::vector<std::uint8_t>& indices) const {
  const IntegerBooks integer(books, stages, entries_, table_);
  constexpr std::size_t chunk = 1024;
  parallel_for(ceil_div(n_, chunk), threads_, [&](std::size_t task) {
    const std::size_t first = task * chunk, count = std::min(chunk, n_ - first);
    IntegerBooks::Scratch scratch;
    integer.nearest(kernel_, x.data() + first * vec_dim, count, 1.0f, beam, scratch,
                    indices.data() + first * stages);
  });
}

void CodebookFit::seed_means(const std::vector<float>& rest, float* book) {
  // A subset, one array per dimension.
  const std::size_t n = std::min<std::size_t>(n_, 64 * entries_);
  std::vector<float> column(n * vec_dim), distance(n, INFINITY);
  std::vector<double> cumulative(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = i * (n_ / n) + i * (n_ % n) / n;
    for (std::size_t d = 0; d < vec_dim; ++d) column[d * n + i] = rest[at * vec_dim + d];
  }
  std::size_t chosen = random_.below(n);
  for (std::size_t e = 0; e < entries_; ++e) {
    float c[vec_dim];
    for (std::size_t d = 0; d < vec_dim; ++d) book[e * vec_dim + d] = c[d] = column[d * n + chosen];
    double total = 0;
    for (std::size_t i = 0; i < n; ++i) {
      float sum = 0;
      for (std::size_t d = 0; d < vec_dim; ++d) {
        const float diff = column[d * n + i] - c[d];
        sum += diff * diff;
      }
      distance[i] = std::min(distance[i], sum);
    }
    for (std::size_t i = 0; i < n; ++i) cumulative[i] = total += distance[i];
    chosen = draw(cumulative);
  }
}

void CodebookFit::start(int rounds) {
  std::vector<float> rest = x_;
  std::vector<std::uint8_t> label(n_);
  for (std::size_t s = 0; s < stages_; ++s) {
    float* book = entry(s, 0);
    seed_means(rest, book);
    for (int round = 0; round <= rounds; ++round) {
      search(rest, book, 1, 1, label);
      if (round == rounds) break;
      std::vector<double> sum(entries_ * vec_dim);
      std::vector<std::size_t> members(entries_);
      for (std::size_t i = 0; i < n_; ++i) {
        ++members[label[i]];
        for (std::size_t d = 0; d < vec_dim; ++d) {
          sum[label[i] * vec_dim + d] += rest[i * vec_dim + d];
        }
      }
      std::vector<double> cumulative;
      for (std::size_t e = 0; e < entries_; ++e) {
        if (members[e] > 0) {
          for (std::size_t d = 0; d < vec_dim; ++d) {
            book[e * vec_dim + d] =
                static_cast<float>(sum[e * vec_dim + d] / static_cast<double>(members[e]));
          }
          continue;
        }
        if (cumulative.empty()) {
          std::vector<float> left(rest);
          for (std::size_t i = 0; i < n_; ++i) {
            for (std::size_t d = 0; d < vec_dim; ++d) {
              left[i * vec_dim + d] -= book[label[i] * vec_dim + d];
            }
          }
          cumulative = cumulative_norms(left);
        }
        std::copy_n(&rest[draw(cumulative) * vec_dim], vec_dim, book + e * vec_dim);
      }
    }
    for (std::size_t i = 0; i < n_; ++i) {
      indices_[i * stages_ + s] = label[i];
      for (std::size_t d = 0; d < vec_dim; ++d) {
        rest[i * vec_dim + d] -= book[label[i] * vec_dim + d];
      }
    }
  }
}

void CodebookFit::encode(std::size_t beam) { search(x_, books_.data(), stages_, beam, indices_); }

std::vector<float> CodebookFit::remainder() const {
  std::vector<float> rest = x_;
  for (std::size_t i = 0; i < n_; ++i) {
    for (std::size_t s = 0; s < stages_; ++s) {
      const float* c = books_.data() + (s * table_ + indices_[i * stages_ + s]) * vec_dim;
      for (std::size_t d = 0; d < vec_dim; ++d) rest[i * vec_dim + d] -= c[d];
    }
  }
  return rest;
}

void CodebookFit::refit() {
  // With m = stages * entries unknown vectors: counts[m][m] of joint use and the sums of the
  // vectors that use an entry. Solved for the correction of the books, which starts at zero: the
  // right side is then the sum of what is left of those vectors, and the ridge pulls to the old.
  const std::size_t m = stages_ * entries_;
  const std::vector<float> rest = remainder();
  std::vector<std::int32_t> counts(m * m);
  std::vector<double> sums(m * vec_dim), change(m * vec_dim);
  error_ = 0;
  for (std::size_t i = 0; i < n_; ++i) {
    error_ += squared_norm(&rest[i * vec_dim]);
    for (std::size_t s = 0; s < stages_; ++s) {
      const std::size_t a = s * entries_ + indices_[i * stages_ + s];
      for (std::size_t d = 0; d < vec_dim; ++d) sums[a * vec_dim + d] += rest[i * vec_dim + d];
      for (std::size_t t = 0; t < stages_; ++t) {
        ++counts[a * m + t * entries_ + indices_[i * stages_ + t]];
      }
    }
  }
  error_ /= static_cast<double>(n_);

  // The joint uses that occur, row by row: a small sample leaves most at zero.
  struct Joint {
    std::uint32_t other;
    std::int32_t count;
  };
  std::vector<Joint> joint;
  std::vector<std::size_t> ends(m);
  for (std::size_t a = 0; a < m; ++a) {
    for (std::size_t b = 0; b < m; ++b) {
      const std::int32_t count = counts[a * m + b];
      if (count != 0 && b != a) joint.push_back({static_cast<std::uint32_t>(b), count});
    }
    ends[a] = joint.size();
  }
  constexpr double ridge = 0.5;
  constexpr int sweeps = 6;
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    std::size_t at = 0;
    for (std::size_t a = 0; a < m; ++a) {
      double value[vec_dim];
      for (std::size_t d = 0; d < vec_dim; ++d) value[d] = sums[a * vec_dim + d];
      for (; at < ends[a]; ++at) {
        const double* other = &change[joint[at].other * vec_dim];
        const double count = joint[at].count;
        for (std::size_t d = 0; d < vec_dim; ++d) value[d] -= count * other[d];
      }
      const double uses = counts[a * m + a];
      for (std::size_t d = 0; d < vec_dim; ++d) change[a * vec_dim + d] = value[d] / (uses + ridge);
    }
  }

  std::vector<double> cumulative;
  for (std::size_t s = 0; s < stages_; ++s) {
    for (std::size_t e = 0; e < entries_; ++e) {
      const std::size_t a = s * entries_ + e;
      float* c = entry(s, e);
      if (counts[a * m + a] > 0) {
        for (std::size_t d = 0; d < vec_dim; ++d) {
          c[d] = static_cast<float>(c[d] + change[a * vec_dim + d]);
        }
        continue;
      }
      // Unused: what would have served a badly served vector.
      if (cumulative.empty()) cumulative = cumulative_norms(rest);
      const std::size_t i = draw(cumulative);
      const float* served = entry(s, indices_[i * stages_ + s]);
      for (std::size_t d = 0; d < vec_dim; ++d) c[d] = served[d] + rest[i * vec_dim + d];
    }
  }
}

void CodebookFit::disturb(double amount) {
  const double sigma = amount * std::sqrt(error_ / static_cast<double>(vec_dim));
  for (std::size_t s = 0; s < stages_; ++s) {
    for (std::size_t i = 0; i < entries_ * vec_dim; ++i) {
      float& value = entry(s, 0)[i];
      value = static_cast<float>(value + sigma * random_.normal());
    }
  }
}

}  // namespace waste::quant
