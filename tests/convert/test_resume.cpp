// Conversions killed at every step and at random instants end in the same bytes as undisturbed
// ones.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "folder.hpp"
#include "small_source.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "waste/convert/converter.hpp"
#include "waste/convert/verify.hpp"

using namespace waste;
using namespace waste::test;
using convert::ConvertOptions;
namespace fs = std::filesystem;

namespace {

[[maybe_unused]] const bool in_memory = scratch_in_memory();

ConvertOptions fast() {
  ConvertOptions o;
  o.quant = format::vq2r;
  o.effort = quant::Effort::fast;
  o.jobs = 2;
  o.codebook_sample = 1;  // 640 vectors, enough for 256 entries
  o.commit_bytes = 1;     // a commit after every tensor
  return o;
}

const fs::path& source() {
  static const fs::path dir = [] {
    SmallSource s;
    s.inter = 32;
    return make_source(scratch_dir("source-resume"), s);
  }();
  return dir;
}

/// Runs a program with `arguments`, under the emulator WASTE_TEST_EMULATOR where this is set; its
/// output goes to /dev/null. Returns the process id.
pid_t start(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  if (char* const emulator = std::getenv("WASTE_TEST_EMULATOR")) {
    argv.insert(argv.begin(), emulator);
  }
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, 1);
    ::dup2(null, 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

std::string self() { return fs::read_symlink("/proc/self/exe").string(); }

/// Lets a new process of this program convert and kill itself at its `step`-th progress call.
/// Returns whether it was killed (not so when the conversion has fewer steps).
bool killed_at_step(const fs::path& from, const fs::path& to, int step) {
  ::setenv("WASTE_TEST_KILL_FROM", from.c_str(), 1);
  ::setenv("WASTE_TEST_KILL_TO", to.c_str(), 1);
  ::setenv("WASTE_TEST_KILL_STEP", std::to_string(step).c_str(), 1);
  const int status = wait_for(start(self(), {"[.killed]"}));
  if (WIFSIGNALED(status)) return true;
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  return false;
}

}  // namespace

TEST_CASE("a conversion that kills itself", "[.killed]") {
  const char* to = std::getenv("WASTE_TEST_KILL_TO");
  if (to == nullptr) return;
  int left = std::atoi(std::getenv("WASTE_TEST_KILL_STEP"));
  ConvertOptions o = fast();
  o.progress = [&](const convert::ConvertProgress&) {
    if (--left == 0) ::kill(::getpid(), SIGKILL);
  };
  convert::convert(std::getenv("WASTE_TEST_KILL_FROM"), to, o);
}

TEST_CASE("killed at any step and continued, the bytes are those of an undisturbed run") {
  const fs::path want = scratch_dir("undisturbed");
  int steps = 0;
  ConvertOptions o = fast();
  o.progress = [&](const convert::ConvertProgress&) { ++steps; };
  convert::convert(source(), want, o);
  o.progress = {};
  REQUIRE(steps > 40);

  std::uint64_t kept = 0;
  int kills = 0;
  for (int step = 1; step <= steps; step += step < 8 ? 1 : 7) {
    const fs::path out = scratch_dir("killed");
    INFO("killed at step " << step << " of " << steps);
    REQUIRE(killed_at_step(source(), out, step));
    ++kills;
    CHECK_FALSE(fs::exists(out / "manifest.json"));
    const auto report = convert::convert(source(), out, o);
    kept += report.records_kept;
    REQUIRE(report.complete);
    REQUIRE(folder_difference(want, out) == "");
  }
  CHECK(kills > 12);
  CHECK(kept > 12);  // records that were whole were not made again

  // One conversion killed over and over, each time a little further.
  const fs::path out = scratch_dir("killed-often");
  int rounds = 0;
  while (rounds < 200 && killed_at_step(source(), out, 9)) ++rounds;
  CHECK(rounds > 3);
  CHECK(folder_difference(want, out) == "");
}

TEST_CASE("leftovers of a run killed after its manifest are only cleared away") {
  const fs::path want = scratch_dir("whole"), out = scratch_dir("leftovers");
  convert::convert(source(), want, fast());
  REQUIRE(killed_at_step(source(), out, 9));
  const std::string plan = read_bytes(out / "convert-plan.json");
  convert::convert(source(), out, fast());
  write_file(out / "convert-plan.json", plan);
  write_file(out / "codebooks-L1.part", "x");
  write_file(out / "manifest.json.tmp123", "x");
  write_file(out / "trunk.progress", "3");
  const auto report = convert::convert(source(), out, fast());
  CHECK(report.complete);
  CHECK(report.records_written == 0);
  CHECK(folder_difference(want, out) == "");
}

TEST_CASE("an unfinished conversion is not continued with another plan") {
  const fs::path out = scratch_dir("other-plan");
  REQUIRE(killed_at_step(source(), out, 9));
  const auto before = folder_bytes(out);
  const auto refused = [&](const char* what, const std::function<void(ConvertOptions&)>& change) {
    ConvertOptions o = fast();
    change(o);
    const Error e = failure_of([&] { convert::convert(source(), out, o); });
    INFO(e.what());
    CHECK(e.code() == Errc::mismatch);
    CHECK(std::string(e.what()).find(what) != std::string::npos);
    CHECK(folder_bytes(out) == before);
  };
  refused("seed: the unfinished conversion has 0, this one 7",
          [](ConvertOptions& o) { o.seed = 7; });
  refused("format", [](ConvertOptions& o) { o.quant = format::vq3r; });
  refused("effort", [](ConvertOptions& o) { o.effort = quant::Effort::best; });
  refused("trunk_bits", [](ConvertOptions& o) { o.trunk_bits = 8; });
  refused("trunk_scale", [](ConvertOptions& o) { o.trunk_scale = quant::GroupScale::absmax; });
  refused("router", [](ConvertOptions& o) { o.router = convert::RouterFormat::f32; });
  refused("cb_sample", [](ConvertOptions& o) { o.codebook_sample = 3; });

  const fs::path changed = scratch_dir("source-changed");
  fs::copy(source(), changed);
  for (const auto& e : fs::directory_iterator(source())) {
    fs::last_write_time(changed / e.path().filename(), fs::last_write_time(e.path()));
  }
  const fs::path shard = changed / "model-2.safetensors";
  std::string bytes = read_bytes(shard);
  bytes.back() ^= 1;
  write_file(shard, bytes);
  fs::last_write_time(shard, fs::last_write_time(shard) + std::chrono::seconds(2));
  const Error e = failure_of([&] { convert::convert(changed, out, fast()); });
  CHECK(e.code() == Errc::mismatch);
  CHECK(std::string(e.what()).find("shard model-2.safetensors") != std::string::npos);

  ConvertOptions o = fast();
  o.seed = 7;
  o.replace = true;  // starts again
  CHECK(convert::convert(source(), out, o).records_kept == 0);
}

TEST_CASE("a damaged part of an unfinished conversion is made again, not believed") {
  const fs::path want = scratch_dir("undamaged"), out = scratch_dir("damaged-part");
  convert::convert(source(), want, fast());
  int step = 0;
  do {  // until some records of layer 1 are there
    fs::remove_all(out);
    REQUIRE(killed_at_step(source(), out, step += 3));
  } while (!fs::exists(out / "experts-L1.bin.part"));
  fs::remove_all(out);
  REQUIRE(killed_at_step(source(), out, step + 3));
  const fs::path part = out / "experts-L1.bin.part";
  REQUIRE(fs::exists(part));
  std::string bytes = read_bytes(part);
  const std::size_t record = bytes.size() / 6;
  for (std::size_t e = 0; e < 6; ++e) bytes[e * record + 48 + 100 * e] ^= 4;
  write_file(part, bytes);
  CHECK(convert::convert(source(), out, fast()).records_kept == 0);
  CHECK(folder_difference(want, out) == "");
}

TEST_CASE("the command killed at random instants continues to the same bytes", "[native]") {
  const char* named = std::getenv("WASTE_BINARY");
  fs::path binary =
      named ? fs::path(named) : fs::path(self()).parent_path().parent_path() / "waste";
  if (!fs::exists(binary)) {
    skipped("the command killed at random instants: WASTE_BINARY names no program");
    return;
  }
  const fs::path checkpoint = source_root() / "examples" / "tiny_k3" / "checkpoint";
  REQUIRE(fs::exists(checkpoint / "config.json"));
  const auto arguments = [&](const fs::path& to) {
    return std::vector<std::string>{"convert",   checkpoint.string(),
                                    to.string(), "--effort",
                                    "fast",      "--cb-sample",
                                    "2",         "--jobs",
                                    "2",         "--quiet"};
  };
  const fs::path want = scratch_dir("command-whole");
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(wait_for(start(binary.string(), arguments(want))) == 0);
  const double whole =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  Numbers numbers(2026);
  int kills = 0, finished = 0;
  fs::path out = scratch_dir("command-killed");
  for (int round = 0; round < 60 && (kills < 12 || !finished); ++round) {
    const pid_t pid = start(binary.string(), arguments(out));
    const double wait = whole * (0.02 + 0.5 * (numbers.bits() % 1000) / 1000.0);
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    ::kill(pid, SIGKILL);
    const int status = wait_for(pid);
    if (WIFSIGNALED(status)) {
      ++kills;
      CHECK((!fs::exists(out / "manifest.json") || folder_bytes(out).size() > 1));
      continue;
    }
    REQUIRE(WEXITSTATUS(status) == 0);
    ++finished;
    REQUIRE(folder_difference(want, out) == "");
    out = scratch_dir("command-killed");
  }
  CHECK(kills >= 12);
  if (!fs::exists(out / "manifest.json") || fs::exists(out / "convert-plan.json")) {
    REQUIRE(wait_for(start(binary.string(), arguments(out))) == 0);
  }
  CHECK(folder_difference(want, out) == "");
}
