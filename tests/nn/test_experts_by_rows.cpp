// One token's experts shared by rows among threads: the same bits, nobody kept waiting by a late
// expert, leases and errors as promised.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/matrices.hpp"
#include "waste/nn/moe.hpp"

using namespace waste;
using Floats = std::vector<float>;
using test::code_of;
using test::Scales;

namespace {

constexpr std::size_t count = 7, inter = 200, width = 160;  // rows end within a block of 64

struct Expert {
  Expert(const format::ExpertQuant& quant, std::uint64_t seed)
      : gate(test::make_vq(quant, inter, width, Scales::ordinary, seed)),
        up(test::make_vq(quant, inter, width, Scales::ordinary, seed + 1)),
        down(test::make_vq(quant, width, inter, Scales::ordinary, seed + 2)) {}
  test::VqCase gate, up, down;
};

class Provider final : public nn::ExpertProvider {
 public:
  explicit Provider(const format::ExpertQuant& quant) : quant_(quant) {
    for (std::size_t e = 0; e < count; ++e) experts_.emplace_back(quant, 100 + 10 * e);
  }
  std::optional<nn::SharedCodebooks> codebooks() const override {
    return nn::SharedCodebooks{quant_, experts_[0].gate.view.codebooks,
                               experts_[0].up.view.codebooks};
  }
  nn::ExpertLease get(ExpertId id) override {
    const std::size_t e = to_index(id);
    {
      std::unique_lock lock(mutex_);
      ++calls;
      most_held = std::max(most_held, ++held_);
      changed_.notify_all();
      // The first record is late: it comes when another has been asked for.
      if (first_is_late && calls == 1) {
        in_time = changed_.wait_for(lock, std::chrono::seconds(20), [&] { return calls > 1; });
      }
    }
    const std::shared_ptr<void> keep(nullptr, [this](void*) {
      const std::lock_guard lock(mutex_);
      --held_;
    });
    if (e == fails) throw Error(fault(Errc::io, "expert"));
    ExpertView view{experts_[e].gate.view, experts_[e].up.view, experts_[e].down.view};
    if (e != has_own_books) {
      view.gate.codebooks = experts_[0].gate.view.codebooks;
      view.up.codebooks = experts_[0].up.view.codebooks;
    }
    return {view, keep};
  }
  std::size_t at_once() const override { return room; }

  std::size_t room = 1, has_own_books = count, fails = count;
  bool first_is_late = false, in_time = false;
  std::size_t calls = 0, most_held = 0;

 private:
  format::ExpertQuant quant_;
  std::vector<Expert> experts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t held_ = 0;
};

/// A router that makes token x choose experts by the order of x's first elements.
struct Layer {
  explicit Layer(std::size_t top_k) : router(count * width, 0.0f) {
    for (std::size_t e = 0; e < count; ++e) router[e * width + e] = 1.0f;
    weights.router = {format::Fmt::f32, reinterpret_cast<const std::uint8_t*>(router.data()),
                      nullptr, count, width};
    weights.spec = {top_k, true, 1.5f};
    weights.inter = inter;
  }
  Floats operator()(Provider& provider, const Floats& x, unsigned threads,
                    kernels::Precision precision) {
    Exec exec;
    exec.threads = threads;
    exec.precision = precision;
    Floats out(width);
    nn::moe(weights, provider, {x.data(), 1, width}, {out.data(), 1, width}, scratch, space, exec);
    return out;
  }
  Floats router;
  nn::MoeWeights weights;
  nn::Scratch scratch;
  nn::MoeWorkspace space;
};

}  // namespace

