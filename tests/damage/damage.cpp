// Damages a folder again and again, each time in a process of its own, and holds the outcome to
// the table: a typed error that names the file, exactly the expected one where the kind of damage
// decides it, or the answers of the undamaged folder. Prints a line a kind and the sums.
// Usage: damage [--inputs N] [--seed S] [--kind TEXT]
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <unordered_set>

#include "convert/folder.hpp"
#include "support/golden.hpp"
#include "waste/convert/calibration.hpp"
#include "waste/convert/checkpoint.hpp"
#include "waste/convert/verify.hpp"
#include "waste/engine/routing_trace.hpp"
#include "waste/engine/usage.hpp"
#include "waste/io/crc32.hpp"
#include "waste/model/container_weights.hpp"
#include "waste/model/kimi.hpp"
#include "waste/text/chat.hpp"
#include "worlds.hpp"

namespace {

using namespace waste;
namespace fs = std::filesystem;
using damage::Hurt;
using damage::World;

constexpr std::uint64_t memory_limit = 1ull << 30;  // of address space beyond the parent's
constexpr std::uint64_t most_over = 64ull << 20;    // resident, beyond the undamaged folder's

/// What a child process says of its folder, as plain bytes.
struct Answer {
  bool whole = false;    ///< the child got to its end
  bool refused = false;  ///< by an Error, the first of which follows
  Errc code = Errc::ok;
  std::uint32_t digest = 0;  ///< of the answers, where nothing was refused
  char field[128] = {}, file[128] = {}, message[512] = {};
};
struct Outcome {
  Answer answer;
  bool crashed = false, hung = false;
  std::uint64_t peak_bytes = 0;
};

void copy_to(char* to, std::size_t room, const std::string& text) {
  std::snprintf(to, room, "%s", text.c_str());
}

class Judge {
 public:
  explicit Judge(const fs::path& dir) : dir_(dir) {}

  Answer container() {
    convert::VerifyReport report;
    guard([&] {
      convert::VerifyOptions options;
      options.jobs = 1;
      report = convert::verify(dir_, options);
      for (const convert::Finding& f : report.findings) refuse(f.fault, f.file, f.message);
    });
    guard([&] { logits(); });
    guard([&] {
      const Tokenizer tokenizer = Tokenizer::open(dir_);
      add(tokenizer.encode("to and <|end|> fro", text::Mode::markup));
      if (const auto chat = text::ChatFormat::find(dir_, tokenizer)) {
        const std::vector<text::Message> said = {{"user", "hello", std::nullopt}};
        add(chat->encode(tokenizer, said, text::Opening::response));
      }
    });
    guard([&] {
      const auto m = format::parse_manifest(
          io::read_text(dir_ / "manifest.json", format::limits::manifest_bytes),
          (dir_ / "manifest.json").string());
      guard([&] { calibration(m); });
      guard([&] {
        const engine::UsageFile usage(dir_ / "usage.waste", m.model);
        for (const auto& [layer, expert] : usage.hottest(100)) m.bank(layer);
      });
    });
    guard([&] {
      const auto trace = engine::read_trace(dir_ / "trace.jsonl");
      add(engine::optimal_hits(trace, 2));
    });
    return done();
  }

  Answer source() {
    guard([&] {
      const auto c = convert::Checkpoint::open(dir_);
      for (const convert::TrunkSource& t : c.trunk()) add(c.tensor(t.name));
      const format::ModelConfig& m = c.model();
      for (std::uint32_t l = m.first_k_dense_replace; l < m.num_hidden_layers; ++l) {
        for (std::uint32_t e = 0; e < m.num_experts; ++e) {
          const convert::SourceExpert x = c.expert(LayerId{l}, ExpertId{e});
          for (const auto* w : {&x.gate, &x.up, &x.down}) add(*w);
        }
      }
    });
    return done();
  }

