#include "waste/convert/converter.hpp"

#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>

#include "commands.hpp"
#include "progress.hpp"
#include "waste/format/family.hpp"
#include "waste/format/json.hpp"

namespace waste::cli {
namespace {

struct Arguments {
  std::string source, destination, layers, calibration;
  std::vector<std::string> merge;  ///< destination, then parts
  std::vector<std::string> drives;
  convert::ConvertOptions options;
  std::string format = "vq3r", effort = "default", router = "follow", trunk_scale = "search";
  bool json = false, quiet = false;
};

std::optional<std::pair<std::uint32_t, std::uint32_t>> parse_range(const std::string& text) {
  const char* end = text.data() + text.size();
  std::uint32_t first = 0;
  auto [at, ec] = std::from_chars(text.data(), end, first);
  if (ec != std::errc()) return std::nullopt;
  std::uint32_t last = first;
  if (at != end) {
    if (*at != '-') return std::nullopt;
    const auto second = std::from_chars(at + 1, end, last);
    if (second.ec != std::errc() || second.ptr != end || last < first) return std::nullopt;
  }
  return std::pair{first, last};
}

std::string range_error(const std::string& text) {
  return text == "trunk" || parse_range(text)
             ? ""
             : "wants a layer, a range A-B or the word trunk, got " + text;
}

void resolve(Arguments& a) {
  static const std::map<std::string, format::ExpertQuant> formats = {
      {"vq3r", format::vq3r}, {"vq4p", format::vq4p}, {"vq2r", format::vq2r}};
  static const std::map<std::string, quant::Effort> efforts = {{"fast", quant::Effort::fast},
                                                               {"default", quant::Effort::standard},
                                                               {"best", quant::Effort::best}};
  static const std::map<std::string, convert::RouterFormat> routers = {
      {"follow", convert::RouterFormat::follow},
      {"f32", convert::RouterFormat::f32},
      {"q8", convert::RouterFormat::q8g},
      {"q4", convert::RouterFormat::q4g}};
  a.options.quant = formats.at(a.format);
  a.options.effort = efforts.at(a.effort);
  a.options.router = routers.at(a.router);
  a.options.trunk_scale =
      a.trunk_scale == "search" ? quant::GroupScale::search : quant::GroupScale::absmax;
  a.options.trunk_only = a.layers == "trunk";
  if (!a.layers.empty() && !a.options.trunk_only) a.options.layers = parse_range(a.layers);
  a.options.calibration = a.calibration;
  a.options.drives.assign(a.drives.begin(), a.drives.end());
}

void print_json(const convert::ConvertReport& r, double seconds) {
  JsonValue out;
  out.set("complete", r.complete);
  out.set("layers_done", r.layers_done);
  out.set("layers_total", r.layers_total);
  out.set("records_written", r.records_written);
  out.set("records_kept", r.records_kept);
  out.set("expert_weights", r.expert_weights);
  out.set("expert_bytes", r.expert_bytes);
  out.set("trunk_weights", r.trunk_weights);
  out.set("trunk_bytes", r.trunk_bytes);
  out.set("memory_bytes", r.memory_bytes);
  out.set("seconds", seconds);
  JsonValue errors(JsonValue::Object{});
  for (const auto kind : {format::Kind::gate, format::Kind::up, format::Kind::down}) {
    const quant::EncodeStats& s = r.error[static_cast<std::size_t>(kind)];
    if (s.squared_norm > 0) errors.set(std::string(to_string(kind)), s.relative_error());
  }
  out.set("relative_error", std::move(errors));
  out.set("records_calibrated", r.records_calibrated);
  JsonValue outputs(JsonValue::Object{});
  for (const auto kind : {format::Kind::gate, format::Kind::up, format::Kind::down}) {
    const quant::EncodeStats& s = r.output_error[static_cast<std::size_t>(kind)];
    if (s.squared_norm > 0) outputs.set(std::string(to_string(kind)), s.relative_error());
  }
  out.set("relative_output_error", std::move(outputs));
  out.set("substitute_bytes", r.substitute_bytes);
  JsonValue substitutes(JsonValue::Object{});
  for (const auto kind : {format::Kind::gate, format::Kind::up, format::Kind::down}) {
    const quant::EncodeStats& s = r.substitute_error[static_cast<std::size_t>(kind)];
    if (s.squared_norm > 0) substitutes.set(std::string(to_string(kind)), s.relative_error());
  }
  out.set("relative_substitute_error", std::move(substitutes));
  std::printf("%s\n", dump_json(out).c_str());
}

void print_report(const Arguments& a, const convert::ConvertReport& r, double seconds) {
  if (!r.complete) {
    std::printf(
        "%s%u of %u layers are converted here; run again without --layers to finish, or join "
        "slices with --merge.\n",
        a.options.trunk_only ? "The trunk and " : "", r.layers_done, r.layers_total);
    return;
  }
  if (r.layers_total == 0) {
    std::printf("%s was complete already; removed what the conversion had left.\n",
                a.destination.c_str());
    return;
  }
  std::printf(
      "%s: %u layers, experts %.1f MB (%.3f bits/weight), trunk %.1f MB (%.3f bits/weight)\n",
      a.destination.c_str(), r.layers_total, static_cast<double>(r.expert_bytes) / 1e6,
      8.0 * static_cast<double>(r.expert_bytes) / static_cast<double>(r.expert_weights),
      static_cast<double>(r.trunk_bytes) / 1e6,
      8.0 * static_cast<double>(r.trunk_bytes) / static_cast<double>(r.trunk_weights));
  if (r.substitute_bytes > 0) {
    std::printf(
        "substitutes %.1f MB (%.3f bits/weight)\n", static_cast<double>(r.substitute_bytes) / 1e6,
        8.0 * static_cast<double>(r.substitute_bytes) / static_cast<double>(r.expert_weights));
  }
  if (!a.merge.empty()) return;
  std::printf("%llu records written, %llu kept from an earlier run, %.1f s",
              static_cast<unsigned long long>(r.records_written),
              static_cast<unsigned long long>(r.records_kept), seconds);
  const auto errors = [](const char* of, const auto& e) {
    std::printf("; relative error%s gate %.2f %%, up %.2f %%, down %.2f %%", of,
                100 * e[0].relative_error(), 100 * e[1].relative_error(),
                100 * e[2].relative_error());
  };
  if (r.records_written > r.records_calibrated) errors("", r.error);
  if (r.records_calibrated > 0) errors(" of calibrated experts' output", r.output_error);
  if (r.substitute_error[0].squared_norm > 0) errors(" of substitutes", r.substitute_error);
  std::printf("\n");
}

void run(Arguments& a) {
  if (!a.merge.empty()) {
    a.destination = a.merge.front();
    const convert::ConvertReport report =
        convert::merge(a.destination, {a.merge.begin() + 1, a.merge.end()});
    if (a.json) {
      print_json(report, 0);
    } else {
      print_report(a, report, 0);
    }
    return;
  }
  resolve(a);
  const auto start = std::chrono::steady_clock::now();
  Progress line("convert", a.quiet);
  a.options.progress = [&](const convert::ConvertProgress& p) {
    if (p.stage == "finish") return;
    std::string detail(p.stage);
    if (p.stage != "trunk") detail += " of layer " + std::to_string(p.layer);
    if (p.weights > 0) {
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      char text[96];
      std::snprintf(text, sizeof text, ", %.2f M weights/s, error %.2f %%",
                    static_cast<double>(p.weights) / seconds / 1e6, 100 * p.relative_error);
      detail += text;
    }
    line.update(p.done, p.total, detail);
  };
  const convert::ConvertReport report = convert::convert(a.source, a.destination, a.options);
  line.finish();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (a.json) {
    print_json(report, seconds);
  } else {
    if (!a.quiet) {
      std::fprintf(stderr, "memory: at most about %.0f MB besides the source's headers\n",
                   static_cast<double>(report.memory_bytes) / 1e6);
    }
    print_report(a, report, seconds);
  }
}

}  // namespace

void add_convert(CLI::App& app, Context& context) {
  auto a = std::make_shared<Arguments>();
  CLI::App* cmd = app.add_subcommand("convert", "Convert a checkpoint to a WASTE container");
  cmd->add_option("source", a->source,
                  "Checkpoint: config.json, safetensors shards with their index, tokenizer");
  cmd->add_option("destination", a->destination,
                  "Container directory to create; a conversion that was interrupted continues");
  cmd->add_option("--format", a->format, "Format of the experts")
      ->check(CLI::IsMember({"vq3r", "vq4p", "vq2r"}))
      ->capture_default_str();
  cmd->add_option("--effort", a->effort, "How hard to search for good indices and codebooks")
      ->check(CLI::IsMember({"fast", "default", "best"}))
      ->capture_default_str();
  cmd->add_option("--trunk-bits", a->options.trunk_bits, "Bits of the large dense matrices")
      ->check(CLI::IsMember({3, 4, 8}))
      ->capture_default_str();
  cmd->add_option("--trunk-scale", a->trunk_scale,
                  "Scales of the trunk's groups: searched for the least squared error, or from the "
                  "largest value, as other converters do")
      ->check(CLI::IsMember({"absmax", "search"}))
      ->capture_default_str();
  cmd->add_option("--router", a->router, "Format of the routers; follow: as the trunk")
      ->check(CLI::IsMember({"follow", "f32", "q8", "q4"}))
      ->capture_default_str();
  cmd->add_option("--calibration", a->calibration,
                  "File of waste calibrate: code experts and trunk for the least error of their "
                  "output, and bake which experts are used most");
  cmd->add_option("--damping", a->options.damping,
                  "With --calibration: added to the moments' diagonal, in parts of its mean")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  cmd->add_flag(
      "--substitutes", a->options.substitutes,
      "Also write a coarse copy of every expert, about 1 bit a weight (subs-L{n}.bin), for "
      "waste run --substitute-after");
  cmd->add_option("--layers", a->layers,
                  "Convert only the experts of layers A-B and stop, or only the word trunk; slices "
                  "may run as separate jobs, into one directory or into one each for --merge")
      ->check(CLI::Validator(range_error, "A-B|trunk"));
  cmd->add_flag("--finish", a->options.merge_only,
                "Finish a conversion whose layers were all converted into this directory");
  cmd->add_option("--merge", a->merge,
                  "OUT PART...: join slices made by --layers in directories of their own; together "
                  "every layer once, and the trunk")
      ->expected(2, 1 << 20)
      ->type_name("OUT PART...");
  cmd->add_option(
         "--drives", a->drives,
         "DIR1,DIR2,...: put the layers' experts on these drives in turn, into a folder "
         "with the container's name, and links into the container; a run reads from all of "
         "them at once. With --force a container's banks there are removed too")
      ->delimiter(',')
      ->type_name("DIR,...")
      ->excludes("--merge");
  cmd->add_option("--cb-sample", a->options.codebook_sample,
                  "Experts per layer that codebooks are trained on (0: 12, more where small)")
      ->capture_default_str();
  cmd->add_option("--jobs,-j", a->options.jobs,
                  "Threads (0: all this process may use); the result is the same for any number")
      ->capture_default_str();
  cmd->add_option("--seed", a->options.seed, "Seed of the codebook training")
      ->capture_default_str();
  cmd->add_flag("--force", a->options.replace,
                "Remove a container, or an unfinished conversion, that is in the way");
  cmd->add_flag("--json", a->json, "Print the result as one line of JSON");
  cmd->add_flag("--quiet,-q", a->quiet, "No progress on standard error");
  std::string families;
  for (const format::FamilyNames& family : format::families) {
    families += (families.empty() ? "" : ", ") + std::string(family.name);
  }
  cmd->footer("Families of checkpoints: " + families +
              ".\nThe first covers Kimi-Linear and K3, which waste run knows.");
  cmd->callback([a, &context] {
    if (a->merge.empty() && a->destination.empty()) {
      throw CLI::RequiredError(a->source.empty() ? "source" : "destination");
    }
    if (!a->merge.empty() && !a->source.empty()) {
      throw CLI::ExcludesError("--merge", "source");
    }
    run(*a);
    context.exit_code = exit_ok;
  });
}

}  // namespace waste::cli
