// Conversions with a calibration: less output error where it was measured, plain bytes elsewhere,
// the hotlist, and the same bytes whatever the threads and interruptions.
#include <cmath>
#include <cstring>

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/convert/calibration.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"
#include "waste/format/usage_log.hpp"
#include "waste/io/container.hpp"
#include "waste/quant/reference.hpp"

using namespace waste;
using namespace waste::test;
using convert::Calibration;
using convert::ConvertOptions;
using convert::MomentKey;
using convert::Site;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

const fs::path& source() {
  static const fs::path dir = make_source(scratch_dir("source-calibrated"));
  return dir;
}

fs::path fresh(const std::string& name) {
  const fs::path dir = scratch_dir(name);
  fs::remove(dir);
  return dir;
}

/// Inputs in which neighbours go together and a few columns are large.
std::vector<float> inputs(std::size_t count, std::size_t cols, std::uint64_t seed) {
  Numbers numbers(seed);
  std::vector<float> x(count * cols);
  for (std::size_t t = 0; t < count; ++t) {
    float carried = 0;
    for (std::size_t j = 0; j < cols; ++j) {
      carried = 0.9f * carried + numbers.value();
      x[t * cols + j] = carried * (j % 7 == seed % 7 ? 4.0f : 1.0f);
    }
  }
  return x;
}

constexpr std::size_t seen = 400;
// Uses of layer 1 and layer 2; experts 1 and 4 of layer 1 and all but expert 3 of layer 2 unmet.
const std::vector<std::uint64_t> uses = {50, 0, 90, 30, 0, 30, 0, 0, 0, 7, 0, 0};

quant::InputMoments moments(std::size_t cols, std::uint64_t seed) {
  quant::InputMoments m(cols, cols);
  m.add({inputs(seen, cols, seed).data(), seen, cols});
  return m;
}

/// Layer 1 knows inputs of experts, and of expert 2 alone; layer 2 only uses; layer 0 its MLP's.
Calibration calibration() {
  Calibration c;
  const auto checkpoint = convert::Checkpoint::open(source());
  c.config_crc32 = convert::config_identity(checkpoint.container_config());
  c.tokens = 100;
  c.uses = uses;
  c.moments[{1, Site::expert}] = moments(160, 1);
  c.moments[{1, Site::expert_down}] = moments(96, 2);
  c.moments[{1, Site::expert, 2}] = moments(160, 3);
  c.moments[{0, Site::mlp}] = moments(160, 4);
  return c;
}

fs::path file() {
  static const fs::path path = [] {
    const fs::path p = scratch_dir("calibration") / "c.wcal";
    convert::write_calibration(p, convert::Checkpoint::open(source()).model(), calibration());
    return p;
  }();
  return path;
}

ConvertOptions fast(bool calibrated) {
  ConvertOptions o;
  o.quant = format::vq2r;
  o.effort = quant::Effort::fast;
  o.jobs = 2;
  o.codebook_sample = 1;
  o.commit_bytes = 1;
  if (calibrated) o.calibration = file();
  return o;
}

/// |(W - decoded) x|^2 over the inputs of `seed`, the weights taken from the source.
template <class Matrix>
double output_error(const Matrix& decoded, MatrixView<const float> w, std::uint64_t seed) {
  std::vector<float> back(w.rows * w.cols);
  quant::reference::dequantize(decoded, MatrixView<float>(back.data(), w.rows, w.cols));
  const auto x = inputs(seen, w.cols, seed);
  double total = 0;
  for (std::size_t r = 0; r < w.rows; ++r) {
    for (std::size_t t = 0; t < seen; ++t) {
      double y = 0;
      for (std::size_t j = 0; j < w.cols; ++j) {
        y += (static_cast<double>(w(r, j)) - back[r * w.cols + j]) * x[t * w.cols + j];
      }
      total += y * y;
    }
  }
  return total;
}

std::string record(const fs::path& dir, std::uint32_t layer, std::size_t expert) {
  const std::string bank = read_bytes(dir / ("experts-L" + std::to_string(layer) + ".bin"));
  return bank.substr(bank.size() / 6 * expert, bank.size() / 6);
}

}  // namespace

