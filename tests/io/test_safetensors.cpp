#include "waste/io/safetensors.hpp"

#include <filesystem>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/write_safetensors.hpp"
#include "waste/quant/mxfp4.hpp"

using namespace waste;
using namespace waste::test;
namespace fs = std::filesystem;

namespace {

std::vector<RawTensor> small_tensors() {
  return {{"a", "F32", {2, 3}, bytes_of<float>({1, -2, 3, 4.5f, 1e-45f, 1e38f})},
          {"b", "BF16", {4}, bytes_of<std::uint16_t>({0x3f80, 0xc000, 0x0001, 0x7f7f})},
          {"c", "F16", {3, 1}, bytes_of<std::uint16_t>({0x3c00, 0x0001, 0xfbff})},
          {"d", "U8", {2, 2}, bytes_of<std::uint8_t>({1, 2, 3, 255})},
          {"e", "I64", {1}, bytes_of<std::int64_t>({7})},
          {"f", "F32", {}, bytes_of<float>({8})},
          {"g", "F32", {0, 5}, {}}};
}

fs::path single(const std::string& name, const std::string& bytes) {
  const fs::path dir = scratch_dir(name);
  write_file(dir / "model.safetensors", bytes);
  return dir;
}

}  // namespace

TEST_CASE("a single file is read with its shapes, dtypes and values") {
  const auto dir = single("st-single", safetensors_bytes(small_tensors()));
  const auto st = io::Safetensors::open(dir);
  REQUIRE(st.tensors().size() == 7);
  REQUIRE(st.shards().size() == 1);
  CHECK(st.at("a").shape == std::vector<std::uint64_t>{2, 3});
  CHECK(st.at("f").elements() == 1);
  CHECK(st.at("g").elements() == 0);
  CHECK(st.find("nothing") == nullptr);
  CHECK(failure_of([&] { st.at("nothing"); }).code() == Errc::missing);

  std::vector<float> a(6), b(4), c(3), middle(2);
  st.read_f32(st.at("a"), 0, a);
  CHECK(a == std::vector<float>{1, -2, 3, 4.5f, 1e-45f, 1e38f});
  st.read_f32(st.at("a"), 2, middle);
  CHECK(middle == std::vector<float>{3, 4.5f});
  st.read_f32(st.at("b"), 0, b);
  CHECK(b == std::vector<float>{1.0f, -2.0f, 0x1p-133f, 0x1.fep127f});
  st.read_f32(st.at("c"), 0, c);
  CHECK(c == std::vector<float>{1.0f, 0x1p-24f, -65504.0f});
  std::vector<std::uint8_t> d(3);
  st.read_bytes(st.at("d"), 1, d);
  CHECK(d == std::vector<std::uint8_t>{2, 3, 255});

  const Error wrong = failure_of([&] {
    std::vector<float> x(1);
    st.read_f32(st.at("e"), 0, x);
  });
  CHECK(wrong.code() == Errc::unsupported);
  CHECK(std::string(wrong.what()).find("I64") != std::string::npos);
  CHECK(failure_of([&] { st.read_f32(st.at("a"), 5, middle); }).code() == Errc::bad_argument);
  CHECK(failure_of([&] { st.read_f32(st.at("a"), ~0ull, middle); }).code() == Errc::bad_argument);
  CHECK(failure_of([&] { st.read_bytes(st.at("d"), 2, d); }).code() == Errc::bad_argument);
}

TEST_CASE("a tensor longer than the conversion buffer is read whole") {
  std::vector<std::uint16_t> raw(300001);
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<std::uint16_t>(i * 7 % 0x7f00);
  const auto dir =
      single("st-long", safetensors_bytes({{"x", "BF16", {raw.size()}, bytes_of(raw)}}));
  const auto st = io::Safetensors::open(dir);
  std::vector<float> x(raw.size() - 1);
  st.read_f32(st.at("x"), 1, x);
  bool same = true;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(raw[i + 1]) << 16;
    same = same && std::memcmp(&bits, &x[i], 4) == 0;
  }
  CHECK(same);
}

