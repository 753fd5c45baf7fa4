// Synthetic containers: real shapes, well-formed to the last byte, the same for a seed, and usable.
#include <cmath>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/convert/synthetic.hpp"
#include "waste/io/audit.hpp"
#include "waste/io/file.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"

namespace fs = std::filesystem;
using waste::Container;
using waste::Errc;
using waste::Error;
using waste::convert::SyntheticOptions;
using waste::convert::SyntheticShape;
using waste::test::code_of;

namespace {

SyntheticOptions small(std::uint64_t seed, unsigned jobs) {
  SyntheticOptions o;
  o.layers = 2;
  o.experts = 3;
  o.vocab = 300;
  o.seed = seed;
  o.jobs = jobs;
  return o;
}

bool same_files(const fs::path& a, const fs::path& b) {
  for (const char* name : {"manifest.json", "trunk.bin", "codebooks.bin", "experts-L1.bin"}) {
    const auto limit = std::uint64_t{1} << 30;
    if (waste::io::read_text(a / name, limit) != waste::io::read_text(b / name, limit))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("shapes are the released models'") {
  SyntheticOptions o;
  auto c = waste::format::parse_model_config(waste::convert::synthetic_config(o), "config");
  CHECK(c.num_hidden_layers == 27);
  CHECK(c.num_experts == 256);
  CHECK(c.hidden_size == 2304);
  std::vector<std::uint32_t> mla;
  for (std::uint32_t l = 0; l < 27; ++l) {
    if (c.attention[l] == waste::format::AttentionKind::mla) mla.push_back(l + 1);
  }
  CHECK(mla == std::vector<std::uint32_t>{4, 8, 12, 16, 20, 24, 27});  // as released
  waste::format::RecordLayout layout;
  REQUIRE_FALSE(waste::format::derive_layout(waste::format::vq3r, c.expert_shape(), layout));
  CHECK(layout.record_bytes == 2666496);  // docs/format.md, a record
  o.shape = SyntheticShape::k3;
  c = waste::format::parse_model_config(waste::convert::synthetic_config(o), "config");
  CHECK(c.num_hidden_layers == 93);
  CHECK(c.num_experts == 896);
  REQUIRE_FALSE(waste::format::derive_layout(waste::format::vq4p, c.expert_shape(), layout));
  CHECK(layout.record_bytes == 12406784);
  CHECK(std::count(c.attention.begin(), c.attention.end(), waste::format::AttentionKind::kda) ==
        69);
  o.layers = 1;
  CHECK(code_of([&] { waste::convert::synthetic_config(o); }) == Errc::out_of_range);
}

TEST_CASE("a synthetic container is whole, repeatable, and answers with finite numbers") {
  const fs::path a = waste::test::scratch_dir("synthetic-a"),
                 b = waste::test::scratch_dir("synthetic-b"),
                 other = waste::test::scratch_dir("synthetic-c");
  waste::convert::write_synthetic(a, small(7, 1));
  waste::convert::write_synthetic(b, small(7, 2));
  waste::convert::write_synthetic(other, small(8, 1));
  CHECK(same_files(a, b));
  CHECK_FALSE(same_files(a, other));
  CHECK(code_of([&] { waste::convert::write_synthetic(a, small(7, 1)); }) == Errc::exists);

  const Container c = Container::open(a);
  std::string found;
  waste::io::AuditSink sink;
  sink.found = [&](const Error& e) { found += std::string(e.what()) + "\n"; };
  for (const auto& bank : c.banks()) waste::io::audit_bank(bank, sink);
  waste::io::audit_codebooks(c, sink);
  waste::io::audit_trunk(c, sink);
  CHECK(found == "");

  waste::engine::CacheOptions cache;
  cache.budget_bytes = 3 * c.banks().front().record_bytes();
  const waste::TextModel model(std::make_shared<waste::model::ContainerWeights>(c, cache));
  waste::Session session = model.start(4);
  const std::vector<std::uint32_t> tokens = {5, 299, 17};
  const auto logits = model.logits_after(session, tokens);
  double norm = 0;
  for (const float v : logits) norm += double(v) * v;
  REQUIRE(std::isfinite(norm));
  // Every matrix keeps the size of its input: logits have deviation one, give or take.
  CHECK(norm / static_cast<double>(logits.size()) > 0.05);
  CHECK(norm / static_cast<double>(logits.size()) < 20.0);
}
