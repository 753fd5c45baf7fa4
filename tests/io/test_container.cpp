// Opening and reading containers: every format gives back the numbers it was built from.
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/core/parallel.hpp"
#include "waste/io/container.hpp"

namespace {

using namespace waste;
using test::TinyContainer;
using test::TinySpec;

struct Case {
  const char* name;
  TinySpec spec;
};

std::vector<Case> cases() {
  std::vector<Case> out = {{"vq3r", TinySpec::vq3r()},
                           {"vq2r", TinySpec::vq2r()},
                           {"vq4p", TinySpec::vq4p()},
                           {"k3", TinySpec::kimi_k3()}};
  TinySpec s = TinySpec::vq2r();
  s.record_fmt = 4;  // as the C engine's converter labels them
  s.trunk_fmt = 7;
  out.push_back({"vq2r labelled 4, Q3G trunk", s});
  s = TinySpec::vq4p();
  s.index_block = 0;
  s.trunk_fmt = 1;
  out.push_back({"vq4p row-major, F16 trunk", s});
  s = TinySpec{};
  s.index_block = 0;
  s.trunk_fmt = 2;
  out.push_back({"vq3r row-major, Q8G trunk", s});
  s = TinySpec{};
  s.stages = 5;
  s.entries = 100;
  s.trunk_threshold = ~std::uint64_t{0};
  out.push_back({"five stages of 100 entries, F32 trunk", s});
  s = TinySpec::vq4p();
  s.k3 = true;
  s.hidden = 136;
  s.entries = 33;
  out.push_back({"k3 vq4p of 33 entries", s});
  return out;
}

TinyContainer make(const Case& c, const std::filesystem::path& dir) {
  TinyContainer tiny = test::make_tiny(c.spec);
  tiny.write(dir);
  return tiny;
}

TEST_CASE("every expert of every format is read back exactly", "[container]") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const auto dir = test::scratch_dir("container");
    const TinyContainer tiny = make(c, dir);
    OpenOptions options;
    options.verify_records = waste::io::Verify::always;
    const Container container = Container::open(dir, options);
    REQUIRE(container.banks().size() == 3);
    CHECK(container.directory() == dir);
    for (std::size_t slot = 0; slot < 3; ++slot) {
      const auto& layer = tiny.layers[slot];
      const io::ExpertBank& bank = container.bank(LayerId{layer.layer});
      CHECK(to_index(bank.layer()) == layer.layer);
      CHECK(bank.experts() == c.spec.experts);
      CHECK(bank.record_bytes() == tiny.record_bytes());
      for (std::uint32_t e = 0; e < c.spec.experts; ++e) {
        const Expert expert = bank.read(ExpertId{e});
        CHECK(reinterpret_cast<std::uintptr_t>(expert.record().data()) % 4096 == 0);
        const VqMatrix* matrices[] = {&expert.gate(), &expert.up(), &expert.down()};
        for (std::size_t k = 0; k < 3; ++k) {
          const VqMatrix& m = *matrices[k];
          const test::TinyMatrix& want = layer.experts[e][k];
          REQUIRE(m.rows() == want.rows);
          REQUIRE(m.cols() == want.cols);
          std::size_t wrong = 0;
          for (std::size_t r = 0; r < m.rows(); ++r) {
            wrong += static_cast<double>(m.scale(r)) != test::half_value(want.scale[r]);
            for (std::size_t v = 0; v < m.positions(); ++v) {
              for (std::size_t s = 0; s < c.spec.stages; ++s) {
                wrong +=
                    m.index(r, v, s) != want.index[(r * m.positions() + v) * c.spec.stages + s];
              }
            }
          }
          CHECK(wrong == 0);
          CHECK(reinterpret_cast<std::uintptr_t>(m.codebooks) % 64 == 0);
          for (std::size_t s = 0; s < c.spec.stages; ++s) {
            for (std::size_t i = 0; i < 8 * m.table_entries(); ++i) {
              const std::size_t from = (k * c.spec.stages + s) * c.spec.entries * 8 + i;
              const double value =
                  i < 8 * c.spec.entries ? test::half_value(layer.books[from]) : 0.0;
              wrong += static_cast<double>(m.codebooks[s * 8 * m.table_entries() + i]) != value;
            }
          }
          CHECK(wrong == 0);
        }
      }
    }
  }
}