TEST_CASE("damaged headers are refused with their own code") {
  struct Case {
    const char* what;
    std::string header, data;
    Errc code;
    const char* names;
  };
  const std::string eight(8, 'x');
  const Case cases[] = {
      {"not json", "{\"a\":", eight, Errc::bad_json, ""},
      {"an array", "[]", "", Errc::bad_field, "header"},
      {"duplicate name",
       "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
       "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
       eight, Errc::bad_json, "duplicate"},
      {"gap",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
       eight, Errc::mismatch, "b leaves a gap"},
      {"overlap",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
       eight, Errc::mismatch, "b overlaps"},
      {"leading gap", "{\"a\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[1,8]}}", eight,
       Errc::mismatch, "a leaves a gap"},
      {"left over", "{\"a\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[0,7]}}", eight,
       Errc::mismatch, "after the last"},
      {"past the end", "{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}", eight,
       Errc::truncated, "data_offsets"},
      {"backwards", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,4]}}", eight,
       Errc::bad_field, "data_offsets"},
      {"shape against range", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}",
       eight, Errc::mismatch, "got 8, wanted 12"},
      {"overflow",
       "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}",
       eight, Errc::overflow, "shape"},
      {"wrap to zero hidden by an empty dimension",
       "{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,8]}}",
       eight, Errc::overflow, "shape"},
      {"unknown dtype", "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", eight,
       Errc::unsupported, "F33"},
      {"negative", "{\"a\":{\"dtype\":\"U8\",\"shape\":[-8],\"data_offsets\":[0,8]}}", eight,
       Errc::bad_field, "shape"},
      {"fraction", "{\"a\":{\"dtype\":\"U8\",\"shape\":[8.0],\"data_offsets\":[0,8]}}", eight,
       Errc::bad_field, "shape"},
      {"too many dimensions",
       "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,8],\"data_offsets\":[0,8]}}", eight,
       Errc::bad_field, "shape"},
      {"field missing", "{\"a\":{\"dtype\":\"U8\",\"shape\":[8]}}", eight, Errc::bad_field,
       "exactly"},
      {"field too many", "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8],\"x\":1}}",
       eight, Errc::bad_field, "exactly"},
      {"entry no object", "{\"a\":[]}", "", Errc::bad_field, "a is no object"},
      {"metadata no object", "{\"__metadata__\":1}", "", Errc::bad_field, "__metadata__"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    const auto dir = single("st-bad", safetensors_bytes(c.header, c.data));
    const Error e = failure_of([&] { io::Safetensors::open(dir); });
    INFO(e.what());
    CHECK(e.code() == c.code);
    CHECK(std::string(e.what()).find(c.names) != std::string::npos);
    CHECK(std::string(e.what()).find("model.safetensors") != std::string::npos);
  }
}

TEST_CASE("damaged file sizes are refused without reading what they claim") {
  const std::string good = safetensors_bytes(small_tensors());
  CHECK(failure_of([&] { io::Safetensors::open(single("st-size", "")); }).code() ==
        Errc::truncated);
  CHECK(failure_of([&] { io::Safetensors::open(single("st-size", good.substr(0, 7))); }).code() ==
        Errc::truncated);
  CHECK(failure_of([&] { io::Safetensors::open(single("st-size", good.substr(0, 40))); }).code() ==
        Errc::truncated);
  for (std::size_t cut = 1; cut < 30; ++cut) {
    const auto dir = single("st-size", good.substr(0, good.size() - cut));
    CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::truncated);
  }
  std::string huge = good;
  huge[4] = 1;  // header length beyond 4 GiB
  CHECK(failure_of([&] { io::Safetensors::open(single("st-size", huge)); }).code() ==
        Errc::out_of_range);

  const auto sparse = scratch_dir("st-sparse");
  write_file(sparse / "model.safetensors", good);
  fs::resize_file(sparse / "model.safetensors", std::uintmax_t{10} << 40);
  CHECK(failure_of([&] { io::Safetensors::open(sparse); }).code() == Errc::mismatch);
}

