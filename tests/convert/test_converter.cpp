#include "waste/convert/converter.hpp"

#include <set>

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/convert/verify.hpp"
#include "waste/io/container.hpp"

using namespace waste;
using namespace waste::test;
using convert::ConvertOptions;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

bool says(const Error& e, const std::string& text) {
  return std::string(e.what()).find(text) != std::string::npos;
}

fs::path source_dir(bool k3) {
  static std::map<bool, fs::path> made;
  if (!made.count(k3)) {
    SmallSource s;
    s.k3 = k3;
    s.mtp = k3;
    made[k3] = make_source(scratch_dir(k3 ? "source-k3" : "source-plain"), s);
  }
  return made[k3];
}

ConvertOptions fast(format::ExpertQuant quant = format::vq3r) {
  ConvertOptions o;
  o.quant = quant;
  o.effort = quant::Effort::fast;
  o.jobs = 2;
  o.codebook_sample = 1;  // 1920 vectors, enough for 256 entries
  return o;
}

fs::path fresh(const std::string& name) {
  const fs::path dir = scratch_dir(name);
  fs::remove(dir);
  return dir;
}

}  // namespace

TEST_CASE("a conversion opens, verifies against its source and holds what the plan says") {
  const bool k3 = GENERATE(false, true);
  const auto quant = GENERATE(format::vq3r, format::vq4p, format::vq2r);
  const fs::path out = fresh("converted");
  ConvertOptions o = fast(quant);
  o.codebook_sample = 0;
  const auto report = convert::convert(source_dir(k3), out, o);
  CHECK(report.complete);
  CHECK(report.layers_done == 2);
  CHECK(report.records_written == 12);
  CHECK(report.records_kept == 0);
  for (const auto& e : report.error) {
    CHECK(e.relative_error() > 0.01);
    CHECK(e.relative_error() < convert::expert_error_limit(quant));
  }

  const Container c = Container::open(out);
  CHECK(c.manifest().expert_quant == quant);
  CHECK(c.manifest().arch == (k3 ? "kimi-k3" : "kimi-linear"));
  CHECK(c.manifest().tensor_prefix == (k3 ? "language_model." : ""));
  for (std::uint32_t l = 1; l < 3; ++l) {
    CHECK(c.manifest().bank(LayerId{l})->codebook_base == (l - 1) * 3 * quant.stages);
    const auto expert = c.bank(LayerId{l}).read(ExpertId{5});
    CHECK(expert.record()[8] == static_cast<std::uint8_t>(quant.fmt));
  }

  convert::VerifyOptions v;
  v.source = source_dir(k3);
  const auto verified = convert::verify(out, v);
  for (const auto& f : verified.findings) UNSCOPED_INFO(f.message);
  CHECK(verified.ok());
  CHECK(verified.compared);
  CHECK(verified.records == 12);
  REQUIRE(verified.experts_error.size() == 6);
  for (std::size_t k = 0; k < 3; ++k) {  // what the encoder said is what a reader sees
    quant::EncodeStats sum;
    for (const auto& e : verified.experts_error) {
      if (static_cast<std::size_t>(e.kind) == k) sum += e.stats;
    }
    CHECK(sum.relative_error() == Approx(report.error[k].relative_error()).epsilon(1e-5));
  }
  // Nothing but the container is left.
  for (const auto& [name, bytes] : folder_bytes(out)) {
    CHECK(std::set<std::string>{"manifest.json", "trunk.bin", "codebooks.bin", "checksums.json",
                                "experts-L1.bin", "experts-L2.bin", "tokenizer.model",
                                "specials.json", "chat_template.jinja", "vision.json",
                                "generation_config.json"}
              .count(name) == 1);
  }
}