double code_of(const TrunkMatrix& m, std::size_t r, std::size_t c) {
  const std::uint64_t row = format::trunk_row_bytes(m.fmt, m.cols());
  const std::uint8_t* p = m.payload + r * row;
  switch (m.fmt) {
    case format::Fmt::f32:
      return static_cast<double>(load_le<float>(p + 4 * c));
    case format::Fmt::f16:
      return test::half_value(load_le<std::uint16_t>(p + 2 * c));
    case format::Fmt::q8g:
      return static_cast<std::int8_t>(p[c]);
    case format::Fmt::q4g:
      return static_cast<int>(p[c / 2] >> (c % 2 * 4) & 15) - 8;
    default: {
      int code = 0;
      for (std::size_t b = 0; b < 3; ++b) {
        const std::size_t bit = 3 * c + b;
        code |= (p[bit / 8] >> bit % 8 & 1) << b;
      }
      return code - 4;
    }
  }
}

double value_of(const TrunkMatrix& m, std::size_t r, std::size_t c) {
  if (!format::is_grouped(m.fmt)) return code_of(m, r, c);
  return code_of(m, r, c) *
         test::half_value(load_le<std::uint16_t>(m.scales + 2 * (r * m.groups() + c / 128)));
}

TEST_CASE("every trunk tensor of every format is read back", "[container][trunk]") {
  for (const Case& c : cases()) {
    INFO(c.name);
    const auto dir = test::scratch_dir("trunk");
    const TinyContainer tiny = make(c, dir);
    const Container container = Container::open(dir);
    const io::Trunk& trunk = container.trunk();
    const std::string embedding = io::embedding_name(container.manifest());
    std::uint64_t resident = 0;
    for (const test::TinyTensor& t : tiny.tensors) {
      const bool vision = t.name.starts_with("vision") || t.name.starts_with("mm_");
      INFO(t.name);
      CHECK(trunk.contains(t.name));
      CHECK(trunk.is_resident(t.name) == (!vision && t.name != embedding));
      const io::LoadedTensor loaded = trunk.load(t.name);
      const TrunkMatrix m = trunk.is_resident(t.name) ? trunk.tensor(t.name) : loaded.view();
      if (trunk.is_resident(t.name)) resident += tiny_trunk_bytes(t).size();
      CHECK(reinterpret_cast<std::uintptr_t>(m.payload) % 64 == 0);
      REQUIRE(m.rows() * m.cols() == t.values.size());
      REQUIRE(m.cols() == t.shape.back());
      REQUIRE(static_cast<int>(m.fmt) == t.fmt);
      const test::Bytes want = tiny_trunk_bytes(t);
      const std::size_t payload = m.rows() * format::trunk_row_bytes(m.fmt, m.cols());
      CHECK(
          std::equal(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(payload), m.payload));
      if (m.scales != nullptr) {
        CHECK(
            std::equal(want.begin() + static_cast<std::ptrdiff_t>(payload), want.end(), m.scales));
      }
      // The decoded values are near what was quantized: half a step of the format.
      // The scale is rounded to f16, which moves a code by up to 2^-11 of the largest value.
      const double steps = t.fmt == 2 ? 127 : t.fmt == 3 ? 7 : 3;
      const double step = t.fmt == 0 ? 0 : t.fmt == 1 ? 0x1p-11 : 0.5 / steps + 0x1p-10;
      double most = 0, off = 0;
      for (std::size_t i = 0; i < t.values.size(); ++i) {
        most = std::max(most, std::fabs(static_cast<double>(t.values[i])));
      }
      for (std::size_t i = 0; i < t.values.size(); ++i) {
        off = std::max(off, std::fabs(value_of(m, i / m.cols(), i % m.cols()) -
                                      static_cast<double>(t.values[i])));
      }
      CHECK(off <= step * most);
      if (t.fmt == 0 && trunk.is_resident(t.name)) {
        const auto values = trunk.values(t.name);
        CHECK(std::equal(values.begin(), values.end(), t.values.begin(), t.values.end()));
      }
    }
    CHECK(trunk.resident_bytes() == resident);
    CHECK(io::Trunk::resident_bytes(container.manifest()) == resident);
  }
}

