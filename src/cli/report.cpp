// waste report: a container's facts and measurements as one HTML page that needs no network.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "commands.hpp"
#include "json_of.hpp"
#include "printable.hpp"
#include "progress.hpp"
#include "report_page.hpp"
#include "waste/convert/verify.hpp"
#include "waste/core/parallel.hpp"
#include "waste/engine/memory_plan.hpp"
#include "waste/format/json.hpp"
#include "waste/io/container.hpp"
#include "waste/io/file.hpp"
#include "waste/io/memory_limit.hpp"
#include "waste/version.hpp"

namespace waste::cli {
namespace {

constexpr std::uint64_t max_input_bytes = 64u << 20;

struct Arguments {
  std::string directory, out, source, verify, kernels, trace;
  std::uint64_t context = 4096;
  bool quiet = false;
};

std::uint64_t size_or_zero(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<std::uint64_t>(size);
}

JsonValue bytes_json(const Container& c) {
  const format::Manifest& m = c.manifest();
  std::uint64_t experts = 0;
  for (const format::BankEntry& b : m.layers) experts += b.bytes;
  std::map<format::Fmt, std::uint64_t> formats;
  for (const format::TrunkEntry& t : m.trunk) formats[t.fmt] += t.bytes;
  JsonValue out, trunk(JsonValue::Array{});
  const std::uint64_t codebooks = size_or_zero(c.directory() / "codebooks.bin");
  const std::uint64_t manifest = size_or_zero(c.directory() / "manifest.json");
  out.set("experts", experts);
  out.set("trunk", format::trunk_end(m));
  for (const auto& [fmt, bytes] : formats) {
    JsonValue one;
    one.set("format", to_string(fmt));
    one.set("bytes", bytes);
    trunk.push_back(std::move(one));
  }
  out.set("trunk_formats", std::move(trunk));
  out.set("trunk_holes", format::trunk_hole_bytes(m));
  out.set("codebooks", codebooks);
  out.set("manifest", manifest);
  out.set("total", experts + format::trunk_end(m) + codebooks + manifest);
  return out;
}

/// Null for a family of models whose memory no plan here knows.
JsonValue memory_json(const Container& c, std::uint64_t context) {
  engine::PlanOptions options;
  options.context_tokens = context;
  options.threads = available_threads();
  engine::MemoryPlan plan;
  try {
    plan = engine::plan_memory(c.manifest(), options);
  } catch (const Error& e) {
    if (e.code() != Errc::unsupported) throw;
    return {};
  }
  JsonValue out = plan_json(plan, context);
  out.set("usable_bytes", io::memory_limit().usable_bytes());
  return out;
}

/// What a comparison with the source found, measured now.
JsonValue measured_errors(const Arguments& a) {
  Progress line("compare", a.quiet);
  convert::VerifyOptions options;
  options.source = a.source;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    line.update(static_cast<double>(done), static_cast<double>(total));
  };
  const convert::VerifyReport r = convert::verify(a.directory, options);
  line.finish();
  JsonValue out;
  out.set("expert_limit", r.expert_limit);
  out.set("findings_total", r.findings_total);
  out.set("experts", experts_error_json(r));
  out.set("trunk", trunk_error_json(r));
  return out;
}

JsonValue read_object(const std::string& path) {
  JsonValue value = parse_json(io::read_text(path, max_input_bytes), path);
  if (!value.is_object()) throw Error(fault(Errc::bad_field, "top level"), path, "wants an object");
  return value;
}

/// A member that must be an array of objects.
const JsonValue& objects(const JsonValue& value, const char* field, const std::string& path) {
  const JsonValue* v = value.find(field);
  if (!v) throw Error(fault(Errc::missing, field), path);
  const auto* list = v->as_array();
  if (!list) throw Error(fault(Errc::bad_field, field), path, "wants an array");
  for (const JsonValue& one : *list) {
    if (!one.is_object()) throw Error(fault(Errc::bad_field, field), path, "wants objects");
  }
  return *v;
}

/// The part of a saved `waste verify --json` that the page shows.
JsonValue saved_errors(const std::string& path) {
  const JsonValue file = read_object(path);
  JsonValue out;
  for (const char* key : {"expert_limit", "findings_total"}) {
    const JsonValue* v = file.find(key);
    if (!v || !v->is_number()) throw Error(fault(Errc::missing, key), path, "wants a number");
    out.set(key, *v);
  }
  out.set("experts", objects(file, "experts_error", path));
  out.set("trunk", objects(file, "trunk_error", path));
  if (out.find("experts")->as_array()->empty()) {
    throw Error(fault(Errc::missing, "experts_error"), path, "was made without --source");
  }
  return out;
}

JsonValue read_kernels(const std::string& path) {
  const std::string text = io::read_text(path, max_input_bytes);
  JsonValue out(JsonValue::Array{});
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    ++number;
    if (end > at) {
      const std::string where = path + " line " + std::to_string(number);
      JsonValue one = parse_json(std::string_view(text).substr(at, end - at), where);
      const JsonValue* op = one.find("op");
      if (!op || !op->is_string()) throw Error(fault(Errc::missing, "op"), where);
      for (const char* key : {"ns", "weights_per_ns", "payload_gb_s", "threads"}) {
        const JsonValue* v = one.find(key);
        if (!v || !v->is_number() || !(v->number() >= 0)) {
          throw Error(fault(Errc::bad_field, key), where, "wants a number that is not negative");
        }
      }
      out.push_back(std::move(one));
    }
    at = end + 1;
  }
  return out;
}

