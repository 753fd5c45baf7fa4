#include "waste/model/evaluate.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>
#include <vector>

#include "waste/core/parallel.hpp"

namespace waste::model {

double Evaluation::bits_per_byte() const noexcept {
  return mean_nll() / std::numbers::ln2 * static_cast<double>(tokens) / static_cast<double>(bytes);
}
double Evaluation::perplexity() const noexcept { return std::exp(mean_nll()); }

double negative_log_likelihood(std::span<const float> logits, std::uint32_t target) noexcept {
  if (target >= logits.size()) return std::numeric_limits<double>::infinity();
  const float top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float l : logits) total += std::exp(static_cast<double>(l) - top);
  return std::log(total) + top - logits[target];
}

Evaluation evaluate(const TextModel& model, std::span<const std::uint32_t> tokens,
                    std::uint64_t bytes, std::size_t window, unsigned threads,
                    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  if (tokens.size() < 2 || bytes == 0) {
    throw Error(fault(Errc::bad_argument, "text", tokens.size(), 2), {},
                "nothing can be predicted in it");
  }
  if (window == 0) throw Error(fault(Errc::bad_argument, "window", 0, 1));
  // forward() looks at what is fed, which the last token is not.
  if (const auto vocab = model.config().vocab_size; tokens.back() >= vocab) {
    throw Error(fault(Errc::out_of_range, "token", tokens.back(), vocab - 1));
  }
  Evaluation out;
  out.tokens = tokens.size();
  out.bytes = bytes;
  out.window = std::min(window, tokens.size() - 1);
  out.windows = (tokens.size() - 1) / out.window;
  out.predicted = out.windows * out.window;

  // What one thread needs to run windows: a session, and logits for a piece of one.
  constexpr std::size_t piece = 32;
  const std::size_t vocab = model.config().vocab_size;
  struct Runner {
    std::unique_ptr<Session> session;
    std::vector<float> logits;
  };
  nn::WorkerPool<Runner> pool;
  std::vector<double> nll(out.windows, 0.0);
  std::mutex reporting;
  std::uint64_t done = 0;
  const auto start = std::chrono::steady_clock::now();
  parallel_for(out.windows, threads, [&](std::size_t i) {
    nn::WorkerPool<Runner>::Loan runner(pool);
    if (!runner->session) {
      runner->session = std::make_unique<Session>(model.start(out.window));
      runner->logits.resize(piece * vocab);
    }
    runner->session->reset();
    const std::uint32_t* const from = tokens.data() + i * out.window;
    for (std::size_t at = 0; at < out.window; at += piece) {
      const std::size_t n = std::min(piece, out.window - at);
      model.forward(*runner->session, {from + at, n}, {runner->logits.data(), n, vocab});
      for (std::size_t t = 0; t < n; ++t) {
        nll[i] += negative_log_likelihood({&runner->logits[t * vocab], vocab}, from[at + t + 1]);
      }
    }
    if (progress) {
      const std::lock_guard lock(reporting);
      done += out.window;
      progress(done, out.predicted);
    }
  });
  for (const double v : nll) out.nll += v;
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return out;
}

}  // namespace waste::model