TEST_CASE("hot experts are the fewest that have half of the uses") {
  using Bytes = std::vector<std::uint8_t>;
  const auto hot = [](std::vector<std::uint64_t> u) { return convert::hot_experts(u); };
  CHECK((hot({1, 1, 1, 1}) == Bytes{1, 1, 0, 0}));
  CHECK((hot({1, 5, 1, 1}) == Bytes{0, 1, 0, 0}));
  CHECK((hot({3, 1, 4, 1, 5}) == Bytes{0, 0, 1, 0, 1}));
  CHECK((hot({0, 0}) == Bytes{0, 0}));
  CHECK((hot({}) == Bytes{}));
}

TEST_CASE("a calibration lowers the error of the outputs it saw and leaves the rest alone") {
  const fs::path plain = fresh("plain"), calibrated = fresh("calibrated");
  const auto before = convert::convert(source(), plain, fast(false));
  const auto after = convert::convert(source(), calibrated, fast(true));
  CHECK(before.records_calibrated == 0);
  CHECK(after.records_calibrated == 4);
  CHECK(after.records_written == 12);
  CHECK(after.memory_bytes > before.memory_bytes);
  CHECK(after.error[0].squared_norm > 0);
  CHECK(after.output_error[0].relative_error() < before.error[0].relative_error());

  const auto checkpoint = convert::Checkpoint::open(source());
  const Container a = Container::open(plain), b = Container::open(calibrated);
  for (std::uint32_t e = 0; e < 6; ++e) {
    CAPTURE(e);
    // Layer 2 has no moments, and nothing is known of experts that were never used.
    CHECK(record(plain, 2, e).substr(48) == record(calibrated, 2, e).substr(48));
    CHECK((record(plain, 1, e).substr(48) == record(calibrated, 1, e).substr(48)) ==
          (uses[e] == 0));
    if (uses[e] == 0) continue;
    const auto w = checkpoint.expert(LayerId{1}, ExpertId{e});
    const auto x = a.bank(LayerId{1}).read(ExpertId{e}), y = b.bank(LayerId{1}).read(ExpertId{e});
    const std::uint64_t fed = e == 2 ? 3 : 1;
    const double gate = output_error(y.gate(), w.matrix(format::Kind::gate), fed);
    CHECK(gate < 0.5 * output_error(x.gate(), w.matrix(format::Kind::gate), fed));
    CHECK(output_error(y.up(), w.matrix(format::Kind::up), fed) <
          0.5 * output_error(x.up(), w.matrix(format::Kind::up), fed));
    CHECK(output_error(y.down(), w.matrix(format::Kind::down), 2) <
          0.5 * output_error(x.down(), w.matrix(format::Kind::down), 2));
    if (e != 2) continue;
    // Its own inputs say more than those of all experts together.
    Calibration common = calibration();
    common.moments.erase({1, Site::expert, 2});
    const fs::path path = scratch_dir("common") / "c.wcal", out = fresh("common-out");
    convert::write_calibration(path, checkpoint.model(), common);
    ConvertOptions o = fast(true);
    o.calibration = path;
    convert::convert(source(), out, o);
    CHECK(gate < output_error(Container::open(out).bank(LayerId{1}).read(ExpertId{2}).gate(),
                              w.matrix(format::Kind::gate), 3));
  }

  // The trunk: only the matrices whose inputs are known differ.
  for (const auto& t : a.manifest().trunk) {
    if (t.name == "model.embed_tokens.weight") continue;  // read a row at a time
    const TrunkMatrix p = a.trunk().tensor(t.name), q = b.trunk().tensor(t.name);
    CAPTURE(t.name);
    const bool known = t.name.find("mlp.gate_proj") != std::string::npos ||
                       t.name.find("mlp.up_proj") != std::string::npos;
    CHECK((std::memcmp(p.payload, q.payload, p.rows() * format::trunk_row_bytes(p.fmt, p.cols())) !=
           0) == known);
    if (!known) continue;
    const auto values = checkpoint.tensor(t.name);
    const MatrixView<const float> w(values.data(), p.rows(), p.cols());
    CHECK(output_error(q, w, 4) < 0.6 * output_error(p, w, 4));
  }

  // The hotlist.
  for (std::uint32_t e = 0; e < 6; ++e) {
    CHECK(record(calibrated, 1, e)[9] == (e == 2 || e == 0 ? 4 : 0));
    CHECK(record(calibrated, 2, e)[9] == (e == 3 ? 4 : 0));
    CHECK(record(plain, 1, e)[9] == 0);
  }
  CHECK_FALSE(fs::exists(plain / "usage.waste"));
  const std::string bytes = read_bytes(calibrated / "usage.waste");
  format::UsageLog log;
  REQUIRE(format::parse_usage({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                              b.model(), log)
              .ok());
  CHECK(log.clock == 100);
  REQUIRE(log.entries.size() == 5);
  CHECK(log.entries[0] == format::UsageEntry{1, 2, 90, 100, 0});
  CHECK(log.entries[1] == format::UsageEntry{1, 0, 50, 100, 0});
  CHECK(log.entries[2] == format::UsageEntry{1, 3, 30, 100, 0});
  CHECK(log.entries[4] == format::UsageEntry{2, 3, 7, 100, 0});

  ConvertOptions o = fast(true);  // absmax scales are for equality with other converters
  o.trunk_scale = quant::GroupScale::absmax;
  const fs::path absmax = fresh("absmax"), with = fresh("absmax-calibrated");
  convert::convert(source(), with, o);
  o.calibration.clear();
  convert::convert(source(), absmax, o);
  CHECK(read_bytes(absmax / "trunk.bin") == read_bytes(with / "trunk.bin"));
}

TEST_CASE("calibrated bytes depend on neither threads nor interruptions") {
  const fs::path want = fresh("jobs-1");
  ConvertOptions o = fast(true);
  o.jobs = 1;
  convert::convert(source(), want, o);
  for (const unsigned jobs : {2u, 5u}) {
    const fs::path other = fresh("jobs-n");
    o.jobs = jobs;
    convert::convert(source(), other, o);
    CHECK(folder_difference(want, other) == "");
  }
  struct Stop {};
  const fs::path stopped = fresh("stopped");
  for (int step = 3; step < 40; step += 5) {
    ConvertOptions interrupted = fast(true);
    int left = step;
    interrupted.progress = [&](const convert::ConvertProgress&) {
      if (--left == 0) throw Stop();
    };
    try {
      convert::convert(source(), stopped, interrupted);
      break;
    } catch (const Stop&) {
    }
  }
  if (!fs::exists(stopped / "manifest.json")) convert::convert(source(), stopped, fast(true));
  CHECK(folder_difference(want, stopped) == "");
}

TEST_CASE("an unfinished conversion is not continued with another calibration") {
  const fs::path out = fresh("unfinished");
  ConvertOptions o = fast(true);
  o.layers = {1, 1};
  convert::convert(source(), out, o);
  const auto before = folder_bytes(out);
  const auto refused = [&](const ConvertOptions& other, const char* what) {
    const Error e = failure_of([&] { convert::convert(source(), out, other); });
    CHECK(e.code() == Errc::mismatch);
    CHECK(std::string(e.what()).find(what) != std::string::npos);
    CHECK(folder_bytes(out) == before);
  };
  refused(fast(false), "calibration");
  ConvertOptions other = fast(true);
  other.damping = 0.02;
  refused(other, "damping");
  Calibration c = calibration();
  ++c.tokens;
  other = fast(true);
  other.calibration = scratch_dir("other-calibration") / "c.wcal";
  convert::write_calibration(other.calibration, convert::Checkpoint::open(source()).model(), c);
  refused(other, "calibration");
  CHECK(convert::convert(source(), out, fast(true)).complete);
}

TEST_CASE("a calibration that does not fit is refused before anything is written") {
  const fs::path out = fresh("never");
  ConvertOptions o = fast(true);
  o.calibration = scratch_dir("bad-calibration") / "c.wcal";
  CHECK(failure_of([&] { convert::convert(source(), out, o); }).code() == Errc::not_found);
  Calibration c = calibration();
  ++c.config_crc32;
  convert::write_calibration(o.calibration, convert::Checkpoint::open(source()).model(), c);
  const Error e = failure_of([&] { convert::convert(source(), out, o); });
  CHECK(e.code() == Errc::mismatch);
  CHECK(e.file() == o.calibration.string());
  o = fast(true);
  o.damping = 0;
  CHECK(failure_of([&] { convert::convert(source(), out, o); }).code() == Errc::bad_argument);
  CHECK_FALSE(fs::exists(out));
}