TEST_CASE("the bytes do not depend on threads, slices or the shards' order") {
  const fs::path one = fresh("jobs-1");
  ConvertOptions o = fast();
  o.jobs = 1;
  convert::convert(source_dir(true), one, o);
  for (const unsigned jobs : {2u, 3u, 7u}) {
    const fs::path other = fresh("jobs-n");
    o.jobs = jobs;
    convert::convert(source_dir(true), other, o);
    CHECK(folder_difference(one, other) == "");
  }
  const fs::path sliced = fresh("sliced");
  o.layers = {2, 2};
  CHECK_FALSE(convert::convert(source_dir(true), sliced, o).complete);
  CHECK_FALSE(fs::exists(sliced / "manifest.json"));
  o.layers.reset();
  o.merge_only = true;
  {
    const Error e = failure_of([&] { convert::convert(source_dir(true), sliced, o); });
    CHECK(e.code() == Errc::missing);
    CHECK(e.fault().layer == 1);
  }
  o.merge_only = false;
  o.layers = {0, 1};
  CHECK(convert::convert(source_dir(true), sliced, o).layers_done == 2);
  o.layers.reset();
  o.merge_only = true;
  const auto merged = convert::convert(source_dir(true), sliced, o);
  CHECK(merged.complete);
  CHECK(merged.records_written == 0);
  CHECK(folder_difference(one, sliced) == "");

  SmallSource s;
  s.k3 = true;
  s.mtp = true;
  auto tensors = source_tensors(s);
  std::reverse(tensors.begin(), tensors.end());
  const fs::path reversed = scratch_dir("source-reversed"), from_reversed = fresh("from-reversed");
  s.single = true;
  write_source(reversed, s, std::move(tensors));
  convert::convert(reversed, from_reversed, fast());
  CHECK(folder_difference(one, from_reversed) == "");
}

TEST_CASE("the seed decides the codebooks") {
  const fs::path a = fresh("seed-a"), b = fresh("seed-b");
  ConvertOptions o = fast();
  convert::convert(source_dir(false), a, o);
  o.seed = 1;
  convert::convert(source_dir(false), b, o);
  CHECK(read_bytes(a / "codebooks.bin") != read_bytes(b / "codebooks.bin"));
  CHECK(read_bytes(a / "trunk.bin") == read_bytes(b / "trunk.bin"));
}

TEST_CASE("trunk formats follow the rule of the format and the options") {
  const auto source = convert::Checkpoint::open(source_dir(true));
  const auto fmt_of = [&](const std::string& name, const ConvertOptions& o) {
    return convert::trunk_format(*source.find(name), o);
  };
  using format::Fmt;
  const std::string p = "language_model.model.";
  for (const auto& [bits, want] :
       std::map<unsigned, Fmt>{{3, Fmt::q3g}, {4, Fmt::q4g}, {8, Fmt::q8g}}) {
    ConvertOptions o;
    o.trunk_bits = bits;
    CHECK(fmt_of(p + "layers.0.mlp.up_proj.weight", o) == want);
    CHECK(fmt_of(p + "embed_tokens.weight", o) == Fmt::q8g);
    CHECK(fmt_of("language_model.lm_head.weight", o) == Fmt::q8g);
    CHECK(fmt_of(p + "norm.weight", o) == Fmt::f32);
    CHECK(fmt_of(p + "layers.0.self_attn.q_conv1d.weight", o) == Fmt::f32);
    CHECK(fmt_of("vision_tower.encoder.blocks.0.mlp.fc0.weight", o) == Fmt::q8g);
    CHECK(fmt_of("vision_tower.patch_embed.proj.weight", o) == Fmt::f32);  // 14 columns, not 128
    CHECK(fmt_of(p + "layers.3.shared_head.head.weight", o) == Fmt::q8g);
    CHECK(fmt_of(p + "layers.3.block_sparse_moe.experts.0.w1.weight", o) == Fmt::q8g);
  }
  convert::TrunkSource router;
  router.name = p + "layers.1.block_sparse_moe.gate.weight";
  router.shape = {896, 7168};
  ConvertOptions o;
  CHECK(convert::trunk_format(router, o) == Fmt::q4g);
  o.trunk_bits = 3;
  CHECK(convert::trunk_format(router, o) == Fmt::q3g);
  o.router = convert::RouterFormat::q8g;
  CHECK(convert::trunk_format(router, o) == Fmt::q8g);
  o.router = convert::RouterFormat::q4g;
  CHECK(convert::trunk_format(router, o) == Fmt::q4g);
  o.router = convert::RouterFormat::f32;
  CHECK(convert::trunk_format(router, o) == Fmt::f32);
  router.shape = {10, 160};  // too small to be quantized
  o.router = convert::RouterFormat::q4g;
  CHECK(convert::trunk_format(router, o) == Fmt::f32);
}

