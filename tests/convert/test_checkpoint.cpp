#include "waste/convert/checkpoint.hpp"

#include <functional>

#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace waste;
using namespace waste::test;
using convert::Checkpoint;

namespace {

/// Opens the checkpoint of `s` after `damage` changed its tensors.
Error failure_after(const SmallSource& s,
                    const std::function<void(std::vector<RawTensor>&)>& damage) {
  auto tensors = source_tensors(s);
  damage(tensors);
  const auto dir = scratch_dir("checkpoint-damaged");
  write_source(dir, s, std::move(tensors));
  return failure_of([&] { Checkpoint::open(dir); });
}

RawTensor& named(std::vector<RawTensor>& tensors, const std::string& name) {
  for (RawTensor& t : tensors) {
    if (t.name == name) return t;
  }
  throw std::runtime_error("no tensor " + name);
}

void remove(std::vector<RawTensor>& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const RawTensor& t) { return t.name == name; });
}

bool says(const Error& e, const std::string& text) {
  return std::string(e.what()).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a plain checkpoint is seen through its config") {
  SmallSource s;
  s.single = GENERATE(false, true);
  const auto source = Checkpoint::open(make_source(scratch_dir("checkpoint"), s));
  CHECK(source.prefix().empty());
  CHECK(source.arch() == "kimi-linear");
  CHECK_FALSE(source.packed_experts());
  CHECK(source.container_config() == source.raw_config());
  CHECK(source.has("model.norm.weight"));
  CHECK_FALSE(source.has("norm.weight"));
  CHECK(std::is_sorted(source.trunk().begin(), source.trunk().end(),
                       [](const auto& a, const auto& b) { return a.name < b.name; }));

  auto tensors = source_tensors(s);
  const auto want = [&](const std::string& name) {
    const RawTensor& t = named(tensors, name);
    std::vector<float> out(t.bytes.size() / 2);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = bf16_to_f32(load_le<std::uint16_t>(t.bytes.data() + 2 * i));
    }
    return out;
  };
  CHECK(source.tensor("lm_head.weight") == want("lm_head.weight"));
  const auto e = source.expert(LayerId{2}, ExpertId{5});
  const std::string stem = "model.layers.2.block_sparse_moe.experts.5.";
  CHECK(e.gate == want(stem + "w1.weight"));
  CHECK(e.up == want(stem + "w3.weight"));
  CHECK(e.down == want(stem + "w2.weight"));
  CHECK(e.matrix(format::Kind::down).rows == 160);
  CHECK(e.matrix(format::Kind::down).cols == 96);

  std::vector<float> rows(3 * 200, -1.0f);  // a stride wider than the matrix
  source.read_expert_rows(LayerId{2}, ExpertId{5}, format::Kind::gate, 90,
                          {rows.data(), 3, 160, 200});
  CHECK(std::equal(rows.begin() + 200, rows.begin() + 360, e.gate.begin() + 91 * 160));
  CHECK(rows[160] == -1.0f);

  std::vector<float> x(160 * 96);
  const auto read = [&](std::uint32_t l, std::uint32_t id, std::uint64_t first, std::size_t n,
                        std::size_t cols) {
    source.read_expert_rows(LayerId{l}, ExpertId{id}, format::Kind::gate, first,
                            {x.data(), n, cols});
  };
  for (const Error& error :
       {failure_of([&] { read(0, 0, 0, 1, 160); }), failure_of([&] { read(1, 0, 96, 1, 160); }),
        failure_of([&] { read(1, 0, ~0ull, 2, 160); }), failure_of([&] { read(1, 0, 0, 1, 96); }),
        failure_of([&] { source.expert(LayerId{0}, ExpertId{0}); })}) {
    CHECK(error.code() == Errc::bad_argument);
  }
  CHECK(failure_of([&] { read(3, 0, 0, 1, 160); }).code() == Errc::out_of_range);
  CHECK(std::string(failure_of([&] { read(1, 6, 0, 1, 160); }).what()) ==
        "expert 6 of layer 1: expert: out of range, got 6, wanted at most 5");
  CHECK(std::string(failure_of([&] { read(0, 0, 0, 1, 160); }).what()) ==
        "layer 0: layer: invalid argument; it has no routed experts");
  CHECK(failure_of([&] { source.tensor("x"); }).code() == Errc::missing);
}

