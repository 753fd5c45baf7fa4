// Gathering calibration: against sums computed here from what the model shows, on any number of
// threads; and the file: round trip, damage, other models.
#include "waste/model/calibrate.hpp"

#include <cstring>
#include <fstream>
#include <memory>

#include <zlib.h>

#include "convert/folder.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/format/manifest.hpp"
#include "waste/model/container_weights.hpp"

namespace fs = std::filesystem;
using namespace waste;
using convert::Calibration;
using convert::CalibrationFile;
using convert::MomentKey;
using convert::Site;
using test::failure_of;
using test::read_bytes;
using test::TinySpec;

namespace {

std::vector<std::uint32_t> some_tokens(std::size_t n) {
  std::vector<std::uint32_t> out(n);
  std::uint32_t state = 7;
  for (auto& t : out) t = ((state = state * 1664525u + 1013904223u) >> 16) % 272;
  return out;
}

TextModel open_tiny(const TinySpec& spec, unsigned threads) {
  const fs::path dir = test::scratch_dir("calibrate");
  test::make_tiny(spec).write(dir);
  const Container container = Container::open(dir);
  engine::CacheOptions cache;
  cache.budget_bytes = 6 * container.banks().front().record_bytes();
  cache.concurrent = threads;
  model::ModelOptions options;
  options.exec.threads = threads;
  return TextModel(std::make_shared<model::ContainerWeights>(container, cache), options);
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

bool same(const quant::InputMoments& a, const quant::InputMoments& b) {
  return a.count() == b.count() && a.block() == b.block() && a.sums().size() == b.sums().size() &&
         std::equal(a.sums().begin(), a.sums().end(), b.sums().begin());
}

std::uint32_t u32_at(const std::string& s, std::size_t at) {
  std::uint32_t v;
  std::memcpy(&v, s.data() + at, 4);
  return v;
}
void set_u32(std::string& s, std::size_t at, std::uint32_t v) { std::memcpy(&s[at], &v, 4); }

}  // namespace

TEST_CASE("sites are named by what their matrices are fed") {
  const auto site = [](const char* name) { return convert::site_of(name); };
  CHECK(site("model.layers.3.self_attn.v_proj.weight")->site == Site::attention);
  CHECK(site("model.layers.3.self_attn.v_proj.weight")->layer == 3);
  CHECK(site("model.layers.12.self_attn.kv_b_proj.weight")->site == Site::latent);
  CHECK(site("model.layers.1.block_sparse_moe.gate.weight")->site == Site::moe);
  CHECK(site("model.layers.1.block_sparse_moe.shared_experts.down_proj.weight")->site ==
        Site::shared_down);
  for (const char* name :
       {"lm_head.weight", "model.embed_tokens.weight", "model.layers.3.input_layernorm.weight",
        "model.layers..self_attn.v_proj.weight", "model.layers.3.self_attn.q_conv1d.weight",
        "model.layers.99999.self_attn.v_proj.weight", "model.layers.3.self_attn.v_proj.bias", ""}) {
    CHECK_FALSE(site(name));
  }
  // Every matrix of a layer has a site, with its columns.
  for (const TinySpec& spec : {TinySpec::vq3r(), TinySpec::kimi_k3()}) {
    const TextModel model = open_tiny(spec, 1);
    const auto sites = convert::calibration_sites(model.config());
    for (const auto& t : format::required_tensors(model.config())) {
      if (t.role != format::RequiredTensor::Role::matrix || !t.name.starts_with("model.layers.")) {
        continue;
      }
      INFO(t.name);
      REQUIRE(site(t.name.c_str()));
      CHECK(sites.at(*site(t.name.c_str())) == t.shape[1]);
    }
    CHECK(sites.at({2, Site::expert_down}) == spec.inter);
    CHECK(sites.at({2, Site::expert}) == spec.width());
  }
}

TEST_CASE("moments and uses are those of what the model shows") {
  for (const TinySpec& spec : {TinySpec::vq3r(), TinySpec::kimi_k3()}) {
    const TextModel model = open_tiny(spec, 2);
    const auto tokens = some_tokens(300);
    model::CalibrateOptions options;
    options.window = 70;  // four windows and twenty tokens
    const Calibration found = model::calibrate(model, tokens, options);
    CHECK(found.tokens == 300);

    // The same windows, seen through an observer of our own.
    std::map<MomentKey, std::vector<double>> sums;
    std::map<MomentKey, std::uint64_t> counts;
    std::vector<std::uint64_t> uses(3 * spec.experts);
    const auto add = [&](const MomentKey& key, std::span<const float> x) {
      auto& s = sums[key];
      s.resize(x.size() * x.size());
      ++counts[key];
      for (std::size_t i = 0; i < x.size(); ++i) {
        for (std::size_t j = 0; j < x.size(); ++j) {
          s[i * x.size() + j] += static_cast<double>(x[i]) * x[j];
        }
      }
    };
    std::map<const void*, MomentKey> trunk;
    for (const char* name :
         {"self_attn.o_proj", "self_attn.q_proj", "self_attn.kv_b_proj", "mlp.up_proj",
          "block_sparse_moe.gate", "block_sparse_moe.shared_experts.down_proj"}) {
      for (std::uint32_t l = 0; l < 4; ++l) {
        const std::string full = "model.layers." + std::to_string(l) + "." + name + ".weight";
        try {
          trunk[model.weights().matrix(full).payload] = *convert::site_of(full);
        } catch (const Error&) {  // this layer has none
        }
      }
    }
    model::Observer observer;
    observer.routing = [&](std::uint32_t l, const nn::Routing& r) {
      for (std::size_t t = 0; t < r.ids.rows; ++t) {
        for (const std::uint32_t e : r.ids.row(t)) ++uses[(l - 1) * spec.experts + e];
      }
    };
    observer.expert_input = [&](std::uint32_t l, ExpertId e, format::Kind kind,
                                std::span<const float> x) {
      const auto layer = static_cast<std::uint16_t>(l);
      const Site site = kind == format::Kind::down ? Site::expert_down : Site::expert;
      add({layer, site}, x);
      add({layer, site, static_cast<std::uint16_t>(to_index(e))}, x);
    };
    observer.trunk_input = [&](const TrunkMatrix& w, MatrixView<const float> x) {
      const auto it = trunk.find(w.payload);
      if (it == trunk.end()) return;
      for (std::size_t t = 0; t < x.rows; ++t) add(it->second, x.row(t));
    };
    Session session = model.start(70);
    for (std::size_t at = 0; at < tokens.size(); at += 70) {
      session.reset();
      model.forward(session, std::span(tokens).subspan(at, std::min<std::size_t>(70, 300 - at)), {},
                    observer);
    }

    CHECK(found.uses == uses);
    std::uint64_t routed = 0;
    for (const std::uint64_t n : uses) routed += n;
    CHECK(routed == 3 * 300 * spec.top_k);
    std::size_t compared = 0;
    for (const auto& [key, want] : sums) {
      CAPTURE(key.layer, static_cast<int>(key.site), key.expert);
      const bool single = key.expert != MomentKey::all;
      if (single && counts[key] < model::least_expert_inputs) {
        CHECK_FALSE(found.moments.count(key));
        continue;
      }
      REQUIRE(found.moments.count(key));
      const quant::InputMoments& m = found.moments.at(key);
      const std::size_t n = m.cols();
      CHECK(m.block() == n);
      REQUIRE(m.count() == counts[key]);
      double worst = 0, scale = 0;
      for (std::size_t i = 0; i < n; ++i) scale = std::max(scale, want[i * n + i]);
      for (std::size_t i = 0; i < n * n; ++i) {
        const double got = m.mean(i / n, i % n) * static_cast<double>(m.count());
        worst = std::max(worst, std::abs(got - want[i]));
      }
      CHECK(scale > 0);
      CHECK(worst <= 1e-12 * scale);
      ++compared;
    }
    CHECK(compared > 15);
    CHECK(found.moments.size() >
          convert::calibration_sites(model.config()).size());  // and some of single experts
  }
}

TEST_CASE("a calibration does not depend on threads; blocks follow the memory") {
  const auto tokens = some_tokens(100);
  const Calibration one = model::calibrate(open_tiny(TinySpec::kimi_k3(), 1), tokens);
  const TextModel model = open_tiny(TinySpec::kimi_k3(), 3);
  const Calibration three = model::calibrate(model, tokens);
  REQUIRE(one.moments.size() == three.moments.size());
  for (const auto& [key, m] : one.moments) CHECK(same(m, three.moments.at(key)));
  CHECK(one.uses == three.uses);

  model::CalibrateOptions o;
  std::uint64_t before = 0;
  for (const std::uint64_t memory : {40000u, 100000u, 400000u, 4000000u}) {
    o.memory_bytes = memory;
    const auto plan = model::plan_calibration(model.config(), o);
    const Calibration found = model::calibrate(model, tokens, o);
    std::uint64_t bytes = 0;
    for (const auto& [key, m] : found.moments) {
      bytes += m.sums().size_bytes();
      CHECK(m.block() ==
            std::min<std::size_t>(m.cols(),
                                  key.expert == MomentKey::all ? plan.block : plan.expert_block));
    }
    CHECK(bytes <= plan.bytes);
    CHECK(plan.bytes <= memory);
    CHECK(plan.block * 1000 + plan.expert_block >= before);
    before = plan.block * 1000 + plan.expert_block;
    // A smaller block keeps the same numbers where it keeps them.
    for (const auto& [key, m] : found.moments) {
      if (key.expert != MomentKey::all) continue;
      const auto& whole = one.moments.at(key);
      CHECK(m.mean(3, 3) == Approx(whole.mean(3, 3)));
      CHECK(m.mean(m.cols() - 1, m.cols() - 1) == Approx(whole.mean(m.cols() - 1, m.cols() - 1)));
    }
  }
  o.memory_bytes = 1000;
  CHECK(failure_of([&] { model::plan_calibration(model.config(), o); }).code() ==
        Errc::over_budget);
  o = {};
  o.trunk = false;
  for (const auto& [key, m] : model::calibrate(model, tokens, o).moments) {
    CHECK((key.site == Site::expert || key.site == Site::expert_down));
  }
  CHECK(failure_of([&] { model::calibrate(model, {}); }).code() == Errc::bad_argument);
}

TEST_CASE("a calibration file gives back what was written, or says what is wrong with it") {
  const TextModel model = open_tiny(TinySpec::vq3r(), 1);
  Calibration found = model::calibrate(model, some_tokens(200));
  found.config_crc32 = 77;
  const fs::path dir = test::scratch_dir("calibration-file"), path = dir / "c.wcal";
  convert::write_calibration(path, model.config(), found);
  const auto open = [&] { return CalibrationFile::open(path, model.config(), 77); };
  const std::string good = read_bytes(path);
  {
    const CalibrationFile file = open();
    CHECK(file.tokens() == 200);
    CHECK(file.keys().size() == found.moments.size());
    for (const auto& [key, m] : found.moments) {
      CHECK(file.has(key));
      CHECK(file.count(key) == m.count());
      CHECK(same(file.moments(key), m));
    }
    CHECK_FALSE(file.has({0, Site::expert}));
    CHECK(file.count({0, Site::expert}) == 0);
    CHECK(failure_of([&] { file.moments({0, Site::expert}); }).code() == Errc::missing);
    CHECK(file.uses(LayerId{2})[4] == found.uses[1 * 5 + 4]);
    CHECK(failure_of([&] { file.uses(LayerId{0}); }).code() == Errc::bad_argument);
    CHECK(failure_of([&] { file.uses(LayerId{4}); }).code() == Errc::bad_argument);
  }
  // The documented layout, by zlib and the formula.
  CHECK(good.substr(0, 4) == "WCAL");
  const std::size_t entries = u32_at(good, 36), table = 48 + 8 * 15 + 32 * entries;
  std::string head = good.substr(0, table);
  set_u32(head, 40, 0);
  CHECK(::crc32(0, reinterpret_cast<const Bytef*>(head.data()), static_cast<uInt>(table)) ==
        u32_at(good, 40));
  CHECK(open().identity() == u32_at(good, 40));
  const std::size_t n = u32_at(good, table - 32 * entries + 8);  // first entry: layer 0, attention
  CHECK(n == 160);
  double first = 0;
  std::memcpy(&first, good.data() + table, 8);
  CHECK(first == found.moments.at({0, Site::attention}).sums()[0]);

  const auto mended = [&](std::string s) {  // the crc of a header and table that were changed
    std::string h = s.substr(0, table);
    set_u32(h, 40, 0);
    set_u32(s, 40,
            static_cast<std::uint32_t>(
                ::crc32(0, reinterpret_cast<const Bytef*>(h.data()), static_cast<uInt>(table))));
    return s;
  };
  const auto refused = [&](Errc code, const std::string& bytes) {
    write_bytes(path, bytes);
    const Error e = failure_of(open);
    INFO(e.what());
    CHECK(e.code() == code);
    CHECK(e.file() == path.string());
  };
  const auto changed = [&](std::size_t at, std::uint32_t value) {
    std::string s = good;
    set_u32(s, at, value);
    return s;
  };
  const std::size_t row = 48 + 8 * 15;
  refused(Errc::truncated, "");
  refused(Errc::truncated, good.substr(0, 47));
  refused(Errc::truncated, good.substr(0, good.size() - 1));
  refused(Errc::truncated, good + "x");
  refused(Errc::bad_magic, changed(0, 1));
  refused(Errc::bad_version, changed(4, 2));
  refused(Errc::checksum, changed(48, 12345));
  refused(Errc::mismatch, mended(changed(24, 78)));
  refused(Errc::mismatch, mended(changed(28, 4)));
  refused(Errc::mismatch, mended(changed(32, 6)));
  refused(Errc::out_of_range, changed(36, 0xffffffffu));
  refused(Errc::checksum, changed(36, static_cast<std::uint32_t>(entries - 1)));
  refused(Errc::bad_field, mended(changed(44, 1)));
  refused(Errc::mismatch, mended(changed(row, 0xffff0009u)));      // layer 9
  refused(Errc::out_of_range, mended(changed(row, 0x00010000u)));  // one expert's attention
  refused(Errc::bad_field, mended(changed(row + 4, 13)));
  refused(Errc::bad_field, mended(changed(row + 4, 0x100)));
  refused(Errc::mismatch, mended(changed(row + 8, 168)));
  refused(Errc::bad_field, mended(changed(row + 12, 0)));
  refused(Errc::bad_field, mended(changed(row + 12, 12)));
  refused(Errc::bad_field, mended(changed(row + 12, 161)));
  refused(Errc::bad_field, mended(changed(row + 28, 1)));
  refused(Errc::truncated, mended(changed(row + 12, 8)));
  {
    std::string s = good;  // two entries in the wrong order
    std::swap_ranges(s.begin() + static_cast<long>(row), s.begin() + static_cast<long>(row + 32),
                     s.begin() + static_cast<long>(row + 32));
    refused(Errc::bad_field, mended(s));
    s = good;
    std::memset(&s[row + 16], 0, 8);  // nothing seen
    refused(Errc::bad_field, mended(s));
  }
  write_bytes(path, good);
  CHECK(failure_of([&] { CalibrationFile::open(path, model.config(), 78); }).code() ==
        Errc::mismatch);
  CHECK(failure_of([&] {
          CalibrationFile::open(path, open_tiny(TinySpec::kimi_k3(), 1).config(), 77);
        }).code() == Errc::mismatch);
  CHECK(failure_of([&] { CalibrationFile::open(dir / "none", model.config(), 77); }).code() ==
        Errc::not_found);

  // Sums: damage is found where they are read, and what no inputs have is refused.
  const MomentKey key{0, Site::attention};
  std::string s = good;
  s[table + 100] = static_cast<char>(s[table + 100] ^ 1);
  write_bytes(path, s);
  CHECK(failure_of([&] { open().moments(key); }).code() == Errc::checksum);
  CHECK(same(open().moments({0, Site::mlp}), found.moments.at({0, Site::mlp})));
  const auto poisoned = [&](double value) {
    s = good;
    std::memcpy(&s[table], &value, 8);
    const std::size_t sums = 8 * 160 * 161 / 2;
    set_u32(s, row + 24,
            static_cast<std::uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(s.data() + table),
                                               static_cast<uInt>(sums))));
    write_bytes(path, mended(s));
    return failure_of([&] { open().moments(key); }).code();
  };
  CHECK(poisoned(-1.0) == Errc::out_of_range);
  CHECK(poisoned(std::numeric_limits<double>::quiet_NaN()) == Errc::out_of_range);

  // Writing: what no model has is refused, and nothing is left.
  Calibration bad = found;
  bad.uses.pop_back();
  CHECK(failure_of([&] { convert::write_calibration(dir / "x", model.config(), bad); }).code() ==
        Errc::bad_argument);
  bad = found;
  bad.moments[{1, Site::mlp}] = found.moments.at({0, Site::mlp});
  CHECK(failure_of([&] { convert::write_calibration(dir / "x", model.config(), bad); }).code() ==
        Errc::bad_argument);
  CHECK(std::distance(fs::directory_iterator(dir), {}) == 1);
}