TEST_CASE("a searched trunk scale never errs more than the largest value's") {
  const fs::path a = fresh("scale-absmax"), b = fresh("scale-search");
  ConvertOptions o = fast();
  o.trunk_scale = quant::GroupScale::absmax;
  convert::convert(source_dir(false), a, o);
  o.trunk_scale = quant::GroupScale::search;
  convert::convert(source_dir(false), b, o);
  CHECK(read_bytes(a / "experts-L1.bin") == read_bytes(b / "experts-L1.bin"));
  convert::VerifyOptions v;
  v.source = source_dir(false);
  const auto absmax = convert::verify(a, v), search = convert::verify(b, v);
  CHECK(absmax.ok());
  CHECK(search.ok());
  REQUIRE(absmax.trunk_error.size() == search.trunk_error.size());
  int better = 0;
  for (std::size_t i = 0; i < absmax.trunk_error.size(); ++i) {
    const double before = absmax.trunk_error[i].stats.relative_error();
    const double after = search.trunk_error[i].stats.relative_error();
    CHECK(after <= before);
    better += after < before;
  }
  CHECK(better > 0);
}

TEST_CASE("side files are carried") {
  const fs::path plain = source_dir(false), k3 = source_dir(true);
  write_file(k3 / "chat.json", "{\"open\":\"x\"}");
  write_file(k3 / "preprocessor_config.json",
             "{\"media_proc_cfg\":{\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.25,0.5,0.5],"
             "\"patch_size\":14,\"in_patch_limit\":4096}}");
  write_file(k3 / "chat_template.jinja", "{# a file wins #}");
  const fs::path a = fresh("side-plain"), b = fresh("side-k3");
  convert::convert(plain, a, fast());
  convert::convert(k3, b, fast());
  for (const char* name : {"chat.json", "preprocessor_config.json", "chat_template.jinja"}) {
    fs::remove(k3 / name);
  }
  CHECK(read_bytes(a / "tokenizer.model") == "YQ== 0\nYg== 1\n");
  CHECK(read_bytes(a / "generation_config.json") == "{\"eos_token_id\": [2, 5]}");
  CHECK(read_bytes(a / "specials.json") ==
        "[\n {\n  \"id\": 3,\n  \"text\": \"<|\\u00e4|>\"\n },\n {\n  \"id\": 12,\n  \"text\": "
        "\"<|b|>\"\n }\n]");
  CHECK(read_bytes(a / "chat_template.jinja") == "{{ messages }}");
  CHECK_FALSE(fs::exists(a / "chat.json"));
  CHECK_FALSE(fs::exists(a / "vision.json"));
  CHECK(read_bytes(b / "chat.json") == "{\"open\":\"x\"}");
  CHECK(read_bytes(b / "chat_template.jinja") == "{# a file wins #}");
  const JsonValue vision = parse_json(read_bytes(b / "vision.json"), "vision.json");
  CHECK(vision.find("_private") == nullptr);
  CHECK(vision.find("vt_hidden_size")->number() == 48);
  CHECK(vision.find("vt_rms_eps")->number() == 1.1920928955078125e-07);
  CHECK(vision.find("media_placeholder_token_id")->number() == 515);
  CHECK(vision.find("max_patches")->number() == 1024);
  CHECK(vision.find("image_std")->as_array()->front().number() == 0.25);
  CHECK(vision.find("in_patch_limit")->number() == 4096);
}

