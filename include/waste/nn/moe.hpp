// A mixture-of-experts layer: router, routed experts from a provider, shared expert, latent space.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "waste/core/error.hpp"
#include "waste/core/matrix_view.hpp"
#include "waste/core/parallel.hpp"
#include "waste/nn/ffn.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/nn/norm.hpp"
#include "waste/nn/router.hpp"
#include "waste/nn/scratch.hpp"

namespace waste::nn {

/// One routed expert, quantized or plain, for as long as `keep` lives.
struct ExpertLease {
  std::variant<ExpertView, FfnWeights> weights;
  std::shared_ptr<const void> keep;
};

/// Codebooks that all VQ experts of a layer share, f32 [stages][2^index_bits][8] each: what tables
/// of gate and up are built from before any expert is there. An expert that comes with others, a
/// substitute, gets tables of its own.
struct SharedCodebooks {
  format::ExpertQuant quant;
  const float* gate = nullptr;
  const float* up = nullptr;
};

/// Where a layer's experts come from. get() is called from several threads at once; each thread
/// holds one lease at a time, or all together hold at_once().
class ExpertProvider {
 public:
  virtual ~ExpertProvider() = default;
  /// The experts that the calls of get() which follow will ask for, each once, in the order of
  /// their first use. A place to start reads; doing nothing is right.
  virtual void prepare(std::span<const ExpertId>) {}
  /// Nothing where the experts are plain matrices.
  virtual std::optional<SharedCodebooks> codebooks() const { return std::nullopt; }
  /// Throws Error; a failed read is never answered with other weights.
  virtual ExpertLease get(ExpertId expert) = 0;
  /// So many leases may be held at once by all threads of a call together. From a token's experts
  /// on, threads share the rows of all of them where an expert a thread would leave some idle.
  virtual std::size_t at_once() const { return 1; }
};

struct MoeWeights {
  TrunkMatrix router;           ///< [experts][hidden]
  std::span<const float> bias;  ///< [experts], for the choice only; empty: none
  RouterSpec spec;
  PairActivation act;
  std::size_t inter = 0;                              ///< rows of a routed expert's gate and up
  std::optional<TrunkMatrix> latent_down, latent_up;  ///< [latent][hidden], [hidden][latent]
  std::span<const float> latent_norm;                 ///< [latent]; empty: no norm
  std::optional<FfnWeights> shared;
  float eps = 1e-6f;  ///< of latent_norm
};

/// What a token chose; for observers.
struct Routing {
  MatrixView<const std::uint32_t> ids;  ///< [tokens][top_k], in selection order
  MatrixView<const float> weights;      ///< [tokens][top_k]
};

/// Who wants to look on; what is shown lasts until the call returns. Empty functions are not
/// called.
struct MoeObserver {
  std::function<void(const Routing&)> routing;
  /// The input vector of an expert's gate and up (shown once, as gate) and of its down, for every
  /// token that uses it. Experts then run one after another, in the order of first use.
  std::function<void(ExpertId, format::Kind, std::span<const float>)> input;
};

/// Memory that moe() keeps between calls, one per session.
struct MoeWorkspace {
  struct Worker {
    VqTable down, gate, up;  ///< gate and up: of experts with codebooks of their own
    Scratch scratch;
  };
  std::vector<VqTable> gate, up;  ///< one table per token of a call
  std::vector<VqTable> down;      ///< one per expert that threads share
  std::vector<std::uint32_t> ids;
  std::vector<ExpertId> order;  ///< distinct experts of a call
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> users;  ///< (token, slot) each
  WorkerPool<Worker> pool;
};

namespace detail {

inline void fit_table(VqTable& table, const format::ExpertQuant& quant, std::size_t cols,
                      kernels::Precision precision) {
  if (table.bytes() == 0 || !(table.quant() == quant) || table.cols() != cols ||
      table.precision() != precision) {
    table = VqTable(precision, quant, cols);
  }
}

/// The order of first use, and who uses what, from ids [tokens][top_k].
inline void group_by_expert(MoeWorkspace& space, std::size_t tokens, std::size_t top_k,
                            std::size_t experts) {
  constexpr std::uint32_t none = 0xffffffffu;
  std::vector<std::uint32_t> place(experts, none);
  space.order.clear();
  for (auto& u : space.users) u.clear();
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t j = 0; j < top_k; ++j) {
      const std::uint32_t e = space.ids[t * top_k + j];
      if (place[e] == none) {
        place[e] = static_cast<std::uint32_t>(space.order.size());
        space.order.push_back(ExpertId{e});
        if (space.users.size() < space.order.size()) space.users.emplace_back();
      }
      space.users[place[e]].emplace_back(t, j);
    }
  }
}