TEST_CASE("shards behind an index must agree with it") {
  const auto t = small_tensors();
  const auto dir = scratch_dir("st-shards");
  const auto fresh = [&] {
    write_sharded(dir, {{"model-1.safetensors", {t[0], t[1]}}, {"model-2.safetensors", {t[2]}}});
  };
  const auto index = dir / "model.safetensors.index.json";
  fresh();
  {
    const auto st = io::Safetensors::open(dir);
    CHECK(st.tensors().size() == 3);
    CHECK(st.shards()[st.at("c").shard].name == "model-2.safetensors");
  }
  fs::remove(dir / "model-2.safetensors");
  {
    const Error e = failure_of([&] { io::Safetensors::open(dir); });
    CHECK(e.code() == Errc::not_found);
    CHECK(e.file().find("model-2.safetensors") != std::string::npos);
  }
  write_file(dir / "model-2.safetensors", safetensors_bytes({t[3]}));
  CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::mismatch);  // d unclaimed
  write_file(dir / "model-2.safetensors", safetensors_bytes({t[2], t[0]}));
  CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::mismatch);  // a twice
  write_file(dir / "model-2.safetensors", safetensors_bytes(std::vector<RawTensor>{}));
  {
    const Error e = failure_of([&] { io::Safetensors::open(dir); });
    CHECK(e.code() == Errc::missing);
    CHECK(std::string(e.what()).find("c, which the index") != std::string::npos);
  }
  for (const char* name : {"../model-1.safetensors", "", ".", "..", "a/b", "a\\b"}) {
    fresh();
    std::string escaped(name);
    if (escaped == "a\\b") escaped = "a\\\\b";
    write_file(index, "{\"weight_map\":{\"a\":\"" + escaped + "\"}}");
    INFO(name);
    CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::bad_field);
  }
  write_file(index, "{\"weight_map\":{\"a\":3}}");
  CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::bad_field);
  write_file(index, "{\"weight_map\":[]}");
  CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::bad_field);
  write_file(index, "{}");
  CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::missing);
  CHECK(failure_of([&] { io::Safetensors::open(scratch_dir("st-empty")); }).code() ==
        Errc::not_found);
}

TEST_CASE("a link that never ends and a directory in a shard's place are errors") {
  const auto dir = scratch_dir("st-links");
  write_sharded(dir, {{"s.safetensors", {small_tensors()[0]}}});
  fs::remove(dir / "s.safetensors");
  fs::create_symlink("s.safetensors", dir / "s.safetensors");
  CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::io);
  fs::remove(dir / "s.safetensors");
  fs::create_directory(dir / "s.safetensors");
  CHECK(failure_of([&] { io::Safetensors::open(dir); }).code() == Errc::bad_field);
}

TEST_CASE("a shard that changes while open is an error of the read") {
  const auto dir = single("st-changed", safetensors_bytes(small_tensors()));
  const auto st = io::Safetensors::open(dir);
  fs::resize_file(dir / "model.safetensors", 300);
  std::vector<float> a(6);
  CHECK(failure_of([&] { st.read_f32(st.at("a"), 0, a); }).code() == Errc::changed);
}

TEST_CASE("mxfp4 decodes as the reference does") {
  const Golden golden = read_golden("units");
  const int count = std::stoi(golden.metadata.at("mxfp4/count"));
  REQUIRE(count > 0);
  for (int i = 0; i < count; ++i) {
    const std::string stem = "mxfp4." + std::to_string(i) + "/";
    const auto packed = golden.get<std::uint8_t>(stem + "packed");
    auto scale = golden.get<std::uint8_t>(stem + "scale");
    const auto want = golden.get<float>(stem + "y");
    const auto& shape = golden[stem + "y"].shape;
    std::vector<float> got(want.size());
    REQUIRE(
        quant::decode_mxfp4(packed.data(), scale.data(), {got.data(), shape[0], shape[1]}).ok());
    CHECK(std::memcmp(got.data(), want.data(), 4 * want.size()) == 0);
    scale.back() = 255;
    CHECK(quant::decode_mxfp4(packed.data(), scale.data(), {got.data(), shape[0], shape[1]}).code ==
          Errc::bad_field);
  }
  std::vector<std::uint8_t> packed(16, 0x77), scale(1, 254);  // 6 * 2^127
  std::vector<float> out(32);
  CHECK(quant::decode_mxfp4(packed.data(), scale.data(), {out.data(), 1, 32}).code ==
        Errc::out_of_range);
  scale[0] = 252;
  CHECK(quant::decode_mxfp4(packed.data(), scale.data(), {out.data(), 1, 32}).ok());
  CHECK(out[31] == 6 * 0x1p125f);
  CHECK(quant::decode_mxfp4(packed.data(), scale.data(), {out.data(), 1, 31}).code == Errc::shape);
}