 private:
  template <class F>
  void guard(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      refuse(e.fault(), e.file(), e.what());
    }
  }
  void refuse(const Fault& f, const std::string& file, const std::string& message) {
    if (answer_.refused) return;
    answer_.refused = true;
    answer_.code = f.code;
    copy_to(answer_.field, sizeof answer_.field, f.field);
    copy_to(answer_.file, sizeof answer_.file, fs::path(file).filename().string());
    copy_to(answer_.message, sizeof answer_.message, message);
  }
  template <class T>
  void add(const std::vector<T>& values) {
    answer_.digest =
        io::crc32({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(T)},
                  answer_.digest);
  }
  void logits() {
    OpenOptions options;
    options.verify_records = waste::io::Verify::always;
    options.threads = 1;
    const Container container = Container::open(dir_, options);
    engine::CacheOptions cache;
    cache.budget_bytes = 8 * container.banks().front().record_bytes();
    cache.ahead.readers = 0;
    model::ModelOptions model_options;
    model_options.exec.threads = 1;
    const model::TextModel model(std::make_shared<model::ContainerWeights>(container, cache),
                                 model_options);
    model::Session session = model.start(8);
    const std::vector<std::uint32_t> tokens = {3, 141, 59, 26, 5};
    const std::size_t width = model.config().vocab_size;
    std::vector<float> out(tokens.size() * width);
    model.forward(session, tokens, {out.data(), tokens.size(), width});
    add(out);
  }
  void calibration(const format::Manifest& m) {
    const auto c = convert::CalibrationFile::open(dir_ / "c.wcal", m.model,
                                                  convert::config_identity(m.config));
    for (const convert::MomentKey& key : c.keys()) {
      const quant::InputMoments moments = c.moments(key);
      add(std::vector<double>(moments.sums().begin(), moments.sums().end()));
    }
  }
  Answer done() {
    answer_.whole = true;
    return answer_;
  }

  const fs::path& dir_;
  Answer answer_;
};

/// Judges a folder in a process of its own: one second of CPU, a minute of time, bounded memory.
Outcome judge(const World& w) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const rlimit cpu = {1, 2}, none = {0, 0};
    ::setrlimit(RLIMIT_CPU, &cpu);
    ::setrlimit(RLIMIT_CORE, &none);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    std::ifstream statm("/proc/self/statm");
    std::uint64_t pages = 0;
    statm >> pages;
    const rlimit space = {pages * 4096 + memory_limit, pages * 4096 + memory_limit};
    ::setrlimit(RLIMIT_AS, &space);
#endif
    ::alarm(60);
    Judge of(w.dir);
    const Answer a = w.source ? of.source() : of.container();
    const bool sent = ::write(ends[1], &a, sizeof a) == sizeof a;
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  Outcome out;
  const bool read = ::read(ends[0], &out.answer, sizeof out.answer) == sizeof out.answer;
  ::close(ends[0]);
  int status = 0;
  rusage use = {};
  ::wait4(child, &status, 0, &use);
  out.hung = WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGALRM ||
                                     WTERMSIG(status) == SIGKILL);
  out.crashed = !out.hung && (!read || !WIFEXITED(status) || WEXITSTATUS(status) != 0);
  out.peak_bytes = static_cast<std::uint64_t>(use.ru_maxrss) * 1024;
  return out;
}