/// An expert that several threads work on: whoever comes first gets it.
struct HeldExpert {
  std::once_flag once;
  ExpertLease lease;
  std::exception_ptr failed;
  const ExpertView* view = nullptr;  ///< null: done as a whole by whoever got it

  template <class Get>
  const ExpertView* take(const Get& get) {
    std::call_once(once, [&] {
      try {
        view = get(lease);
      } catch (...) {
        failed = std::current_exception();
      }
    });
    if (failed) std::rethrow_exception(failed);
    return view;
  }
};

/// One token's experts in three dispatches of (expert, rows): gate, up and activation; the tables
/// of the hidden vectors; down. `get(i, lease)` fetches expert i into the lease and returns what of
/// it is to be done here. hidden [experts][inter], parts [experts][width] in the order of experts.
template <class Get>
void experts_by_rows(std::size_t experts, unsigned threads, const VqTable& gate, const VqTable& up,
                     std::vector<VqTable>& down, const PairActivation& act, const Exec& one,
                     MatrixView<float> hidden, MatrixView<float> ups, MatrixView<float> parts,
                     const Get& get) {
  const auto held = std::make_unique<HeldExpert[]>(experts);
  const auto take = [&](std::size_t i) {
    return held[i].take([&](ExpertLease& lease) { return get(i, lease); });
  };
  // Expert by expert first and rows last: threads begin with different experts, so that one whose
  // record is late keeps no other waiting.
  const std::size_t pieces = ceil_div<std::size_t>(4 * std::size_t{threads}, experts);
  const auto dispatch = [&](std::size_t rows, const auto& body) {
    const std::size_t blocks = ceil_div<std::size_t>(rows, 64), n = std::min(blocks, pieces);
    parallel_for(experts * n, threads, [&](std::size_t task) {
      const std::size_t i = task % experts, piece = task / experts;
      const ExpertView* e = take(i);
      if (e == nullptr) return;
      body(*e, i, 64 * (blocks * piece / n), std::min(rows, 64 * (blocks * (piece + 1) / n)));
    });
  };
  const kernels::StepKernels& step = *one.table().step;
  dispatch(hidden.cols,
           [&](const ExpertView& e, std::size_t i, std::size_t begin, std::size_t end) {
             const auto g = hidden.row(i), u = ups.row(i);
             matvec_rows(e.gate, gate, g, begin, end);
             matvec_rows(e.up, up, u, begin, end);
             act(step, &g[begin], &u[begin], end - begin, &g[begin]);
           });
  if (down.size() < experts) down.resize(experts);
  for (std::size_t i = 0; i < experts; ++i) {
    const ExpertView* e = take(i);
    if (e == nullptr) continue;
    fit_table(down[i], e->down.quant, e->down.cols(), one.precision);
    down[i].start(e->down.codebooks, one);
  }
  parallel_for(experts * pieces, threads, [&](std::size_t task) {
    const std::size_t i = task % experts;
    if (held[i].view != nullptr) down[i].fill(hidden.row(i), task / experts, pieces);
  });
  dispatch(parts.cols, [&](const ExpertView& e, std::size_t i, std::size_t begin, std::size_t end) {
    matvec_rows(e.down, down[i], parts.row(i), begin, end);
  });
}

}  // namespace detail