TEST_CASE("a wrapped checkpoint has packed experts, a vision tower and an MTP head") {
  SmallSource s;
  s.k3 = true;
  s.mtp = true;
  const auto source = Checkpoint::open(make_source(scratch_dir("checkpoint-k3"), s));
  CHECK(source.prefix() == "language_model.");
  CHECK(source.arch() == "kimi-k3");
  CHECK(source.packed_experts());
  REQUIRE(source.container_config().find("_outer"));
  CHECK(source.container_config().find("_outer")->find("vision_config"));
  CHECK_FALSE(source.container_config().find("_outer")->find("text_config"));
  CHECK(source.container_config().find("hidden_size"));
  CHECK(source.find("vision_tower.patch_embed.proj.weight")->role == convert::Role::vision);
  const std::string mtp = "language_model.model.layers.3.";
  CHECK(source.find(mtp + "eh_proj.weight")->role == convert::Role::mtp);
  const auto* packed = source.find(mtp + "block_sparse_moe.experts.0.w1.weight");
  REQUIRE(packed);
  CHECK(packed->shape == std::vector<std::uint64_t>{704, 96});
  CHECK(source.tensor(packed->name).size() == 704 * 96);

  // Decoded by hand: nibble values times a power of two.
  auto tensors = source_tensors(s);
  const std::string stem = "language_model.model.layers.1.block_sparse_moe.experts.2.w2.weight_";
  const auto& codes = named(tensors, stem + "packed").bytes;
  const auto& scale = named(tensors, stem + "scale").bytes;
  constexpr float magnitude[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  const auto e = source.expert(LayerId{1}, ExpertId{2});
  bool same = e.down.size() == 64 * 96;
  for (std::size_t i = 0; same && i < e.down.size(); ++i) {
    const int nibble = i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    const float value = std::ldexp(magnitude[nibble & 7], scale[i / 32] - 127);
    same = e.down[i] == (nibble & 8 ? -value : value);
  }
  CHECK(same);
}

TEST_CASE("nothing of a checkpoint goes unexplained") {
  SmallSource plain, k3;
  k3.k3 = true;
  Numbers numbers(3);
  const std::string w1 = "model.layers.1.block_sparse_moe.experts.3.w1.weight";

  Error e = failure_after(plain, [](auto& t) { remove(t, "model.norm.weight"); });
  CHECK(e.code() == Errc::missing);
  CHECK(says(e, "model.norm.weight"));

  e = failure_after(plain, [&](auto& t) { remove(t, w1); });
  CHECK(e.code() == Errc::missing);
  CHECK(says(e, "expert 3 of layer 1"));
  CHECK(says(e, w1));

  for (const char* part : {"_packed", "_scale"}) {
    e = failure_after(k3, [&](auto& t) { remove(t, "language_model." + w1 + part); });
    CHECK(e.code() == Errc::missing);
    CHECK(says(e, "expert 3 of layer 1"));
  }
  e = failure_after(k3, [&](auto& t) {
    t.push_back(bf16_tensor("language_model." + w1, {96, 64}, numbers));
  });
  CHECK(e.code() == Errc::duplicate);
  e = failure_after(plain, [&](auto& t) {
    t.push_back({w1 + "_scale", "U8", {96, 5}, std::vector<std::uint8_t>(480)});
  });
  CHECK(e.code() == Errc::missing);  // half of a pair beside a plain matrix

  for (const char* name :
       {"model.layers.1.self_attn.surprise.weight", "model.layers.19.self_attn.b_proj.weight",
        "model.layers.1.block_sparse_moe.experts.6.w1.weight",
        "model.layers.1.block_sparse_moe.experts.03.w1.weight",
        "model.layers.1.block_sparse_moe.experts.3.w4.weight",
        "model.layers.1.block_sparse_moe.experts.3.w1.bias",
        "model.layers.0.block_sparse_moe.experts.3.w1.weight", "lm_head.bias"}) {
    e = failure_after(plain, [&](auto& t) { t.push_back(bf16_tensor(name, {96, 160}, numbers)); });
    INFO(name);
    CHECK(e.code() == Errc::unsupported);
    CHECK(says(e, name));
    CHECK(says(e, "model-3.safetensors"));
  }
  e = failure_after(
      k3, [&](auto& t) { t.push_back(bf16_tensor("model.norm.weight", {160}, numbers)); });
  CHECK(e.code() == Errc::unsupported);  // the prefix is missing

  e = failure_after(plain, [&](auto& t) {
    named(t, "model.norm.weight") = bf16_tensor("model.norm.weight", {1, 160}, numbers);
  });
  CHECK(e.code() == Errc::shape);
  CHECK(says(e, "[1, 160], wanted [160]"));
  e = failure_after(plain, [&](auto& t) { named(t, w1) = bf16_tensor(w1, {160, 96}, numbers); });
  CHECK(e.code() == Errc::shape);
  e = failure_after(plain, [&](auto& t) {
    named(t, "model.layers.0.self_attn.A_log") =
        bf16_tensor("model.layers.0.self_attn.A_log", {3}, numbers);
  });
  CHECK(e.code() == Errc::shape);
  e = failure_after(plain, [&](auto& t) {
    named(t, "model.norm.weight") = {
        "model.norm.weight", "I16", {160}, std::vector<std::uint8_t>(320)};
  });
  CHECK(e.code() == Errc::unsupported);
  CHECK(says(e, "I16"));
  e = failure_after(k3, [&](auto& t) {
    const std::string name = "language_model." + w1 + "_scale";
    named(t, name) = bf16_tensor(name, {96, 2}, numbers);
  });
  CHECK(e.code() == Errc::unsupported);
}

TEST_CASE("a rotary table that the model does not use is ignored and counted") {
  Numbers numbers(1);
  auto tensors = source_tensors({});
  tensors.push_back(bf16_tensor("model.layers.2.self_attn.rotary_emb.inv_freq", {4}, numbers));
  const auto dir = scratch_dir("checkpoint-rotary");
  write_source(dir, {}, std::move(tensors));
  CHECK(Checkpoint::open(dir).ignored() == 1);
}

TEST_CASE("a config that promises more experts than there are tensors allocates nothing for them") {
  SmallSource s;
  auto tensors = source_tensors(s);
  s.experts = 65535;
  const auto dir = scratch_dir("checkpoint-huge");
  write_source(dir, s, std::move(tensors));
  const Error e = failure_of([&] { Checkpoint::open(dir); });
  CHECK((e.code() == Errc::missing || e.code() == Errc::shape));
}

TEST_CASE("an invalid MXFP4 scale is an error of the read that meets it") {
  SmallSource s;
  s.k3 = true;
  auto tensors = source_tensors(s);
  named(tensors, "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_scale")
      .bytes[7] = 255;
  const auto dir = scratch_dir("checkpoint-scale");
  write_source(dir, s, std::move(tensors));
  const auto source = Checkpoint::open(dir);
  const Error e = failure_of([&] { source.expert(LayerId{1}, ExpertId{0}); });
  CHECK(e.code() == Errc::bad_field);
  CHECK(says(e, "experts.0.w1.weight_scale"));
  CHECK_NOTHROW(source.expert(LayerId{1}, ExpertId{1}));
}

TEST_CASE("configs that are no checkpoint's are refused") {
  const auto dir = make_source(scratch_dir("checkpoint-config"));
  std::filesystem::remove(dir / "config.json");
  CHECK(failure_of([&] { Checkpoint::open(dir); }).code() == Errc::not_found);
  write_file(dir / "config.json", "[]");
  CHECK(failure_of([&] { Checkpoint::open(dir); }).code() == Errc::bad_field);
  write_file(dir / "config.json", "{\"text_config\":1}");
  CHECK(failure_of([&] { Checkpoint::open(dir); }).code() == Errc::bad_field);
  write_file(dir / "config.json", "{");
  CHECK(failure_of([&] { Checkpoint::open(dir); }).code() == Errc::bad_json);
}