void put(const fs::path& path, const test::Bytes& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// Why an outcome is not what it must be; empty where it is.
std::string wrong(const Hurt& h, const Outcome& o, std::uint32_t right) {
  const Answer& a = o.answer;
  if (o.crashed) return "crashed";
  if (o.hung) return "hung";
  if (!a.refused) {
    if (a.digest != right) return "accepted, with other answers";
    if (h.code != Errc::ok) return "accepted";
    return "";
  }
  if (!h.refused && h.file != a.file) return "refused for another file";
  if (h.code != Errc::ok && a.code != h.code && (h.or_code == Errc::ok || a.code != h.or_code)) {
    return "another code";
  }
  if (std::strstr(a.field, h.field.c_str()) == nullptr) return "another field";
  if (a.file[0] == 0 || std::strstr(a.message, a.file) == nullptr) return "no file in the message";
  if (h.code != Errc::ok && h.file != a.file) return "another file";
  return "";
}

struct Row {
  std::size_t inputs = 0, refused = 0, same = 0, different = 0, crashes = 0, hangs = 0, wrong = 0;
  std::uint64_t over = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::size_t inputs = 300;
  std::uint64_t seed = 1;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--inputs") inputs = std::stoul(argv[i + 1]);
    if (std::string(argv[i]) == "--seed") seed = std::stoul(argv[i + 1]);
    if (std::string(argv[i]) == "--kind") only = argv[i + 1];
  }
  test::scratch_in_memory();
  const std::vector<World> worlds = damage::make_worlds(test::scratch_dir("damage"));
  std::vector<Outcome> whole;
  for (const World& w : worlds) {
    whole.push_back(judge(w));
    const Outcome& o = whole.back();
    if (o.crashed || o.hung || o.answer.refused) {
      std::printf("%s is not sound undamaged: %s\n", w.name.c_str(), o.answer.message);
      return 1;
    }
  }
  std::vector<const damage::Kind*> chosen;
  for (const auto* table : {&damage::container_kinds(), &damage::side_kinds()}) {
    for (const damage::Kind& k : *table) {
      if (std::string(k.name).find(only) != std::string::npos) chosen.push_back(&k);
    }
  }
  test::Random random(seed);
  std::unordered_set<std::size_t> seen;
  std::vector<Row> rows(chosen.size());
  Row sum;
  for (std::size_t n = 0, tries = 0; n < inputs && tries < 20 * inputs; ++tries) {
    const std::size_t k = tries % chosen.size();
    std::vector<const World*> fitting;
    for (const World& w : worlds) {
      if (chosen[k]->fits(w)) fitting.push_back(&w);
    }
    const World& w = *fitting[random.below(fitting.size())];
    const Hurt h = chosen[k]->hurt(w, random);
    const std::string bytes(h.bytes.begin(), h.bytes.end());
    if (h.place == nullptr && h.bytes == w.files.at(h.file)) continue;
    const std::string input = w.name + h.file + h.distinct + bytes;
    if (!seen.insert(std::hash<std::string>()(input)).second) continue;
    ++n;
    fs::remove(w.dir / h.file);
    if (h.place) {
      h.place(w.dir / h.file);
    } else {
      put(w.dir / h.file, h.bytes);
    }
    const std::size_t at = static_cast<std::size_t>(&w - worlds.data());
    const Outcome o = judge(w);
    fs::remove_all(w.dir / h.file);
    put(w.dir / h.file, w.files.at(h.file));

    Row& row = rows[k];
    ++row.inputs;
    row.crashes += o.crashed;
    row.hangs += o.hung;
    const bool same = o.answer.digest == whole[at].answer.digest;
    if (o.answer.whole) {
      row.refused += o.answer.refused;
      row.same += !o.answer.refused && same;
      row.different += !o.answer.refused && !same;
    }
    if (o.peak_bytes > whole[at].peak_bytes) {
      row.over = std::max(row.over, o.peak_bytes - whole[at].peak_bytes);
    }
    std::string why = wrong(h, o, whole[at].answer.digest);
    if (why.empty() && o.peak_bytes > whole[at].peak_bytes + most_over) why = "too much memory";
    if (why.empty()) continue;
    ++row.wrong;
    std::printf("WRONG: %s, %s of %s: %s (wanted %s \"%s\", got %s in %s \"%s\": %s)\n",
                chosen[k]->name, h.file.c_str(), w.name.c_str(), why.c_str(),
                std::string(to_string(h.code)).c_str(), h.field.c_str(),
                std::string(to_string(o.answer.code)).c_str(), o.answer.file, o.answer.field,
                o.answer.message);
  }
  std::printf("%-44s %7s %8s %6s %10s %8s %6s %7s\n", "kind", "inputs", "refused", "same",
              "different", "crashes", "hangs", "over MB");
  const auto print = [](const char* name, const Row& r) {
    std::printf("%-44s %7zu %8zu %6zu %10zu %8zu %6zu %7.1f\n", name, r.inputs, r.refused, r.same,
                r.different, r.crashes, r.hangs, static_cast<double>(r.over) / (1 << 20));
  };
  for (std::size_t k = 0; k < chosen.size(); ++k) {
    print(chosen[k]->name, rows[k]);
    sum.inputs += rows[k].inputs, sum.refused += rows[k].refused, sum.same += rows[k].same;
    sum.different += rows[k].different, sum.crashes += rows[k].crashes;
    sum.hangs += rows[k].hangs, sum.wrong += rows[k].wrong;
    sum.over = std::max(sum.over, rows[k].over);
  }
  print("all", sum);
  std::printf("%zu kinds, %zu distinct inputs, %zu not as they must be\n", chosen.size(),
              sum.inputs, sum.wrong);
  return sum.wrong == 0 && sum.inputs > 0 ? 0 : 1;
}
