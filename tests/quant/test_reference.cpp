#include "support/catch.hpp"
#include "support/golden.hpp"
#include "waste/core/aligned_buffer.hpp"
#include "waste/quant/expert.hpp"
#include "waste/quant/reference.hpp"

using namespace waste;

namespace {

std::size_t count(const test::Golden& g, const std::string& formula) {
  return std::stoul(g.metadata.at(formula + "/count"));
}

}  // namespace

TEST_CASE("the reference decodes grouped formats as the golden files do", "[quant][reference]") {
  const auto g = test::read_golden("quantizers");
  const std::pair<std::string, format::Fmt> formats[] = {
      {"q8g", format::Fmt::q8g}, {"q4g", format::Fmt::q4g}, {"q3g", format::Fmt::q3g}};
  for (const auto& [formula, fmt] : formats) {
    for (std::size_t n = 0; n < count(g, formula); ++n) {
      const std::string at = formula + "." + std::to_string(n) + "/";
      INFO(at);
      const auto payload = g.get<std::uint8_t>(at + "payload");
      const auto& scales = g[at + "scales"].bytes;
      const auto& shape = g[at + "y"].shape;
      const auto want = g.get<float>(at + "y");
      const TrunkMatrix w{fmt, payload.data(), scales.data(), shape[0], shape[1]};
      REQUIRE(payload.size() == shape[0] * format::trunk_row_bytes(fmt, shape[1]));
      std::vector<float> got(want.size());
      quant::reference::dequantize(w, MatrixView<float>(got.data(), shape[0], shape[1]));
      CHECK(got == want);
    }
  }
}

TEST_CASE("the reference reconstructs VQ matrices as the golden files do", "[quant][reference]") {
  const auto g = test::read_golden("quantizers");
  for (std::size_t n = 0; n < count(g, "vq"); ++n) {
    const std::string at = "vq." + std::to_string(n) + "/";
    INFO(at);
    const auto& shape = g[at + "index"].shape;
    const std::size_t rows = shape[0], positions = shape[1], stages = shape[2];
    const auto index = g.get<std::uint8_t>(at + "index");
    const auto books = g.get<std::uint16_t>(at + "books");
    const auto want = g.get<float>(at + "w");
    format::ExpertQuant quant = format::vq3r;
    if (g.metadata.at("vq." + std::to_string(n) + "/index_bits") == "6") quant = format::vq4p;
    quant.stages = static_cast<std::uint32_t>(stages);
    std::vector<float> codebooks(books.size());
    for (std::size_t i = 0; i < books.size(); ++i) codebooks[i] = f16_to_f32(books[i]);
    for (const std::uint32_t block : {0u, 64u}) {
      quant.index_block = block;
      const format::IndexLayout layout(quant, rows, 8 * positions);
      std::vector<std::uint8_t> bytes(layout.bytes());
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t v = 0; v < positions; ++v) {
          const std::uint8_t* from = index.data() + (r * positions + v) * stages;
          std::uint8_t* to = bytes.data() + layout.offset(r, v);
          if (quant.index_bits == 6) {
            const auto packed = format::pack6(from);
            std::copy(packed.begin(), packed.end(), to);
          } else {
            std::copy(from, from + stages, to);
          }
        }
      }
      const VqMatrix w{
          bytes.data(), g[at + "scale"].bytes.data(), codebooks.data(), rows, 8 * positions, quant};
      std::vector<float> got(want.size());
      quant::reference::dequantize(w, MatrixView<float>(got.data(), rows, 8 * positions));
      CHECK(got == want);

      const auto x = g.get<float>(at + "x");
      const auto y = g.get<double>(at + "y"), magnitude = g.get<double>(at + "magnitude");
      std::vector<double> product(rows);
      quant::reference::matvec(w, x, product);
      for (std::size_t r = 0; r < rows; ++r) {
        CHECK(std::abs(product[r] - y[r]) <= 1e-13 * magnitude[r]);
        CHECK(quant::reference::magnitude(w, x, r) == Approx(magnitude[r]).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("an expert's views lie where the record layout says", "[quant][expert]") {
  const auto g = test::read_golden("quantizers");
  for (std::size_t n = 0; n < count(g, "record"); ++n) {
    const std::string at = "record." + std::to_string(n) + "/";
    INFO(at);
    const auto number = [&](const char* key) {
      return static_cast<std::uint32_t>(std::stoul(g.metadata.at(at + key)));
    };
    format::ExpertQuant quant;
    quant.fmt = static_cast<format::Fmt>(number("fmt"));
    quant.stages = number("stages");
    quant.index_bits = number("index_bits");
    quant.index_block = number("index_block");
    quant.entries = 1u << quant.index_bits;
    format::RecordLayout layout;
    REQUIRE(format::derive_layout(quant, {72, 40}, layout).ok());
    const auto record = g.get<std::uint8_t>(at + "record");
    REQUIRE(record.size() == layout.record_bytes);
    const float none[8] = {};
    const ExpertView expert = quant::expert_view(layout, record.data(), {none, none, none});
    const std::pair<std::string, const VqMatrix*> matrices[] = {
        {"gate", &expert.gate}, {"up", &expert.up}, {"down", &expert.down}};
    for (const auto& [kind, w] : matrices) {
      const auto index = g.get<std::uint8_t>(at + kind + "_index");
      const auto scale = g.get<std::uint16_t>(at + kind + "_scale");
      std::vector<std::uint8_t> got_index;
      std::vector<float> got_scale, want_scale;
      for (std::size_t r = 0; r < w->rows(); ++r) {
        got_scale.push_back(w->scale(r));
        want_scale.push_back(f16_to_f32(scale.at(r)));
        for (std::size_t v = 0; v < w->positions(); ++v) {
          for (std::size_t s = 0; s < quant.stages; ++s) got_index.push_back(w->index(r, v, s));
        }
      }
      CHECK(got_index == index);
      CHECK(got_scale == want_scale);
    }
  }
}
