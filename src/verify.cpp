#include "waste/convert/verify.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "verify_internal.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/manifest.hpp"
#include "waste/io/audit.hpp"
#include "waste/io/container.hpp"

namespace waste::convert {
namespace {

namespace fs = std::filesystem;
using format::Kind;
constexpr Kind all_kinds[] = {Kind::gate, Kind::up, Kind::down};

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
    codebooks();
    for (const format::BankEntry& entry : manifest_.layers) bank(entry);
    trunk();
    return report_;
  }

 private:
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
    std::error_code ec;
    report_.codebook_bytes = fs::file_size(directory_ / "codebooks.bin", ec);
    if (ec) report_.codebook_bytes = 0;
    total_ = report_.codebook_bytes + report_.bank_bytes + report_.trunk_bytes;
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

  void codebooks() {
    const fs::path path = directory_ / "codebooks.bin";
    const std::uint64_t before = report_.findings_total;
    guard([&] { io::audit_codebooks(path, manifest_, sink(0)); });
    try {
      codebooks_ = std::make_shared<const io::Codebooks>(
          io::Codebooks::load(path, manifest_.expert_quant, manifest_.layers));
    } catch (const Error& e) {
      if (report_.findings_total == before) add(e);
    }
    done_ = report_.codebook_bytes;
  }

  void bank(const format::BankEntry& entry) {
    const std::uint64_t before = done_;
    done_ += entry.bytes;
    std::unique_ptr<const io::ExpertBank> bank;
    const bool comparable = report_.compared && codebooks_ != nullptr;
    const auto books = codebooks_ ? codebooks_ : std::make_shared<const io::Codebooks>();
    if (!guard([&] {
          bank = std::make_unique<const io::ExpertBank>(directory_, entry, manifest_.layout, books);
        })) {
      at(done_);
      return;
    }
    std::vector<Fault> faults(entry.experts);
    std::vector<std::array<quant::EncodeStats, format::kinds>> stats(entry.experts);
    std::mutex mutex;
    std::uint64_t seen = 0;
    parallel_for(entry.experts, jobs_, [&](std::size_t i) {
      const ExpertId expert{static_cast<std::uint32_t>(i)};
      AlignedBuffer<std::uint8_t> record(static_cast<std::size_t>(bank->record_bytes()));
      Fault f = bank->try_read_raw(expert, record.span());
      if (!f) f = io::audit_record(*bank, expert, record.span());
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
    if (comparable) judge(*bank, faults, stats);
  }

  void judge(const io::ExpertBank& bank, const std::vector<Fault>& faults,
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
        if (!(error <= 1.5 * report_.expert_limit)) {
          add(too_far(fault(Errc::mismatch, "weights").at(bank.layer(), ExpertId{e}),
                      bank.file().path().string(), to_string(kind), error,
                      1.5 * report_.expert_limit));
        }
      }
      const double error = sum.stats.relative_error();
      if (!(error <= report_.expert_limit)) {
        add(too_far(fault(Errc::mismatch, "weights").at(bank.layer()), bank.file().path().string(),
                    to_string(kind), error, report_.expert_limit));
      }
      report_.experts_error.push_back(sum);
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
    if (!guard([&] { trunk = io::Trunk::open(directory_ / "trunk.bin", manifest_, false); }))
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
  std::shared_ptr<const io::Codebooks> codebooks_;
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
