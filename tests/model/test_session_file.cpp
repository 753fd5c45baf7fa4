// Saved sessions: what goes on is what would have gone on; every damaged byte is refused; the bytes
// are those of the layout.
#include <zlib.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/tiny_container.hpp"
#include "waste/io/file.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"

namespace fs = std::filesystem;
using namespace waste;
using test::code_of;
using test::TinySpec;
using Floats = std::vector<float>;
using Tokens = std::vector<std::uint32_t>;

namespace {

const Tokens prompt = {3, 141, 59, 26, 53, 58, 97};
const Tokens later = {93, 23, 84};

fs::path folder(const TinySpec& spec, const std::string& name) {
  const fs::path dir = test::scratch_dir("session-" + name);
  test::make_tiny(spec).write(dir);
  return dir;
}

TextModel open(const fs::path& dir, std::uint64_t slots = 64) {
  const Container container = Container::open(dir);
  engine::CacheOptions cache;
  cache.budget_bytes = slots * container.banks().front().record_bytes();
  return TextModel(std::make_shared<model::ContainerWeights>(container, cache));
}

Floats feed(const TextModel& m, Session& s, const Tokens& tokens) {
  Floats out(tokens.size() * m.config().vocab_size);
  m.forward(s, tokens, {out.data(), tokens.size(), m.config().vocab_size});
  return out;
}

std::string read(const fs::path& path) { return io::read_text(path, std::uint64_t{1} << 24); }
void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
template <class T>
T number(const std::string& bytes, std::size_t at) {
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return out;
}
std::uint32_t zlib_crc(const std::string& bytes, std::size_t from, std::size_t n) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + from, static_cast<uInt>(n)));
}
/// Changes a part of the file and makes both crcs right again.
template <class T>
std::string with(std::string bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  const std::uint32_t payload = zlib_crc(bytes, 64, bytes.size() - 64);
  std::memcpy(bytes.data() + 48, &payload, 4);
  const std::uint32_t header = zlib_crc(bytes, 0, 60);
  std::memcpy(bytes.data() + 60, &header, 4);
  return bytes;
}

/// The error of loading these bytes.
std::string refused(const TextModel& m, const fs::path& file, const std::string& bytes, Errc code,
                    std::size_t context = 20) {
  write(file, bytes);
  try {
    m.load(file, context);
  } catch (const Error& e) {
    CHECK(to_string(e.code()) == to_string(code));
    CHECK(e.file() == file.string());
    return e.what();
  }
  FAIL("accepted");
  return {};
}

}  // namespace

TEST_CASE("a saved session goes on as the one it was saved from", "[session]") {
  for (const bool k3 : {false, true}) {
    const fs::path dir = folder(k3 ? TinySpec::kimi_k3() : TinySpec::vq3r(), k3 ? "k3" : "kl");
    const fs::path file = dir / "saved";
    const TextModel m = open(dir);
    Session session = m.start(20);
    feed(m, session, prompt);
    m.save(session, file, Tokens{5, 6});
    const Floats want = feed(m, session, later);

    const TextModel other = open(dir);
    CHECK(other.fingerprint() == m.fingerprint());
    for (const std::size_t context : {10u, 20u, 500u}) {
      model::SavedSession again = other.load(file, context);
      CHECK(again.session.position() == prompt.size());
      CHECK(again.session.context() == context);
      CHECK(again.pending == Tokens{5, 6});
      CHECK(feed(other, again.session, later) == want);
    }
    // An empty session is a session.
    m.save(m.start(3), file);
    model::SavedSession empty = m.load(file, 20);
    CHECK(empty.session.position() == 0);
    CHECK(empty.pending.empty());
    Session fresh = m.start(20);
    CHECK(feed(m, empty.session, prompt) == feed(m, fresh, prompt));
  }
}

TEST_CASE("the bytes of a session file are its layout's", "[session]") {
  const TinySpec spec = TinySpec::vq3r();
  const fs::path dir = folder(spec, "bytes");
  const TextModel m = open(dir);
  const format::ModelConfig& c = m.config();
  Session session = m.start(20);
  feed(m, session, prompt);
  m.save(session, dir / "saved", Tokens{7});
  const std::string b = read(dir / "saved");
  CHECK(b.substr(0, 4) == "WDAS");
  CHECK(number<std::uint32_t>(b, 4) == 2);
  CHECK(number<std::uint32_t>(b, 8) == spec.layers);
  CHECK(number<std::uint32_t>(b, 12) == spec.hidden);
  CHECK(number<std::uint32_t>(b, 16) == c.kda_heads);
  CHECK(number<std::uint32_t>(b, 20) == c.kda_head_dim);
  CHECK(number<std::uint32_t>(b, 24) == 4);
  CHECK(number<std::uint32_t>(b, 28) == c.kv_lora_rank + c.qk_rope_head_dim);
  CHECK(number<std::uint64_t>(b, 32) == prompt.size());
  CHECK(number<std::uint32_t>(b, 40) == 1);
  CHECK(number<std::uint32_t>(b, 44) == m.fingerprint());
  CHECK(number<std::uint32_t>(b, 48) == zlib_crc(b, 64, b.size() - 64));
  CHECK(number<std::uint64_t>(b, 52) == 0);
  CHECK(number<std::uint32_t>(b, 60) == zlib_crc(b, 0, 60));
  CHECK(number<std::uint32_t>(b, 64) == 7);
  const std::size_t kda = c.kda_heads * c.kda_head_dim * (c.kda_head_dim + 3 * 3);
  const std::size_t mla = prompt.size() * (c.kv_lora_rank + c.qk_rope_head_dim);
  CHECK(b.size() == 64 + 4 + 4 * (3 * kda + mla));  // layers 0, 1, 3 are KDA, the third MLA
}

