// Containers of another engine's converter: our logits against that engine's and the reference's.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/oracle.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"
#include "waste/model/sampler.hpp"

namespace fs = std::filesystem;
using Floats = std::vector<float>;
using Tokens = std::vector<std::uint32_t>;
using waste::Container;
using waste::TextModel;
using waste::model::ContainerWeights;
using waste::model::ModelOptions;

namespace {

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}
Floats read_floats(const fs::path& path) {
  const std::string bytes = read(path);
  Floats out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}
double relative(const Floats& got, const Floats& want) {
  REQUIRE(got.size() == want.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += std::pow(double(got[i]) - want[i], 2);
    norm += std::pow(double(want[i]), 2);
  }
  return std::sqrt(error / norm);
}

TextModel open(const fs::path& dir, bool compat, std::uint64_t cache_bytes = 1 << 20) {
  const Container container = Container::open(dir);
  waste::engine::CacheOptions cache;
  cache.budget_bytes = cache_bytes;
  ModelOptions options;
  if (compat) options.use_compat_epsilons(container.model());
  return TextModel(std::make_shared<ContainerWeights>(container, cache), options);
}

fs::path interop() {
  const fs::path shared = waste::test::shared_dir();
  if (shared.empty()) WARN("SKIPPED: WASTE_SHARED is not set; no containers of another engine");
  return shared.empty() ? shared : shared / "interop";
}

}  // namespace

TEST_CASE("another engine's logits and greedy continuations are met") {
  const fs::path dir = interop();
  if (dir.empty()) return;
  // What is left is the other engine's: it flushes subnormal codebook entries (k3) and looks VQ4P
  // up in an int8 table, after which random weights part ways within a few tokens.
  struct Bound {
    const char* name;
    double relative;
    std::size_t greedy;
  };
  for (const Bound& b : {Bound{"vq3r", 1e-5, 7}, Bound{"vq2r", 1e-5, 7}, Bound{"k3", 1e-4, 7},
                         Bound{"vq4p", 0.1, 3}}) {
    CAPTURE(b.name);
    const auto expected =
        nlohmann::json::parse(read(dir / "expected" / (std::string(b.name) + ".json")));
    const Tokens tokens = expected["tokens"].get<Tokens>();
    const TextModel model = open(dir / (std::string(b.name) + ".waste"), true);
    waste::Session session = model.start(64);
    Floats logits = model.logits_after(session, tokens);
    const double error =
        relative(logits, read_floats(dir / "expected" / expected["logits"].get<std::string>()));
    UNSCOPED_INFO(b.name << ": relative difference " << error);
    CHECK(error <= b.relative);
    CHECK(waste::model::Sampler::greedy(logits) == expected["argmax"].get<std::uint32_t>());
    Tokens greedy;
    Tokens want = expected["greedy_after"].get<Tokens>();
    want.resize(b.greedy);
    while (greedy.size() < want.size()) {
      greedy.push_back(waste::model::Sampler::greedy(logits));
      logits = model.logits_after(session, {&greedy.back(), 1});
    }
    CHECK(greedy == want);
  }
}

TEST_CASE("logits on the dequantized weights of containers agree with the reference within 1e-5") {
  const fs::path dir = interop();
  if (dir.empty()) return;
  if (waste::test::numpy_python().empty()) {
    WARN("SKIPPED: no Python with NumPy to run the reference");
    return;
  }
  const Tokens tokens = {1, 17, 42, 300, 5, 99, 256, 311, 7, 23, 450, 2, 88, 64, 31};
  std::string list;
  for (const auto t : tokens) list += (list.empty() ? "" : ",") + std::to_string(t);
  const fs::path scratch = waste::test::scratch_dir("interop");
  for (const char* name : {"vq3r", "vq2r", "vq4p", "k3"}) {
    CAPTURE(name);
    const fs::path container = dir / (std::string(name) + ".waste");
    const TextModel model = open(container, false);
    waste::Session session = model.start(tokens.size());
    const Floats logits = model.logits_after(session, tokens);
    const fs::path out = scratch / "reference.f32";
    REQUIRE(waste::test::run_oracle("container_logits.py", "'" + container.string() +
                                                               "' --tokens " + list + " --out '" +
                                                               out.string() + "'") == 0);
    const double error = relative(logits, read_floats(out));
    UNSCOPED_INFO(name << ": relative difference " << error);
    CHECK(error <= 1e-5);
  }
}

TEST_CASE("a container's logits do not depend on the cache") {
  const fs::path dir = interop();
  if (dir.empty()) return;
  const Tokens tokens = {1, 17, 42, 300, 5, 99, 256, 311, 7, 23, 450, 2, 88, 64, 31};
  const fs::path container = dir / "k3.waste";
  const TextModel large = open(container, false, 1 << 24);
  waste::Session a = large.start(64);
  const Floats want = large.logits_after(a, tokens);
  const std::uint64_t record = Container::open(container).banks().front().record_bytes();
  for (const std::uint64_t slots : {1u, 2u, 3u, 5u}) {
    const TextModel small = open(container, false, slots * record);
    waste::Session b = small.start(64);
    CAPTURE(slots);
    REQUIRE(small.logits_after(b, tokens) == want);
    const auto& weights = dynamic_cast<const ContainerWeights&>(small.weights());
    REQUIRE(weights.cache().held_bytes() <= slots * record);
    REQUIRE(weights.cache().counters().misses > 0);
  }
}
