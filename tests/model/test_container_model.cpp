// Containers of every expert and trunk format through the whole model: against the reference, on
// every tier, and when a record is damaged.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "model/oracle.hpp"
#include "support/bits_hash.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"

namespace fs = std::filesystem;
using Floats = std::vector<float>;
using Tokens = std::vector<std::uint32_t>;
using waste::Container;
using waste::Error;
using waste::Exec;
using waste::Session;
using waste::TextModel;
using waste::model::ContainerWeights;
using waste::model::ModelOptions;
using waste::test::TinySpec;

namespace {

const Tokens tokens = {3, 141, 59, 26, 53, 58, 97, 93, 23, 84, 62, 64, 33, 83, 27, 95, 2};

struct Named {
  std::string name;
  TinySpec spec;
};

std::vector<Named> specs() {
  TinySpec blockless = TinySpec::vq4p();
  blockless.index_block = 0;
  TinySpec five = TinySpec::vq3r();
  five.stages = 5;
  five.trunk_fmt = 7;
  TinySpec k3_vq4p = TinySpec::kimi_k3();
  k3_vq4p.fmt = "VQ4P";
  k3_vq4p.stages = 4;
  k3_vq4p.entries = 64;
  k3_vq4p.index_bits = 6;
  k3_vq4p.trunk_fmt = 2;
  return {{"vq3r", TinySpec::vq3r()},  {"vq2r", TinySpec::vq2r()},
          {"vq4p", blockless},         {"five", five},
          {"k3", TinySpec::kimi_k3()}, {"k3-vq4p", k3_vq4p}};
}

fs::path write(const Named& named) {
  const fs::path dir = waste::test::scratch_dir("model-" + named.name);
  waste::test::make_tiny(named.spec).write(dir);
  return dir;
}

TextModel open(const fs::path& dir, const ModelOptions& options = {}, std::uint64_t slots = 6,
               bool verify = false) {
  waste::OpenOptions open_options;
  open_options.verify_records = verify ? waste::io::Verify::always : waste::io::Verify::off;
  const Container container = Container::open(dir, open_options);
  waste::engine::CacheOptions cache;
  cache.budget_bytes = slots * container.banks().front().record_bytes();
  cache.concurrent = std::max(options.exec.threads, 1u);
  return TextModel(std::make_shared<ContainerWeights>(container, cache), options);
}

Floats all_logits(const TextModel& model) {
  Session session = model.start(tokens.size());
  Floats out(tokens.size() * model.config().vocab_size);
  model.forward(session, tokens, {out.data(), tokens.size(), model.config().vocab_size});
  return out;
}

double relative(const Floats& got, const Floats& want) {
  REQUIRE(got.size() == want.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double(got[i]) - want[i], 2);
    norm += std::pow(double(want[i]), 2);
  }
  REQUIRE(norm > 0);
  return std::sqrt(error / norm);
}

Floats read_floats(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  Floats out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

}  // namespace

TEST_CASE("every format's logits agree with the reference on the dequantized weights") {
  if (waste::test::numpy_python().empty()) {
    WARN("SKIPPED: no Python with NumPy to run the reference");
    return;
  }
  std::string list;
  for (const auto t : tokens) list += (list.empty() ? "" : ",") + std::to_string(t);
  const fs::path out = waste::test::scratch_dir("model-reference") / "logits.f32";
  for (const Named& named : specs()) {
    const fs::path dir = write(named);
    REQUIRE(waste::test::run_oracle(
                "container_logits.py",
                "'" + dir.string() + "' --tokens " + list + " --out '" + out.string() + "'") == 0);
    const Floats logits = all_logits(open(dir));
    const Floats last(logits.end() - named.spec.vocab, logits.end());
    const double error = relative(last, read_floats(out));
    INFO(named.name << ": relative difference " << error);
    CHECK(error <= 1e-5);
  }
}