TEST_CASE("threads that share an expert's rows give the same bits") {
  test::Random random(11);
  std::size_t shared = 0;
  for (const auto& quant : {format::vq3r, format::vq2r, format::vq4p}) {
    Provider provider(quant);
    for (const std::size_t top_k : {3u, 5u}) {
      Layer layer(top_k);
      for (const auto precision :
           {kernels::Precision::exact, kernels::Precision::hilo14, kernels::Precision::split8}) {
        const Floats x = random.bells(width);
        provider.room = 1;
        provider.has_own_books = count;
        const Floats want = layer(provider, x, 1, precision);
        for (const unsigned threads : {2u, 3u, 4u, 8u}) {
          for (const std::size_t room : {1u, 5u}) {
            provider.room = room;
            provider.calls = provider.most_held = 0;
            CAPTURE(top_k, threads, room);
            CHECK(layer(provider, x, threads, precision) == want);
            CHECK(provider.calls == top_k);
            const bool by_rows = shares_badly(top_k, threads) && room >= top_k;
            if (by_rows) {
              CHECK(provider.most_held == top_k);
              ++shared;
            } else {
              CHECK(provider.most_held <= threads);
            }
          }
        }
        // One of them has codebooks of its own, as a substitute has.
        provider.has_own_books =
            layer.space.ids[layer.space.ids[1] == 0 ? 2 : 1];  // 0 has the shared ones
        const Floats other = layer(provider, x, 1, precision);
        CHECK(other != want);
        provider.room = 5;
        for (const unsigned threads : {2u, 7u})
          CHECK(layer(provider, x, threads, precision) == other);
      }
    }
  }
  CHECK(shared == 3 * 3 * (3 + 4));  // three experts on 2, 4, 8 threads; five on 2, 3, 4, 8
}

TEST_CASE("a late expert keeps no thread from the others'") {
  Provider provider(format::vq3r);
  provider.room = 3;
  provider.first_is_late = true;
  Layer layer(3);
  const Floats x = test::Random(3).bells(width);
  layer(provider, x, 2, kernels::Precision::exact);
  CHECK(provider.in_time);
}

TEST_CASE("an expert that cannot be read is the layer's error, and the next call asks again") {
  Provider provider(format::vq3r);
  provider.room = 3;
  Layer layer(3);
  const Floats x = test::Random(4).bells(width);
  const Floats want = layer(provider, x, 2, kernels::Precision::exact);
  for (std::size_t j = 0; j < 3; ++j) {
    provider.fails = layer.space.ids[j];
    CHECK_THROWS_AS(layer(provider, x, 2, kernels::Precision::exact), Error);
    provider.fails = count;
    provider.most_held = 0;
    CHECK(layer(provider, x, 2, kernels::Precision::exact) == want);
    CHECK(provider.most_held == 3);  // the failed call let go of all of them
  }
}

TEST_CASE("a table built in shares is the table, rows are the product's, and ranges are checked") {
  for (const auto& quant : {format::vq3r, format::vq4p}) {
    const test::VqCase w = test::make_vq(quant, inter, 1024, Scales::ordinary, 5);
    const Floats x = test::Random(6).bells(1024);
    for (const auto precision :
         {kernels::Precision::exact, kernels::Precision::hilo14, kernels::Precision::split8}) {
      VqTable whole(precision, quant, 1024), shares(precision, quant, 1024);
      whole.build(w.view.codebooks, x);
      shares.start(w.view.codebooks);
      for (const std::size_t i : {4u, 0u, 2u, 1u, 3u}) shares.fill(x, i, 5);
      Floats want(inter), got(inter, -1.0f);
      matvec(w.view, whole, want);
      matvec_rows(w.view, shares, got, 64, 128);
      CHECK(std::count(got.begin(), got.end(), -1.0f) == inter - 64);
      matvec_rows(w.view, shares, got, 0, 64);
      matvec_rows(w.view, shares, got, 128, inter);
      matvec_rows(w.view, shares, got, inter / 64 * 64, inter / 64 * 64);
      CHECK(got == want);
    }
    VqTable table(kernels::Precision::exact, quant, 1024);
    Floats y(inter);
    CHECK(code_of([&] { table.fill(x, 0, 1); }) == Errc::bad_argument);
    table.build(w.view.codebooks, x);
    CHECK(code_of([&] { table.fill(x, 2, 2); }) == Errc::out_of_range);
    CHECK(code_of([&] { table.fill(std::span(x).first(8), 0, 1); }) == Errc::shape);
    CHECK(code_of([&] { matvec_rows(w.view, table, y, 0, inter + 1); }) == Errc::out_of_range);
    CHECK(code_of([&] { matvec_rows(w.view, table, y, 0, 100); }) == Errc::out_of_range);
    CHECK(code_of([&] { matvec_rows(w.view, table, y, 32, 64); }) == Errc::out_of_range);
    CHECK(code_of([&] { matvec_rows(w.view, table, y, 128, 64); }) == Errc::out_of_range);
    CHECK(code_of([&] { matvec_rows(w.view, table, std::span(y).first(64), 0, 64); }) ==
          Errc::shape);
  }
}