TEST_CASE("rows read on use equal the loaded tensor's", "[container][trunk]") {
  for (const Case& c : cases()) {
    const auto dir = test::scratch_dir("rows");
    make(c, dir);
    const Container container = Container::open(dir);
    const std::string name = io::embedding_name(container.manifest());
    const io::LoadedTensor whole = container.trunk().load(name);
    AlignedBuffer<std::uint8_t> buffer;
    for (const std::uint64_t r : {0u, 1u, 100u, 271u}) {
      const TrunkMatrix row = container.trunk().read_row(name, r, buffer);
      REQUIRE(row.rows() == 1);
      REQUIRE(row.cols() == whole.view().cols());
      for (std::size_t i = 0; i < row.cols(); ++i) {
        REQUIRE(value_of(row, 0, i) == value_of(whole.view(), r, i));
      }
    }
    try {
      container.trunk().read_row(name, 272, buffer);
      FAIL("row 272 of 272");
    } catch (const Error& e) {
      CHECK(e.code() == Errc::out_of_range);
      CHECK(std::string(e.fault().field) == "row");
    }
  }
}

TEST_CASE("what is asked wrongly is said", "[container]") {
  const auto dir = test::scratch_dir("asked");
  test::make_tiny(TinySpec{}).write(dir);
  const Container container = Container::open(dir);
  const auto code = [](auto f) {
    try {
      f();
    } catch (const Error& e) {
      CHECK_FALSE(e.file().empty());
      return e.code();
    }
    return Errc::ok;
  };
  CHECK(code([&] { container.bank(LayerId{0}); }) == Errc::out_of_range);
  CHECK(code([&] { container.bank(LayerId{4}); }) == Errc::out_of_range);
  CHECK(code([&] { container.bank(LayerId{0xffffffffu}); }) == Errc::out_of_range);
  const io::ExpertBank& bank = container.bank(LayerId{1});
  CHECK(code([&] { bank.read(ExpertId{5}); }) == Errc::out_of_range);
  CHECK(code([&] { container.trunk().tensor("nothing"); }) == Errc::missing);
  CHECK(code([&] { container.trunk().load("nothing"); }) == Errc::missing);
  CHECK(code([&] { container.trunk().tensor("model.embed_tokens.weight"); }) == Errc::bad_argument);
  CHECK(code([&] { container.trunk().values("lm_head.weight"); }) == Errc::unsupported);
  AlignedBuffer<std::uint8_t> record(bank.record_bytes());
  CHECK(bank.try_read(ExpertId{4}, record.span(), true).ok());
  CHECK(bank.try_read(ExpertId{5}, record.span(), true).code == Errc::out_of_range);
  CHECK(bank.try_read(ExpertId{0}, record.span().first(48), true).code == Errc::bad_argument);
  CHECK(bank.check_record(ExpertId{0}, record.span().first(0), true).code == Errc::bad_argument);
  CHECK(container.codebooks().of(1, format::Kind::gate) == nullptr);
  CHECK(container.codebooks().of(9, format::Kind::down) != nullptr);
}

TEST_CASE("direct reads give the same bytes and want aligned memory", "[container]") {
  const auto dir = test::scratch_dir("direct");
  const TinyContainer tiny = make({"", TinySpec{}}, dir);
  OpenOptions options;
  options.direct_io = true;
  options.verify_records = waste::io::Verify::always;
  const Container container = Container::open(dir, options);
  const io::ExpertBank& bank = container.bank(LayerId{2});
  if (!bank.file().direct()) WARN("the file system of the temporary folder has no direct reads");
  const Expert expert = bank.read(ExpertId{3});
  const auto& bytes = tiny.files.at("experts-L2.bin");
  CHECK(std::equal(expert.record().begin(), expert.record().end(),
                   bytes.begin() + static_cast<std::ptrdiff_t>(3 * bank.record_bytes())));
  AlignedBuffer<std::uint8_t> buffer(bank.record_bytes() + 512);
  const Fault f = bank.try_read(ExpertId{0}, buffer.span().subspan(512, bank.record_bytes()), true);
  CHECK(f.code == (bank.file().direct() ? Errc::bad_argument : Errc::ok));
}

