#include "waste/convert/verify.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>

#include "verify_internal.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/manifest.hpp"
#include "waste/io/audit.hpp"
#include "waste/io/checksums.hpp"
#include "waste/io/container.hpp"
#include "waste/io/substitutes.hpp"

namespace waste::convert {
namespace {

namespace fs = std::filesystem;
using format::Kind;
constexpr Kind all_kinds[] = {Kind::gate, Kind::up, Kind::down};

std::uint64_t file_bytes(const fs::path& path) {
  std::error_code ec;
  const std::uint64_t bytes = fs::file_size(path, ec);
  return ec ? 0 : bytes;
}

class Verifier {
 public:
  Verifier(const fs::path& directory, const VerifyOptions& options)
      : directory_(directory), options_(options), jobs_(options.jobs) {
    if (jobs_ == 0) jobs_ = available_threads();
  }

  VerifyReport run() {
    const fs::path path = directory_ / "manifest.json";
    const std::string text = io::read_text(path, format::limits::manifest_bytes);
    if (!options_.source.empty()) source_ = Checkpoint::open(options_.source);
    if (!guard([&] { manifest_ = format::parse_manifest(text, path.string()); })) return report_;
    report_.has_manifest = true;
    describe();
    if (source_) report_.compared = same_model();
    guard([&] { sums_ = io::read_checksums(directory_); });
    files();
    banks({directory_ / "codebooks.bin", manifest_.layout, manifest_.layers,
           io::codebook_crcs(sums_), report_.expert_limit, report_.experts_error});
    substitutes();
    trunk();
    return report_;
  }

 private:
  /// Banks of one layout and the codebooks that they share.
  struct Set {
    fs::path codebooks;
    const format::RecordLayout& layout;
    const std::vector<format::BankEntry>& layers;
    std::span<const std::uint32_t> crcs;  ///< of the codebooks
    double limit;                         ///< relative error allowed per (layer, kind)
    std::vector<LayerError>& errors;
  };

  void add(const Error& e) {
    ++report_.findings_total;
    if (report_.findings.size() < options_.max_findings) {
      report_.findings.push_back({e.fault(), e.file(), e.what()});
    }
  }

  /// Runs f; an Error becomes a finding. Returns whether there was none.
  template <class F>
  bool guard(F&& f) {
    try {
      f();
      return true;
    } catch (const Error& e) {
      add(e);
      return false;
    }
  }

  io::AuditSink sink(std::uint64_t before) {
    return {[this](const Error& e) { add(e); },
            [this, before](std::uint64_t bytes) { at(before + bytes); }};
  }

  void at(std::uint64_t done) const {
    if (options_.progress) options_.progress(done, total_);
  }

  void describe() {
    const format::Manifest& m = manifest_;
    substitutes_ = format::substitutes_of(m);
    report_.expert_quant = m.expert_quant;
    report_.layers = static_cast<std::uint32_t>(m.layers.size());
    report_.experts = m.model.num_experts;
    report_.record_bytes = m.layout.record_bytes;
    report_.expert_limit = options_.max_expert_error.value_or(expert_error_limit(m.expert_quant));
    const double per_expert =
        3.0 * static_cast<double>(m.layout.shape.inter * m.layout.shape.width);
    for (const format::BankEntry& b : m.layers) report_.bank_bytes += b.bytes;
    report_.expert_bits_per_weight = 8.0 * static_cast<double>(m.layout.record_bytes) / per_expert;
    double weights = 0;
    for (const format::TrunkEntry& t : m.trunk) {
      report_.trunk_bytes += t.bytes;
      weights += static_cast<double>(t.rows()) * static_cast<double>(t.cols());
    }
    if (weights > 0) {
      report_.trunk_bits_per_weight = 8.0 * static_cast<double>(report_.trunk_bytes) / weights;
    }
    report_.codebook_bytes = file_bytes(directory_ / "codebooks.bin");
    total_ = report_.codebook_bytes + report_.bank_bytes + report_.trunk_bytes;
    if (!io::has_substitutes(directory_, substitutes_)) return;
    report_.substitute_bytes = substitutes_.bytes();
    total_ += report_.substitute_bytes + file_bytes(directory_ / format::substitute_codebooks_file);
  }

