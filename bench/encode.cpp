// Quality and speed of the VQ encoder on synthetic matrices, beside the rate-distortion bound.
//
//   encode [--json] [--laws LIST] [--formats LIST] [--efforts LIST] [--rows N] [--seed N]
//
// Codebooks are fitted on one 1024x2304 matrix and applied to another of the same law (--rows
// encodes fewer rows of it). Times are CPU times of one thread.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "waste/arch/cpu.hpp"
#include "waste/format/index_layout.hpp"
#include "waste/quant/random.hpp"
#include "waste/quant/vq_train.hpp"

namespace {

using namespace waste;
constexpr std::size_t rows = 1024, cols = 2304;
constexpr double pi = 3.14159265358979323846;
constexpr double column_sigma = 0.35;

double gaussian(quant::Random& random) {  // Box and Muller
  const double u = 1.0 - random.unit();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * pi * random.unit());
}

/// A weight law and a lower bound of the relative error at R bits, `bound` * 2^-R: exact for the
/// Gaussian and the column-scaled Gaussian with known columns (reverse water-filling), Shannon's
/// lower bound sqrt(e^(2h) / (2 pi e variance)) for Student's t.
struct Law {
  const char* name;
  double bound;
};
constexpr double student_bound = 0.954;  // h = 1.6275 nats, variance 5/3
const Law laws[] = {{"gaussian", 1.0},
                    {"student5", student_bound},
                    {"columns", std::exp(-column_sigma* column_sigma)}};

std::vector<float> matrix(const std::string& law, std::uint64_t seed) {
  quant::Random random(quant::mix_seed(seed, {1})), columns(7);
  std::vector<double> scale(cols, 0.02);
  if (law == "columns") {
    for (double& s : scale) s *= std::exp(column_sigma * gaussian(columns));
  }
  std::vector<float> out(rows * cols);
  for (std::size_t i = 0; i < out.size(); ++i) {
    double value = gaussian(random);
    if (law == "student5") {
      double chi = 0;
      for (int k = 0; k < 5; ++k) {
        const double z = gaussian(random);
        chi += z * z;
      }
      value /= std::sqrt(chi / 5);
    }
    out[i] = static_cast<float>(value * scale[i % cols]);
  }
  return out;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Result {
  double error, bound, ns, train_seconds;
};

Result run(const Law& law, const format::ExpertQuant& q, quant::Effort effort, std::size_t count,
           std::uint64_t seed) {
  quant::EncodeOptions options;
  options.quant = q;
  options.effort = effort;
  options.seed = seed;
  quant::VectorSample sample(seed);
  const auto fitted_on = matrix(law.name, 2 * seed), x = matrix(law.name, 2 * seed + 1);
  sample.append({fitted_on.data(), rows, cols}, rows * cols);
  const double start = cpu_seconds();
  const auto books = quant::train_codebooks(sample.view(), options);
  const double trained = cpu_seconds();
  std::vector<std::uint8_t> indices(format::IndexLayout(q, count, cols).bytes());
  std::vector<std::uint8_t> scales(2 * count);
  const auto stats = quant::encode_matrix({x.data(), count, cols}, books.data(), options,
                                          indices.data(), scales.data());
  const double encoded = cpu_seconds();
  return {stats.relative_error(), law.bound * std::exp2(-q.bits_per_weight()),
          (encoded - trained) * 1e9 / static_cast<double>(count * cols), trained - start};
}

bool listed(const std::string& list, const char* name) {
  return list.empty() ||
         ("," + list + ",").find("," + std::string(name) + ",") != std::string::npos;
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  std::string only_laws, only_formats, only_efforts;
  std::size_t count = rows;
  std::uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--laws") == 0 && more) {
      only_laws = argv[++i];
    } else if (std::strcmp(argv[i], "--formats") == 0 && more) {
      only_formats = argv[++i];
    } else if (std::strcmp(argv[i], "--efforts") == 0 && more) {
      only_efforts = argv[++i];
    } else if (std::strcmp(argv[i], "--rows") == 0 && more) {
      count = std::strtoul(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--seed") == 0 && more) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr,
                   "usage: encode [--json] [--laws gaussian,student5,columns] [--formats "
                   "vq2r,vq3r,vq4p] [--efforts fast,default,best] [--rows 1..1024] [--seed N]\n");
      return 2;
    }
  }
  if (count < 1 || count > rows) {
    std::fprintf(stderr, "--rows: got %zu, wanted 1 to %zu\n", count, rows);
    return 2;
  }
  const std::string tier(arch::to_string(arch::active_tier()));
  if (!json) {
    std::printf(
        "codebooks fitted on one %zux%zu matrix, applied to %zu rows of another; %s, one "
        "thread\n%-9s %-5s %-8s %11s %9s %12s %9s\n",
        rows, cols, count, tier.c_str(), "law", "fmt", "effort", "rel_error_%", "bound_%",
        "ns_per_weight", "train_s");
  }
  const std::pair<const char*, format::ExpertQuant> formats[] = {
      {"vq2r", format::vq2r}, {"vq3r", format::vq3r}, {"vq4p", format::vq4p}};
  const std::pair<const char*, quant::Effort> efforts[] = {{"fast", quant::Effort::fast},
                                                           {"default", quant::Effort::standard},
                                                           {"best", quant::Effort::best}};
  for (const Law& law : laws) {
    for (const auto& [format_name, q] : formats) {
      for (const auto& [effort_name, effort] : efforts) {
        if (!listed(only_laws, law.name) || !listed(only_formats, format_name) ||
            !listed(only_efforts, effort_name)) {
          continue;
        }
        const Result r = run(law, q, effort, count, seed);
        if (json) {
          std::printf(
              "{\"law\":\"%s\",\"format\":\"%s\",\"effort\":\"%s\",\"rel_error\":%.6f,"
              "\"bound\":%.6f,\"ns_per_weight\":%.2f,\"train_s\":%.2f,\"tier\":\"%s\"}\n",
              law.name, format_name, effort_name, r.error, r.bound, r.ns, r.train_seconds,
              tier.c_str());
        } else {
          std::printf("%-9s %-5s %-8s %11.2f %9.2f %12.1f %9.2f\n", law.name, format_name,
                      effort_name, 100 * r.error, 100 * r.bound, r.ns, r.train_seconds);
        }
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