TEST_CASE("side files that cannot be understood stop the conversion before it writes") {
  const fs::path dir = make_source(scratch_dir("source-side"));
  for (const char* text :
       {"{\"added_tokens_decoder\":[]}", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"a\"}}}",
        "{\"added_tokens_decoder\":{\"7\":{\"content\":1}}}", "[]", "{",
        "{\"added_tokens_decoder\":{\"7\":{\"content\":\"a\"},\"07\":{\"content\":\"b\"}}}"}) {
    write_file(dir / "tokenizer_config.json", text);
    const fs::path out = fresh("side-bad");
    const Error e = failure_of([&] { convert::convert(dir, out, fast()); });
    CHECK(e.file().find("tokenizer_config.json") != std::string::npos);
    CHECK_FALSE(fs::exists(out));
  }
}

TEST_CASE("what is wrong with the source is said before anything is written") {
  const fs::path dir = make_source(scratch_dir("source-broken"));
  const fs::path out = fresh("never");
  fs::resize_file(dir / "model-2.safetensors", fs::file_size(dir / "model-2.safetensors") - 1);
  CHECK(failure_of([&] { convert::convert(dir, out, fast()); }).code() == Errc::truncated);
  fs::remove(dir / "model-2.safetensors");
  const Error e = failure_of([&] { convert::convert(dir, out, fast()); });
  CHECK(e.code() == Errc::not_found);
  CHECK(says(e, "model-2.safetensors"));
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("the disk is looked at first") {
  const fs::path out = fresh("full");
  ConvertOptions o = fast();
  o.free_bytes_limit = 1000;
  const Error e = failure_of([&] { convert::convert(source_dir(false), out, o); });
  CHECK(e.code() == Errc::no_space);
  CHECK(e.fault().got == 1000);
  CHECK(e.fault().want > 1000);
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("what is in the way stays") {
  const fs::path out = scratch_dir("in-the-way");
  write_file(out / "letter.txt", "dear");
  Error e = failure_of([&] { convert::convert(source_dir(false), out, fast()); });
  CHECK(e.code() == Errc::exists);
  CHECK(says(e, "letter.txt"));
  CHECK(folder_bytes(out).size() == 1);
  ConvertOptions o = fast();
  o.replace = true;
  e = failure_of([&] { convert::convert(source_dir(false), out, o); });
  CHECK(e.code() == Errc::exists);  // never removes what is no container's
  fs::remove(out / "letter.txt");

  convert::convert(source_dir(false), out, fast());
  const auto before = folder_bytes(out);
  e = failure_of([&] { convert::convert(source_dir(false), out, fast()); });
  CHECK(e.code() == Errc::exists);
  CHECK(folder_bytes(out) == before);
  o.seed = 5;
  CHECK(convert::convert(source_dir(false), out, o).complete);
  CHECK(folder_bytes(out) != before);

  const fs::path file = scratch_dir("a-file") / "x";
  write_file(file, "");
  CHECK(failure_of([&] { convert::convert(source_dir(false), file, fast()); }).code() ==
        Errc::exists);
  CHECK(failure_of([&] { convert::convert(source_dir(false), source_dir(false), o); }).code() ==
        Errc::bad_argument);
  CHECK(fs::exists(source_dir(false) / "tiktoken.model"));
}

TEST_CASE("options that no conversion can have are refused") {
  const fs::path out = fresh("refused");
  ConvertOptions o = fast();
  o.trunk_bits = 5;
  CHECK(failure_of([&] { convert::convert(source_dir(false), out, o); }).code() ==
        Errc::bad_argument);
  o = fast();
  o.layers = {7, 9};
  CHECK(failure_of([&] { convert::convert(source_dir(false), out, o); }).code() ==
        Errc::bad_argument);
  o.layers = {1, 1};
  o.merge_only = true;
  CHECK(failure_of([&] { convert::convert(source_dir(false), out, o); }).code() ==
        Errc::bad_argument);
  o = fast();
  o.quant.stages = 9;
  CHECK(failure_of([&] { convert::convert(source_dir(false), out, o); }).code() ==
        Errc::out_of_range);
  CHECK_FALSE(fs::exists(out));
  SmallSource s;
  s.experts = 4;
  const fs::path small = make_source(scratch_dir("source-few"), s);
  o = fast();
  o.codebook_sample = 3;
  CHECK(convert::convert(small, out, o).complete);
}

TEST_CASE("a weight that is not finite is refused by name") {
  const auto poisoned = [](const std::string& name, std::size_t element) {
    auto tensors = source_tensors({});
    for (RawTensor& t : tensors) {
      if (t.name == name) store_le<std::uint16_t>(t.bytes.data() + 2 * element, 0x7f80);
    }
    const fs::path dir = scratch_dir("source-infinite");
    write_source(dir, {}, std::move(tensors));
    return dir;
  };
  const fs::path out = fresh("infinite");
  Error e = failure_of(
      [&] { convert::convert(poisoned("model.layers.0.mlp.up_proj.weight", 70), out, fast()); });
  CHECK(e.code() == Errc::out_of_range);
  CHECK(says(e, "model.layers.0.mlp.up_proj.weight is not finite at element 70"));
  fs::remove_all(out);
  e = failure_of([&] {
    convert::convert(poisoned("model.layers.2.block_sparse_moe.experts.4.w3.weight", 9), out,
                     fast());
  });
  CHECK(e.code() == Errc::out_of_range);
  CHECK(says(e, "expert 4 of layer 2"));
  CHECK_FALSE(fs::exists(out / "manifest.json"));
}

TEST_CASE("the plan of a container is what the conversion writes") {
  const bool k3 = GENERATE(false, true);
  const auto source = convert::Checkpoint::open(source_dir(k3));
  ConvertOptions o = fast(format::vq4p);
  o.trunk_bits = 3;
  o.router = convert::RouterFormat::q8g;
  const io::ContainerPlan plan = convert::container_plan(source, o);
  const fs::path out = fresh("planned");
  convert::convert(source_dir(k3), out, o);
  const Container c = Container::open(out);
  CHECK(plan.arch == c.manifest().arch);
  CHECK(plan.tensor_prefix == c.manifest().tensor_prefix);
  CHECK(plan.expert_quant == c.manifest().expert_quant);
  CHECK(plan.config == c.manifest().config);
  CHECK_FALSE(plan.substitutes);
  std::map<std::string, std::pair<format::Fmt, std::vector<std::uint64_t>>> planned, written;
  for (const auto& t : plan.trunk) planned[t.name] = {t.fmt, t.shape};
  for (const auto& t : c.manifest().trunk) written[t.name] = {t.fmt, t.shape};
  CHECK(planned.size() == plan.trunk.size());
  CHECK((planned == written));
  o.substitutes = true;
  CHECK(convert::container_plan(source, o).substitutes);
}

TEST_CASE("the memory of a conversion is a matrix, a record and a slab a job, and the sample") {
  const auto source = convert::Checkpoint::open(source_dir(false));
  ConvertOptions o = fast();
  // Of each of three kinds one expert's matrix: 1,920 vectors of eight floats, twice.
  const std::uint64_t sample = 2 * 3 * 1920 * 8 * 4;
  // Three indices a vector, rows filled up to blocks of 64: 3 x (2 x 128 x 20 + 192 x 12), scales
  // 2 x (96 + 96 + 160), a header: 22 kilobytes, six pages.
  const std::uint64_t job = 4 * 96 * 160 + 6 * 4096 + (16u << 20);
  CHECK(convert::convert_memory_bytes(source, o) == 2 * job + sample);
  o.jobs = 5;
  CHECK(convert::convert_memory_bytes(source, o) == 5 * job + sample);
  o.codebook_sample = 4;
  CHECK(convert::convert_memory_bytes(source, o) == 5 * job + 4 * sample);
  CHECK(convert::convert(source_dir(false), fresh("memory"), o).memory_bytes ==
        5 * job + 4 * sample);
  o.quant.stages = 9;
  CHECK_THROWS_AS(convert::convert_memory_bytes(source, o), Error);
}