TEST_CASE("a listing needs no resident trunk", "[container]") {
  const auto dir = test::scratch_dir("listing");
  test::make_tiny(TinySpec{}).write(dir);
  OpenOptions options;
  options.resident_trunk = false;
  const Container container = Container::open(dir, options);
  CHECK(container.trunk().resident_bytes() == 0);
  CHECK_FALSE(container.trunk().is_resident("lm_head.weight"));
  CHECK(container.trunk().load("lm_head.weight").view().rows() == 272);
}

TEST_CASE("an expert outlives its container, moved or not", "[container]") {
  const auto dir = test::scratch_dir("outlive");
  const TinyContainer tiny = make({"", TinySpec{}}, dir);
  Expert kept;
  {
    const Container container = Container::open(dir);
    Expert expert = container.bank(LayerId{3}).read(ExpertId{2});
    kept = std::move(expert);
  }
  const VqMatrix& m = kept.down();
  const auto want = tiny.weights(2, 2, 2);
  double worst = 0;
  for (std::size_t r = 0; r < m.rows(); ++r) {
    for (std::size_t c = 0; c < m.cols(); ++c) {
      double sum = 0;
      for (std::size_t s = 0; s < 3; ++s) {
        sum += static_cast<double>(m.codebooks[(s * 256 + m.index(r, c / 8, s)) * 8 + c % 8]);
      }
      worst = std::max(worst,
                       std::fabs(sum * static_cast<double>(m.scale(r)) - want[r * m.cols() + c]));
    }
  }
  CHECK(worst == 0.0);
}

TEST_CASE("many threads read one container", "[container][threads]") {
  const auto dir = test::scratch_dir("threads");
  const TinyContainer tiny = make({"", TinySpec{}}, dir);
  OpenOptions options;
  options.verify_records = waste::io::Verify::always;
  const Container container = Container::open(dir, options);
  std::vector<int> same(60, 0);
  parallel_for(60, 4, [&](std::size_t i) {
    const auto layer = static_cast<std::uint32_t>(1 + i % 3);
    const auto e = static_cast<std::uint32_t>(i % 5);
    const Expert expert = container.bank(LayerId{layer}).read(ExpertId{e});
    const auto& bytes = tiny.files.at("experts-L" + std::to_string(layer) + ".bin");
    same[i] = std::equal(expert.record().begin(), expert.record().end(),
                         bytes.begin() + static_cast<std::ptrdiff_t>(e * expert.record().size()));
    AlignedBuffer<std::uint8_t> row;
    same[i] += container.trunk().read_row("model.embed_tokens.weight", i, row).rows() == 1;
  });
  CHECK(same == std::vector<int>(60, 2));
}

TEST_CASE("containers in the world open and every record checks", "[container][shared]") {
  const auto shared = test::shared_dir();
  if (shared.empty()) {
    WARN("skipped: WASTE_SHARED is not set");
    return;
  }
  const struct {
    const char* name;
    std::uint32_t stages, index_bits;
    std::size_t rows, cols;
  } expected[] = {{"k3.waste", 3, 8, 64, 96},
                  {"vq2r.waste", 2, 8, 72, 160},
                  {"vq3r.waste", 3, 8, 72, 160},
                  {"vq4p.waste", 4, 6, 72, 160}};
  for (const auto& x : expected) {
    INFO(x.name);
    OpenOptions options;
    options.verify_records = waste::io::Verify::always;
    const Container container = Container::open(shared / "interop" / x.name, options);
    CHECK(container.manifest().expert_quant.stages == x.stages);
    CHECK(container.manifest().expert_quant.index_bits == x.index_bits);
    for (const io::ExpertBank& bank : container.banks()) {
      for (std::uint32_t e = 0; e < bank.experts(); ++e) {
        const Expert expert = bank.read(ExpertId{e});
        CHECK(expert.gate().rows() == x.rows);
        CHECK(expert.gate().cols() == x.cols);
      }
    }
  }
}

}  // namespace