TEST_CASE("a container's logits are the same bits on every fused tier, thread count and chunk") {
  waste::test::BitsHash hash;
  for (const Named& named : specs()) {
    const fs::path dir = write(named);
    for (const auto precision :
         {waste::kernels::Precision::exact, waste::kernels::Precision::hilo14,
          waste::kernels::Precision::split8}) {
      Floats want;
      for (const waste::arch::Tier tier : waste::arch::runnable_tiers()) {
        if (tier == waste::arch::Tier::baseline && waste::arch::runnable_tiers().size() > 1) {
          continue;  // SSE2 does not fuse multiply-add
        }
        for (const std::size_t chunk : {1u, 6u, 32u}) {
          for (const unsigned threads : {1u, 3u}) {
            ModelOptions options;
            options.chunk_tokens = chunk;
            options.exec.kernels = &waste::kernels::kernel_table(tier);
            options.exec.threads = threads;
            options.exec.precision = precision;
            const Floats got = all_logits(open(dir, options, threads == 1 ? 1 : 5));
            if (want.empty()) want = got;
            CAPTURE(named.name, waste::arch::to_string(tier), chunk, threads);
            REQUIRE(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
          }
        }
      }
      hash.add(want);
    }
  }
  CAPTURE(hash.value());
  CHECK(hash.is(0x920a0e16d63a828c));
}

TEST_CASE("a fast prompt moves logits by rounding only, and by nothing else") {
  for (const Named& named : specs()) {
    const fs::path dir = write(named);
    const Floats exact = all_logits(open(dir));
    ModelOptions options;
    options.fast_prompt = true;
    const Floats want = all_logits(open(dir, options));
    CAPTURE(named.name);
    CHECK(want != exact);  // it did multiply
    CHECK(relative(want, exact) < 1e-5);
    for (const waste::arch::Tier tier : waste::arch::runnable_tiers()) {
      if (tier == waste::arch::Tier::baseline && waste::arch::runnable_tiers().size() > 1) continue;
      for (const std::size_t chunk : {1u, 5u, 64u}) {
        for (const unsigned threads : {1u, 3u}) {
          options.chunk_tokens = chunk;
          options.exec.kernels = &waste::kernels::kernel_table(tier);
          options.exec.threads = threads;
          options.exec.precision = waste::kernels::Precision::split8;
          CHECK(all_logits(open(dir, options, threads == 1 ? 1 : 5)) == want);
        }
      }
    }
    // Calls of two and more, then one token at a time: those use tables.
    options = {};
    options.fast_prompt = true;
    const TextModel model = open(dir, options);
    Session session = model.start(64), plain = model.start(64);
    const std::size_t vocab = model.config().vocab_size;
    Floats got(15 * vocab);
    model.forward(session, {tokens.data(), 2}, {got.data(), 2, vocab});
    model.forward(session, {tokens.data() + 2, 13}, {got.data() + 2 * vocab, 13, vocab});
    CHECK(std::equal(got.begin(), got.end(), want.begin()));
    const TextModel tables = open(dir);
    Floats one(vocab), other(vocab);
    model.forward(plain, {tokens.data(), 1}, {one.data(), 1, vocab});
    Session first = tables.start(64);
    tables.forward(first, {tokens.data(), 1}, {other.data(), 1, vocab});
    CHECK(one == other);
  }
}

TEST_CASE("a damaged record ends the pass with its name, and the session can start again") {
  const Named named{"damage", TinySpec::vq3r()};
  const fs::path dir = write(named);
  const Floats want = all_logits(open(dir));
  auto tiny = waste::test::make_tiny(named.spec);
  for (std::uint32_t e = 0; e < named.spec.experts; ++e) {
    tiny.bank(3)[e * tiny.record_bytes() + 100] ^= 0x10;  // an index of every expert of layer 3
  }
  tiny.write(dir);
  const TextModel model = open(dir, {}, 6, true);
  Session session = model.start(64);
  for (int i = 0; i < 2; ++i) {
    try {
      model.logits_after(session, tokens);
      FAIL("a wrong checksum was answered");
    } catch (const Error& e) {
      REQUIRE(e.code() == waste::Errc::checksum);
      REQUIRE(e.fault().layer == 3);
      REQUIRE(std::string(e.what()).find("of layer 3") != std::string::npos);
    }
    REQUIRE(session.broken());
    REQUIRE_THROWS_AS(model.logits_after(session, tokens), Error);  // not from half a state
    session.reset();
    REQUIRE_FALSE(session.broken());
  }
  waste::test::make_tiny(named.spec).write(dir);  // repaired: a new model answers as before
  REQUIRE(all_logits(open(dir, {}, 6, true)) == want);
}
