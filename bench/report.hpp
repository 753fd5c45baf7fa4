// What a run of the bench prints and writes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "registry.hpp"

namespace waste::bench {

struct Result {
  Labels labels;
  double ns = 0;  ///< of one run: the fastest seen
  double weights = 0, payload_bytes = 0;
  double rel_error = 0;
  bool failed = false;
  double of_read = 0;   ///< share of the read bandwidth of as many threads; 0: not measured
  double x_gather = 0;  ///< how many times faster than `gather`; 0: no such thing here

  double weights_per_ns() const { return weights / ns; }
  double gb_per_s() const { return payload_bytes / ns; }
};

/// Fills of_read and x_gather from the results themselves.
void relate(std::vector<Result>& results);

void print_table(const std::vector<Result>& results);
/// One JSON object a line.
std::string json_lines(const std::vector<Result>& results);
/// SVG: weights per ns over weights per byte, with the read bandwidth of each thread count as a
/// slope.
std::string roofline(const std::vector<Result>& results);

}  // namespace waste::bench