TEST_CASE("no damaged or foreign session file is read", "[session]") {
  const fs::path dir = folder(TinySpec::vq3r(), "damaged"), file = dir / "saved";
  const TextModel m = open(dir);
  Session session = m.start(20);
  feed(m, session, prompt);
  m.save(session, file, Tokens{7, 8});
  const std::string good = read(file);
  // Any byte of the header, and bytes all over the rest.
  for (std::size_t at = 0; at < good.size(); at += at < 80 ? 1 : 997) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    const Errc want = at < 4 ? Errc::bad_magic : at < 8 ? Errc::bad_version : Errc::checksum;
    refused(m, file, bytes, want);
  }
  CHECK(refused(m, file, good.substr(0, 63), Errc::truncated).find("header") != std::string::npos);
  CHECK(refused(m, file, "", Errc::truncated).find("header") != std::string::npos);
  refused(m, file, good.substr(0, good.size() - 1), Errc::truncated);
  refused(m, file, good + "x", Errc::mismatch);

  // The same with crcs that fit.
  refused(m, file, with(good, 4, std::uint32_t{1}), Errc::bad_version);
  for (const std::size_t at : {8u, 12u, 16u, 20u, 24u, 28u}) {
    CHECK(refused(m, file, with(good, at, std::uint32_t{77}), Errc::mismatch).find("got 77") !=
          std::string::npos);
  }
  refused(m, file, with(good, 44, m.fingerprint() + 1), Errc::mismatch);
  refused(m, file, with(good, 52, std::uint64_t{1}), Errc::bad_field);
  refused(m, file, with(good, 32, std::uint64_t{21}), Errc::out_of_range);
  refused(m, file, with(good, 32, ~std::uint64_t{0}), Errc::out_of_range);
  refused(m, file, with(good, 32, std::uint64_t{8}), Errc::truncated);
  refused(m, file, with(good, 32, std::uint64_t{6}), Errc::mismatch);
  refused(m, file, with(good, 40, std::uint32_t{1}), Errc::mismatch);
  refused(m, file, with(good, 40, ~std::uint32_t{0}), Errc::out_of_range);
  refused(m, file, with(good, 64, std::uint32_t{272}), Errc::out_of_range);
  refused(m, file, with(good, 72, std::numeric_limits<float>::quiet_NaN()), Errc::bad_field);
  refused(m, file, with(good, good.size() - 4, std::numeric_limits<float>::infinity()),
          Errc::bad_field);
  refused(m, file, good, Errc::out_of_range, prompt.size() - 1);  // a shorter context

  write(file, good);
  CHECK_NOTHROW(m.load(file, 20));
  TinySpec trained = TinySpec::vq3r();  // another model of the same shape
  trained.seed = 2;
  const TextModel other = open(folder(trained, "other"));
  CHECK_THROWS_AS(other.load(file, 20), Error);
  try {
    m.load(dir / "nothing", 20);
    FAIL("accepted");
  } catch (const Error& e) {
    CHECK(to_string(e.code()) == "not_found");
  }
}

TEST_CASE("what cannot be saved whole is not saved", "[session]") {
  const fs::path dir = folder(TinySpec::vq3r(), "save"), file = dir / "saved";
  const TextModel m = open(dir, 2);
  Session session = m.start(20);
  feed(m, session, prompt);
  m.save(session, file);
  const std::string before = read(file);
  CHECK(code_of([&] { m.save(session, file, Tokens{272}); }) == Errc::out_of_range);
  CHECK(code_of([&] { m.save(session, file, Tokens(65537, 1)); }) == Errc::out_of_range);
  TinySpec deep = TinySpec::vq3r();
  deep.layers = 5;
  const TextModel five = open(folder(deep, "save-five"));
  CHECK(code_of([&] { m.save(five.start(4), file); }) == Errc::bad_argument);
  CHECK(code_of([&] { m.save(session, dir / "no" / "such" / "folder"); }) == Errc::not_found);
  CHECK(read(file) == before);

  // A forward pass that failed half-way leaves nothing to save.
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename().string().starts_with("experts-L")) {
      fs::resize_file(entry.path(), 0);
    }
  }
  CHECK_THROWS_AS(feed(m, session, later), Error);
  CHECK(session.broken());
  CHECK(code_of([&] { m.save(session, file); }) == Errc::bad_argument);
  CHECK(read(file) == before);
}