JsonValue read_trace(const std::string& path) {
  JsonValue out = read_object(path);
  objects(out, "results", path);
  const JsonValue* set = out.find("working_set_records");
  if (!set || !set->is_unsigned()) {
    throw Error(fault(Errc::missing, "working_set_records"), path, "wants an integer");
  }
  return out;
}

void run(const Arguments& a) {
  OpenOptions options;
  options.resident_trunk = false;
  const Container c = Container::open(a.directory, options);
  const format::Manifest& m = c.manifest();
  JsonValue report;
  report.set("version", version_string);
  report.set("directory", as_utf8(a.directory));
  report.set("arch", m.arch);
  report.set("format", to_string(m.expert_quant.fmt));
  report.set("layers", m.model.num_hidden_layers);
  report.set("moe_layers", m.model.moe_layers());
  report.set("experts", m.model.num_experts);
  report.set("record_bytes", m.layout.record_bytes);
  report.set("bytes", bytes_json(c));
  report.set("plan", memory_json(c, a.context));
  report.set("errors", !a.source.empty()   ? measured_errors(a)
                       : !a.verify.empty() ? saved_errors(a.verify)
                                           : JsonValue());
  report.set("kernels", a.kernels.empty() ? JsonValue() : read_kernels(a.kernels));
  report.set("trace", a.trace.empty() ? JsonValue() : read_trace(a.trace));
  io::write_atomically(a.out, report_page(report));
  if (!a.quiet) std::fprintf(stderr, "wrote %s\n", a.out.c_str());
}

}  // namespace

void add_report(CLI::App& app, Context&) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand(
      "report", "Draw what is known of a container into one HTML page that needs no network");
  cmd->add_option("directory", a->directory, "Container directory")->required();
  cmd->add_option("--out,-o", a->out, "The page to write (replaced where it exists)")->required();
  cmd->add_option("--context", a->context, "Longest sequence of the memory plan, in tokens")
      ->capture_default_str();
  CLI::Option* source =
      cmd->add_option("--source", a->source,
                      "Checkpoint it was converted from: measures the errors, which reads all");
  cmd->add_option("--verify", a->verify,
                  "Take the errors from what `waste verify DIR --source SRC --json` printed")
      ->excludes(source);
  cmd->add_option("--kernels", a->kernels, "What `waste bench kernels --json FILE` wrote: draws the roofline");
  cmd->add_option("--trace", a->trace,
                  "What `waste trace FILE --json` printed: draws hit rate against cache size");
  cmd->add_flag("--quiet,-q", a->quiet, "Nothing on standard error");
  cmd->footer(
      "The page carries its numbers as JSON in the script element with the id \"data\".\n\n"
      "Example:  waste report k3.waste --out k3.html --kernels kernels.jsonl");
  cmd->callback([a] { run(*a); });
}

}  // namespace waste::cli