  bool same_model() {
    const std::string file = (directory_ / "manifest.json").string();
    if (source_->container_config() != manifest_.config) {
      add(Error(fault(Errc::mismatch, "config"), file,
                "differs from config.json of " + source_->directory().string()));
    }
    const format::ModelConfig &a = source_->model(), &b = manifest_.model;
    const bool same = a.expert_shape() == b.expert_shape() && a.num_experts == b.num_experts &&
                      a.num_hidden_layers == b.num_hidden_layers &&
                      a.first_k_dense_replace == b.first_k_dense_replace;
    if (!same) {
      add(Error(fault(Errc::shape, "experts"), file,
                "the source has another model, its weights cannot be compared"));
    }
    return same;
  }

  /// Whole files that checksums.json knows.
  void files() {
    if (!sums_) return;
    for (const auto& [name, want] : sums_->files) {
      guard([&, &file = name, want = want] {
        const std::uint32_t crc = io::file_crc(directory_ / file);
        if (crc == want) return;
        throw Error(fault(Errc::checksum, "crc32", crc, want), (directory_ / file).string(),
                    io::checksums_file);
      });
    }
  }

  void banks(const Set& set) {
    const std::uint64_t before = report_.findings_total;
    guard([&] {
      io::audit_codebooks(set.codebooks, set.layout.quant, set.layers, sink(done_), set.crcs);
    });
    std::shared_ptr<const io::Codebooks> books;
    try {
      books = std::make_shared<const io::Codebooks>(
          io::Codebooks::load(set.codebooks, set.layout.quant, set.layers));
    } catch (const Error& e) {
      if (report_.findings_total == before) add(e);
    }
    done_ += file_bytes(set.codebooks);
    for (const format::BankEntry& entry : set.layers) bank(set, entry, books);
  }

  /// The second set of banks, where any of its files is there or any record says so.
  void substitutes() {
    if (!io::has_substitutes(directory_, substitutes_)) {
      if (promised_) {
        add(Error(fault(Errc::missing, "substitutes").at(*promised_), directory_.string(),
                  "records say that there are some"));
      }
      return;
    }
    const Set set{directory_ / format::substitute_codebooks_file,
                  substitutes_.layout,
                  substitutes_.layers,
                  sums_ ? std::span<const std::uint32_t>(sums_->substitute_codebooks)
                        : std::span<const std::uint32_t>(),
                  expert_error_limit(format::sub1),
                  report_.substitutes_error};
    banks(set);
  }

  void bank(const Set& set, const format::BankEntry& entry,
            const std::shared_ptr<const io::Codebooks>& codebooks) {
    const std::uint64_t before = done_;
    done_ += entry.bytes;
    std::unique_ptr<const io::ExpertBank> bank;
    const bool comparable = report_.compared && codebooks != nullptr;
    const auto books = codebooks ? codebooks : std::make_shared<const io::Codebooks>();
    if (!guard([&] {
          bank = std::make_unique<const io::ExpertBank>(directory_, entry, set.layout, books);
        })) {
      at(done_);
      return;
    }
    std::vector<Fault> faults(entry.experts);
    std::vector<std::array<quant::EncodeStats, format::kinds>> stats(entry.experts);
    std::mutex mutex;
    std::uint64_t seen = 0;
    std::atomic<bool> promises{false};
    parallel_for(entry.experts, jobs_, [&](std::size_t i) {
      const ExpertId expert{static_cast<std::uint32_t>(i)};
      AlignedBuffer<std::uint8_t> record(static_cast<std::size_t>(bank->record_bytes()));
      Fault f = bank->try_read_raw(expert, record.span());
      if (!f) f = io::audit_record(*bank, expert, record.span());
      if (!f && (record[9] & format::record_flags::has_substitute) != 0) promises = true;
      faults[i] = f.code != Errc::ok && f.expert == Fault::none ? f.at(bank->layer(), expert) : f;
      if (!f && comparable) {
        const ExpertView view = bank->view(record.span());
        stats[i] = {detail::compare_matrix(*source_, bank->layer(), expert, Kind::gate, view.gate),
                    detail::compare_matrix(*source_, bank->layer(), expert, Kind::up, view.up),
                    detail::compare_matrix(*source_, bank->layer(), expert, Kind::down, view.down)};
      }
      const std::lock_guard lock(mutex);
      at(before + ++seen * bank->record_bytes());
    });
    report_.records += entry.experts;
    for (const Fault& f : faults) {
      if (f) add(Error(f, bank->file().path().string()));
    }
    if (promises && !promised_) promised_ = bank->layer();
    if (comparable) judge(set, *bank, faults, stats);
  }

