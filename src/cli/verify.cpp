#include "waste/convert/verify.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "commands.hpp"
#include "json_of.hpp"
#include "progress.hpp"
#include "waste/format/json.hpp"

namespace waste::cli {
namespace {

struct Arguments {
  std::string directory, source;
  convert::VerifyOptions options;
  double max_error = 0;
  bool json = false, quiet = false;
};

double percent(const quant::EncodeStats& s) { return 100 * s.relative_error(); }

struct TrunkTotal {
  std::uint64_t tensors = 0;
  quant::EncodeStats stats;
  double worst = 0;
  std::string worst_name;
};

std::map<std::string, TrunkTotal> by_format(const convert::VerifyReport& r) {
  std::map<std::string, TrunkTotal> out;
  for (const convert::TensorError& t : r.trunk_error) {
    TrunkTotal& sum = out[std::string(to_string(t.fmt))];
    ++sum.tensors;
    sum.stats += t.stats;
    if (t.stats.relative_error() >= sum.worst) {
      sum.worst = t.stats.relative_error();
      sum.worst_name = t.name;
    }
  }
  return out;
}

void print_experts(const convert::VerifyReport& r) {
  std::printf("\n%-7s %8s  %-18s %-28s %8s\n", "experts", "error", "worst layer", "worst expert",
              "limit");
  for (const auto kind : {format::Kind::gate, format::Kind::up, format::Kind::down}) {
    quant::EncodeStats sum;
    const convert::LayerError *layer = nullptr, *expert = nullptr;
    for (const convert::LayerError& e : r.experts_error) {
      if (e.kind != kind) continue;
      sum += e.stats;
      if (!layer || e.stats.relative_error() > layer->stats.relative_error()) layer = &e;
      if (!expert || e.worst > expert->worst) expert = &e;
    }
    if (!layer) continue;
    char worst_layer[32], worst_expert[64];
    std::snprintf(worst_layer, sizeof worst_layer, "%.2f %% (%u)", percent(layer->stats),
                  layer->layer);
    std::snprintf(worst_expert, sizeof worst_expert, "%.2f %% (%u of layer %u)",
                  100 * expert->worst, expert->worst_expert, expert->layer);
    std::printf("%-7s %6.2f %%  %-18s %-28s %6.2f %%\n", std::string(to_string(kind)).c_str(),
                percent(sum), worst_layer, worst_expert, 100 * r.expert_limit);
  }
}

void print_trunk(const convert::VerifyReport& r) {
  std::printf("\n%-7s %8s  %-8s %-10s %s\n", "trunk", "error", "tensors", "worst", "of");
  for (const auto& [fmt, sum] : by_format(r)) {
    std::printf("%-7s %6.2f %%  %-8llu %6.2f %%   %s\n", fmt.c_str(), percent(sum.stats),
                static_cast<unsigned long long>(sum.tensors), 100 * sum.worst,
                sum.worst > 0 ? sum.worst_name.c_str() : "exact");
  }
}

void print_text(const Arguments& a, const convert::VerifyReport& r) {
  if (r.has_manifest) {
    std::printf(
        "%s: %s, %u layers of %u experts, %llu records of %llu bytes (%.3f bits/weight), trunk "
        "%.1f MB (%.3f bits/weight)\n",
        a.directory.c_str(), std::string(to_string(r.expert_quant.fmt)).c_str(), r.layers,
        r.experts, static_cast<unsigned long long>(r.records),
        static_cast<unsigned long long>(r.record_bytes), r.expert_bits_per_weight,
        static_cast<double>(r.trunk_bytes) / 1e6, r.trunk_bits_per_weight);
  }
  if (r.substitute_bytes > 0) {
    std::printf("substitutes of all experts: %.1f MB\n",
                static_cast<double>(r.substitute_bytes) / 1e6);
  }
  if (r.compared) {
    print_experts(r);
    print_trunk(r);
    std::printf("\n");
  }
  for (const convert::Finding& f : r.findings) std::printf("DAMAGED: %s\n", f.message.c_str());
  if (r.findings_total > r.findings.size()) {
    std::printf("and %llu more\n",
                static_cast<unsigned long long>(r.findings_total - r.findings.size()));
  }
  if (r.ok()) {
    std::printf("ok: %s\n", r.compared ? "every byte checked, every weight compared"
                                       : "every byte checked (weights: --source)");
  } else {
    std::printf("%llu faults\n", static_cast<unsigned long long>(r.findings_total));
  }
}

void print_json(const Arguments& a, const convert::VerifyReport& r) {
  JsonValue out, findings(JsonValue::Array{});
  out.set("directory", a.directory);
  out.set("ok", r.ok());
  out.set("format", to_string(r.expert_quant.fmt));
  out.set("layers", r.layers);
  out.set("experts", r.experts);
  out.set("records", r.records);
  out.set("record_bytes", r.record_bytes);
  out.set("bank_bytes", r.bank_bytes);
  out.set("trunk_bytes", r.trunk_bytes);
  out.set("codebook_bytes", r.codebook_bytes);
  out.set("substitute_bytes", r.substitute_bytes);
  out.set("expert_bits_per_weight", r.expert_bits_per_weight);
  out.set("trunk_bits_per_weight", r.trunk_bits_per_weight);
  out.set("compared", r.compared);
  out.set("expert_limit", r.expert_limit);
  for (const convert::Finding& f : r.findings) {
    JsonValue one;
    one.set("code", to_string(f.fault.code));
    one.set("field", f.fault.field);
    one.set("file", f.file);
    if (f.fault.layer != Fault::none) one.set("layer", f.fault.layer);
    if (f.fault.expert != Fault::none) one.set("expert", f.fault.expert);
    one.set("message", f.message);
    findings.push_back(std::move(one));
  }
  out.set("experts_error", experts_error_json(r));
  out.set("trunk_error", trunk_error_json(r));
  out.set("findings_total", r.findings_total);
  out.set("findings", std::move(findings));
  std::printf("%s\n", dump_json(out).c_str());
}

int run(Arguments& a) {
  Progress line("verify", a.quiet);
  a.options.source = a.source;
  if (a.max_error > 0) a.options.max_expert_error = a.max_error;
  a.options.progress = [&](std::uint64_t done, std::uint64_t total) {
    line.update(static_cast<double>(done), static_cast<double>(total),
                std::to_string(done / 1000000) + " of " + std::to_string(total / 1000000) + " MB");
  };
  const convert::VerifyReport report = convert::verify(a.directory, a.options);
  line.finish();
  if (a.json) {
    print_json(a, report);
  } else {
    print_text(a, report);
  }
  return report.ok() ? exit_ok : exit_found;
}

}  // namespace

void add_verify(CLI::App& app, Context& context) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "verify", "Check every byte of a container, and its weights against their source");
  cmd->footer("Exit code: 0 nothing wrong, 2 damage found, 1 the check could not be made.");
  cmd->add_option("directory", a->directory, "Container directory")->required();
  cmd->add_option("--source", a->source, "Checkpoint that it was converted from");
  cmd->add_option("--max-error", a->max_error,
                  "Relative error allowed per layer and kind of expert matrix, instead of the "
                  "format's (VQ3R 0.25, VQ4P 0.31, VQ2R 0.40)")
      ->check(CLI::Range(0.0, 10.0));
  cmd->add_option("--max-findings", a->options.max_findings, "Faults to name; all are counted")
      ->capture_default_str();
  cmd->add_option("--jobs,-j", a->options.jobs, "Threads (0: all this process may use)")
      ->capture_default_str();
  cmd->add_flag("--json", a->json, "Print the result as one line of JSON");
  cmd->add_flag("--quiet,-q", a->quiet, "No progress on standard error");
  cmd->callback([a, &context] { context.exit_code = run(*a); });
}

}  // namespace waste::cli
