// What can be measured: groups of cases that share inputs and are timed in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "waste/format/vq_view.hpp"

namespace waste::bench {

/// The name of a case, "op/format/shape/tier/precision/cache/threads"; a part may be "-".
struct Labels {
  std::string op, format, shape, tier, precision = "-";
  std::string cache = "hot";  ///< "hot": the same bytes again and again; "ram": never twice
  unsigned threads = 1;

  std::string name() const;
};

/// One thing to run and what it means.
struct Case {
  std::function<void()> run;
  double weights = 0;        ///< multiplied a run; 0 where the notion does not apply
  double payload_bytes = 0;  ///< streamed a run
  /// The relative error of the last run's result, checked after the timing; a case whose error
  /// passes `tolerance` fails the whole bench.
  std::function<double()> error = {};
  double tolerance = 0;
};

/// Cases that are timed in turn, so that their ratios hold on a busy machine too. `make` builds the
/// inputs and returns one case for each of `labels`, in their order; it is not called where the
/// filter leaves nothing.
struct Group {
  std::vector<Labels> labels;
  std::function<std::vector<Case>()> make;
};

std::vector<Group>& groups();
/// Adds a group; returns true, so that a namespace-scope constant can do it.
bool add(Group group);

/// A VQ product of your own: y[r] = scale[r] * sum of table entries, the table being the exact one,
/// f32 [position][stage][2^index_bits]. It joins every shape, format and cache state beside
/// `gather` and the library's kernels, and is checked like them (to `tolerance`):
///     const bool joined = waste::bench::add_vq_kernel("mine", my_kernel);
using VqKernel = std::function<void(const VqMatrix& w, const float* table, float* y)>;
bool add_vq_kernel(std::string name, VqKernel kernel, double tolerance = 1e-5);

/// Bytes so many that no cache holds a useful part of them: what "ram" cases walk through.
std::size_t ram_bytes();
/// Threads of the "all" cases.
unsigned all_threads();

/// The families; run calls each once.
void add_read();
void add_vq();
void add_trunk();
void add_bytes();
void add_expert();
void add_step();

struct Options {
  std::string filter = ".*";  ///< ECMAScript, case does not matter; may match any part of a name
  std::string json;           ///< file to write one object a line to; "-": standard output
  std::string svg;            ///< file for the roofline
  double min_time_s = 0.02;   ///< of one repetition of a case
  unsigned repetitions = 7;
  bool list = false;   ///< print names only
  bool quiet = false;  ///< nothing on standard error
};

/// Measures what the filter matches, and the read bandwidth, with which all that comes from RAM is
/// compared; prints a table, or the JSON where that goes to standard output. A case's time is the
/// fastest of all its runs. False where a result was wrong (see Case::tolerance). Throws Error:
/// bad_argument for a filter that is no expression or matches no case, io.
bool run(const Options& options);

/// The same for a program of one's own, from its arguments; the exit status.
int run(int argc, char** argv);

}  // namespace waste::bench