/// out[t] = sum over j of w_j down_j(act(gate_j xin, up_j xin)) in selection order [normed and
/// projected up where latent] + shared(x[t]); xin = latent_down x[t], or x[t]. x and out
/// [tokens][hidden]. Each distinct expert is asked for once per call; the tables of gate and up are
/// built once per token; with exec.decode there are none, experts are decoded once for all tokens
/// that use them. Experts go to threads one each or, for one token where that leaves threads
/// idle, by rows (ExpertProvider::at_once). The same bits for any split of tokens into calls and
/// any thread count. Throws Error (shape, mismatch) and whatever the provider throws. The
/// formula of the choice is route()'s.
inline void moe(const MoeWeights& w, ExpertProvider& provider, MatrixView<const float> x,
                MatrixView<float> out, Scratch& scratch, MoeWorkspace& space, const Exec& exec,
                const MoeObserver& observe = {}) {
  const std::size_t tokens = x.rows, experts = w.router.rows(), top_k = w.spec.top_k;
  const kernels::StepKernels& step = *exec.table().step;
  const Scratch::Frame frame(scratch);

  const auto scores = scratch.matrix(tokens, experts);
  const auto weights = scratch.matrix(tokens, top_k);
  matmul(w.router, x, scores, exec);
  space.ids.resize(tokens * top_k);
  for (std::size_t t = 0; t < tokens; ++t) {
    route(scores.row(t), w.bias, w.spec, {&space.ids[t * top_k], top_k}, weights.row(t), exec);
  }
  if (observe.routing) observe.routing({{space.ids.data(), tokens, top_k}, weights});
  detail::group_by_expert(space, tokens, top_k, experts);
  provider.prepare(space.order);

  MatrixView<const float> xin = x;
  if (w.latent_down) {
    const auto low = scratch.matrix(tokens, w.latent_down->rows());
    matmul(*w.latent_down, x, low, exec);
    xin = low;
  }
  const std::size_t width = xin.cols;
  const auto parts = scratch.matrix(tokens * top_k, width);  // row t * top_k + j

  Exec one = exec;
  one.threads = 1;
  one.look = nullptr;  // plain experts are no part of the trunk
  const auto books = exec.decode ? std::nullopt : provider.codebooks();
  if (books) {
    if (space.gate.size() < tokens) {
      space.gate.resize(tokens);
      space.up.resize(tokens);
    }
    const Exec& build = tokens == 1 ? exec : one;
    parallel_for(2 * tokens, tokens == 1 ? 1 : exec.threads, [&](std::size_t i) {
      VqTable& table = i % 2 == 0 ? space.gate[i / 2] : space.up[i / 2];
      detail::fit_table(table, books->quant, width, exec.precision);
      table.build(i % 2 == 0 ? books->gate : books->up, xin.row(i / 2), build);
    });
  }

  const auto has_books = [&](const ExpertView& e) {
    return books && e.gate.codebooks == books->gate && e.up.codebooks == books->up;
  };
  const auto quantized = [&](const ExpertView& e, MoeWorkspace::Worker& worker, std::size_t i) {
    detail::fit_table(worker.down, e.down.quant, e.down.cols(), exec.precision);
    const auto hidden = worker.scratch.matrix(2, w.inter);
    const bool own = !has_books(e);
    for (const auto& [t, j] : space.users[i]) {
      if (own) {
        detail::fit_table(worker.gate, e.gate.quant, width, exec.precision);
        detail::fit_table(worker.up, e.up.quant, width, exec.precision);
        worker.gate.build(e.gate.codebooks, xin.row(t), one);
        worker.up.build(e.up.codebooks, xin.row(t), one);
      }
      matvec(e.gate, own ? worker.gate : space.gate[t], hidden.row(0), one);
      matvec(e.up, own ? worker.up : space.up[t], hidden.row(1), one);
      w.act(step, hidden.row(0).data(), hidden.row(1).data(), w.inter, hidden.row(0).data());
      if (observe.input) {
        observe.input(space.order[i], format::Kind::gate, xin.row(t));
        observe.input(space.order[i], format::Kind::down, hidden.row(0));
      }
      worker.down.build(e.down.codebooks, hidden.row(0), one);
      matvec(e.down, worker.down, parts.row(t * top_k + j), one);
    }
  };
  // All users of an expert at once: plain matrices, or decoded ones.
  const auto together = [&](const auto& e, MoeWorkspace::Worker& worker, std::size_t i) {
    const auto& users = space.users[i];
    const auto in = worker.scratch.matrix(users.size(), width);
    const auto y = worker.scratch.matrix(users.size(), width);
    for (std::size_t r = 0; r < users.size(); ++r) {
      std::copy_n(xin.row(users[r].first).data(), width, in.row(r).data());
    }
    ffn(e, w.act, in, y, worker.scratch, one, [&](MatrixView<const float> hidden) {
      if (!observe.input) return;
      for (std::size_t r = 0; r < users.size(); ++r) {
        observe.input(space.order[i], format::Kind::gate, in.row(r));
        observe.input(space.order[i], format::Kind::down, hidden.row(r));
      }
    });
    for (std::size_t r = 0; r < users.size(); ++r) {
      const std::size_t part = users[r].first * top_k + users[r].second;
      std::copy_n(y.row(r).data(), width, parts.row(part).data());
    }
  };
  unsigned threads = observe.input ? 1 : threads_for(tokens * top_k * 3 * w.inter * width, exec);
  if (threads == 0) threads = available_threads();
  const auto whole = [&](const ExpertLease& lease, std::size_t i) {
    WorkerPool<MoeWorkspace::Worker>::Loan worker(space.pool);
    const Scratch::Frame inner(worker->scratch);
    const auto* view = std::get_if<ExpertView>(&lease.weights);
    if (view == nullptr) return together(std::get<FfnWeights>(lease.weights), *worker, i);
    if (exec.decode) return together(*view, *worker, i);
    quantized(*view, *worker, i);
  };
  if (tokens == 1 && books && shares_badly(top_k, threads) && top_k <= provider.at_once()) {
    const Scratch::Frame inner(scratch);
    detail::experts_by_rows(top_k, threads, space.gate[0], space.up[0], space.down, w.act, one,
                            scratch.matrix(top_k, w.inter), scratch.matrix(top_k, w.inter), parts,
                            [&](std::size_t i, ExpertLease& lease) -> const ExpertView* {
                              lease = provider.get(space.order[i]);
                              const auto* view = std::get_if<ExpertView>(&lease.weights);
                              if (view != nullptr && has_books(*view)) return view;
                              whole(lease, i);
                              return nullptr;
                            });
  } else {
    parallel_for(space.order.size(), threads, [&](std::size_t i) {
      const ExpertLease lease = provider.get(space.order[i]);
      whole(lease, i);
    });
  }

  const auto y = w.latent_up ? scratch.matrix(tokens, width) : out;
  require_size("expert width", y.cols, width);
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* rows[1] = {parts.row(t * top_k).data()};
    step.mix_rows(rows, &weights(t, 0), 1, width, y.row(t).data());
    for (std::size_t j = 1; j < top_k; ++j) {
      step.axpy(weights(t, j), parts.row(t * top_k + j).data(), width, y.row(t).data());
    }
  }
  if (w.latent_up) {
    if (!w.latent_norm.empty()) rms_norm(y, w.latent_norm, w.eps, y, exec);
    matmul(*w.latent_up, y, out, exec);
  }
  if (w.shared) {
    const auto s = scratch.matrix(tokens, out.cols);
    ffn(*w.shared, w.act, x, s, scratch, exec);
    for (std::size_t t = 0; t < tokens; ++t) {
      step.add(out.row(t).data(), s.row(t).data(), out.cols, out.row(t).data());
    }
  }
}

}  // namespace waste::nn