  void judge(const Set& set, const io::ExpertBank& bank, const std::vector<Fault>& faults,
             const std::vector<std::array<quant::EncodeStats, format::kinds>>& stats) {
    for (const Kind kind : all_kinds) {
      const auto k = static_cast<std::size_t>(kind);
      LayerError sum;
      sum.layer = to_index(bank.layer());
      sum.kind = kind;
      for (std::uint32_t e = 0; e < stats.size(); ++e) {
        if (faults[e]) continue;
        sum.stats += stats[e][k];
        const double error = stats[e][k].relative_error();
        if (!(error <= sum.worst)) {
          sum.worst = error;
          sum.worst_expert = e;
        }
        if (!(error <= 1.5 * set.limit)) {
          add(too_far(fault(Errc::mismatch, "weights").at(bank.layer(), ExpertId{e}),
                      bank.file().path().string(), to_string(kind), error, 1.5 * set.limit));
        }
      }
      const double error = sum.stats.relative_error();
      if (!(error <= set.limit)) {
        add(too_far(fault(Errc::mismatch, "weights").at(bank.layer()), bank.file().path().string(),
                    to_string(kind), error, set.limit));
      }
      set.errors.push_back(sum);
    }
  }

  static Error too_far(const Fault& f, const std::string& file, std::string_view what, double error,
                       double limit) {
    char text[96];
    std::snprintf(text, sizeof text, " is %.2f %% off its source, limit %.2f %%", 100 * error,
                  100 * limit);
    return Error(f, file, std::string(what) + text);
  }

  void trunk() {
    io::Trunk trunk;
    if (!guard(
            [&] { trunk = io::Trunk::open(directory_ / "trunk.bin", manifest_, false, 1, sums_); }))
      return;
    guard([&] { io::audit_trunk(trunk, sink(done_)); });
    if (!report_.compared) return;
    const std::string file = trunk.file().path().string();
    for (const TrunkSource& t : source_->trunk()) {
      const format::TrunkEntry* entry = manifest_.tensor(t.name);
      if (!entry) {
        add(Error(fault(Errc::missing, "tensor"), file, t.name));
        continue;
      }
      if (entry->shape != t.shape) {
        add(Error(fault(Errc::shape, "tensor"), file, t.name + " has another shape in the source"));
        continue;
      }
      guard([&] {
        const TensorError e{t.name, entry->fmt, detail::compare_tensor(*source_, t, trunk, *entry)};
        const double error = e.stats.relative_error(), limit = trunk_error_limit(e.fmt);
        if (!(error <= limit)) {
          add(too_far(fault(Errc::mismatch, "weights"), file, t.name, error, limit));
        }
        report_.trunk_error.push_back(e);
      });
    }
    for (const format::TrunkEntry& t : manifest_.trunk) {
      if (!source_->has(t.name)) {
        add(Error(fault(Errc::mismatch, "tensor"), file, t.name + " is not in the source"));
      }
    }
  }

  const fs::path& directory_;
  const VerifyOptions& options_;
  unsigned jobs_;
  VerifyReport report_;
  format::Manifest manifest_;
  std::optional<Checkpoint> source_;
  format::SubstituteBanks substitutes_;
  std::optional<io::Checksums> sums_;
  std::optional<LayerId> promised_;  ///< a layer of which some record says that it has a substitute
  std::uint64_t done_ = 0, total_ = 0;
};

}  // namespace

double expert_error_limit(const format::ExpertQuant& quant) noexcept {
  return std::pow(1.26 * std::pow(static_cast<double>(quant.entries), -1.0 / format::vec_dim),
                  static_cast<double>(quant.stages));
}

double trunk_error_limit(format::Fmt fmt) noexcept {
  switch (fmt) {
    case format::Fmt::f16:
      return 0.001;
    case format::Fmt::q8g:
      return 0.04;
    case format::Fmt::q4g:
      return 0.25;
    case format::Fmt::q3g:
      return 0.5;
    default:
      return 0.0;
  }
}

VerifyReport verify(const fs::path& directory, const VerifyOptions& options) {
  return Verifier(directory, options).run();
}

}  // namespace waste::convert
