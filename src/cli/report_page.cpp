#include "report_page.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "chart.hpp"

namespace waste::cli {
namespace {

constexpr double megabyte = 1e6;

/// Members of objects, 0 or empty where there is none.
double number(const JsonValue& object, const char* key) {
  const JsonValue* v = object.find(key);
  return v ? v->number() : 0.0;
}
std::string string(const JsonValue& object, const char* key) {
  const JsonValue* v = object.find(key);
  const std::string* s = v ? v->as_string() : nullptr;
  return s ? *s : std::string();
}
const JsonValue::Array& array(const JsonValue& object, const char* key) {
  static const JsonValue::Array none;
  const JsonValue* v = object.find(key);
  const auto* a = v ? v->as_array() : nullptr;
  return a ? *a : none;
}

/// "12,345,678"
std::string grouped(double value) {
  std::string digits = fixed(value, 0);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}
std::string percent(double share) { return fixed(100 * share, 2) + " %"; }

/// A table: class names the kind of its numbers for readers of the page's source.
class Table {
 public:
  explicit Table(const std::string& id, const std::vector<std::string>& head) {
    out_ = "<table id=\"" + id + "\">\n<tr>";
    for (const std::string& h : head) out_ += "<th>" + xml_text(h) + "</th>";
    out_ += "</tr>\n";
  }
  void row(const std::vector<std::string>& cells) {
    out_ += "<tr>";
    for (const std::string& c : cells) out_ += "<td>" + xml_text(c) + "</td>";
    out_ += "</tr>\n";
  }
  std::string end() const { return out_ + "</table>\n"; }

 private:
  std::string out_;
};

std::string section(const std::string& title, const std::string& body) {
  return "<h2>" + xml_text(title) + "</h2>\n" + body;
}
std::string note(const std::string& text) {
  return "<p class=\"note\">" + xml_text(text) + "</p>\n";
}
std::string details(const std::string& summary, const std::string& body) {
  return "<details><summary>" + xml_text(summary) + "</summary>\n" + body + "</details>\n";
}

std::string bytes_part(const JsonValue& bytes) {
  Bar bar{"on disk", {}};
  Table table("bytes", {"part", "bytes", "share"});
  const double total = number(bytes, "total");
  const auto add = [&](const std::string& name, double value) {
    bar.parts.emplace_back(name, value);
    table.row({name, grouped(value), percent(total > 0 ? value / total : 0)});
  };
  add("experts", number(bytes, "experts"));
  for (const JsonValue& t : array(bytes, "trunk_formats")) {
    add("trunk " + string(t, "format"), number(t, "bytes"));
  }
  for (const char* part : {"trunk_holes", "codebooks", "manifest"}) {
    if (number(bytes, part) > 0) add(part, number(bytes, part));
  }
  table.row({"total", grouped(total), percent(total > 0 ? 1 : 0)});
  return bars_svg("Bytes per part", {bar}, megabyte, "MB") + table.end();
}

std::string plan_part(const JsonValue& plan) {
  const std::vector<std::pair<std::string, const char*>> parts = {
      {"resident trunk", "trunk_bytes"}, {"codebooks", "codebook_bytes"},
      {"KDA state", "kda_state_bytes"},  {"attention cache", "mla_state_bytes"},
      {"scratch", "scratch_bytes"},      {"prompt", "prompt_bytes"},
      {"the program", "program_bytes"},
  };
  std::vector<std::pair<std::string, double>> fixed_parts;
  Table table("plan", {"memory", "bytes"});
  for (const auto& [name, key] : parts) {
    fixed_parts.emplace_back(name, number(plan, key));
    table.row({name, grouped(number(plan, key))});
  }
  std::vector<Bar> bars;
  for (const auto& [name, key] :
       std::vector<std::pair<std::string, const char*>>{{"floor", "floor_bytes"},
                                                        {"recommended", "recommended_bytes"},
                                                        {"everything", "everything_bytes"}}) {
    Bar bar{name, fixed_parts};
    double sum = 0;
    for (const auto& p : fixed_parts) sum += p.second;
    bar.parts.emplace_back("expert records", std::max(0.0, number(plan, key) - sum));
    bars.push_back(bar);
    table.row({name, grouped(number(plan, key))});
  }
  table.row({"working set (one token's records)", grouped(number(plan, "working_set_bytes"))});
  table.row({"usable on this machine", grouped(number(plan, "usable_bytes"))});
  return note("At a context of " + grouped(number(plan, "context_tokens")) +
              " tokens. Below the floor nothing runs; with everything no expert is read twice.") +
         bars_svg("Memory plan", bars, megabyte, "MB") + table.end();
}

std::string error_part(const JsonValue& errors) {
  const auto& experts = array(errors, "experts");
  Chart chart;
  chart.title = "Relative error of the experts per layer and kind";
  chart.x = {"layer", 0, 1, false};
  chart.y = {"relative error, %", 0, 0, false};
  Table table("errors", {"layer", "kind", "error", "worst expert", "its error"});
  std::map<std::string, Series> kinds;
  double first = 1e9, last = 0;
  for (const JsonValue& e : experts) {
    const double layer = number(e, "layer"), error = number(e, "relative_error");
    const std::string kind = string(e, "kind");
    kinds[kind].label = kind;
    kinds[kind].points.emplace_back(layer, 100 * error);
    first = std::min(first, layer);
    last = std::max(last, layer);
    chart.y.most = std::max(chart.y.most, 100 * error);
    table.row({grouped(layer), kind, percent(error), grouped(number(e, "worst_expert")),
               percent(number(e, "worst"))});
  }
  const double limit = 100 * number(errors, "expert_limit");
  chart.x.least = experts.empty() ? 0 : first;
  chart.x.most = std::max(last, chart.x.least + 1);
  chart.y.most = 1.1 * std::max(chart.y.most, limit);
  chart.references.push_back({"limit", chart.x.least, limit, chart.x.most, limit});
  for (const char* kind : {"gate", "up", "down"}) {
    if (kinds.count(kind)) chart.series.push_back(kinds[kind]);
  }
  Table trunk("trunk_errors", {"tensor", "format", "error"});
  for (const JsonValue& t : array(errors, "trunk")) {
    trunk.row({string(t, "name"), string(t, "format"), percent(number(t, "relative_error"))});
  }
  return note("|W - decoded| / |W| against the source checkpoint. Faults found: " +
              grouped(number(errors, "findings_total")) + ".") +
         chart_svg(chart) + details("Numbers", table.end()) + details("Trunk tensors", trunk.end());
}

std::string kernel_part(const JsonValue::Array& kernels) {
  Chart chart;
  chart.title = "Roofline of the kernels";
  chart.joined = false;
  chart.x = {"weights per byte of payload", 0.2, 8, true};
  chart.y = {"weights per ns", 0.5, 50, true};
  Table table("kernels", {"kernel", "us", "weights/ns", "GB/s", "relative error"});
  std::map<double, double> read;
  for (const JsonValue& k : kernels) {
    const double rate = number(k, "weights_per_ns"), gb = number(k, "payload_gb_s");
    if (string(k, "op") == "read") read[number(k, "threads")] = gb;
    std::string name;
    for (const char* key : {"op", "format", "shape", "tier", "precision", "cache"}) {
      name += string(k, key) + "/";
    }
    name += fixed(number(k, "threads"), 0);
    table.row({name, fixed(number(k, "ns") / 1000, 2), fixed(rate, 2), fixed(gb, 2),
               fixed(100 * number(k, "rel_error"), 4) + " %"});
    if (!(rate > 0) || !(gb > 0) || !string(k, "op").ends_with("_matvec")) continue;
    chart.y.least = std::min(chart.y.least, rate / 1.5);
    chart.y.most = std::max(chart.y.most, rate * 1.5);
    chart.series.push_back({string(k, "tier") + " " + string(k, "precision"),
                            {{rate / gb, rate}},
                            string(k, "cache") != "ram"});
  }
  for (const auto& [threads, gb] : read) {
    const double from = std::max(chart.x.least, chart.y.least / gb);
    const double to = std::min(chart.x.most, chart.y.most / gb);
    chart.references.push_back({"read " + fixed(gb, 1) + " GB/s, threads " + fixed(threads, 0),
                                from, from * gb, to, to * gb});
  }
  return note("Filled: bytes from RAM; hollow: hot. The dashed lines are the read bandwidth.") +
         chart_svg(chart) + details("Numbers", table.end());
}

std::string trace_part(const JsonValue& trace) {
  Chart chart;
  chart.title = "Hit rate of the expert cache";
  chart.x = {"records in the cache", 0, number(trace, "working_set_records"), false};
  chart.y = {"hits, % of what tokens asked for", 0, 100, false};
  Table table("trace", {"policy", "records", "hits", "hits of the last 100 tokens"});
  std::map<std::string, Series> curves;
  for (const JsonValue& r : array(trace, "results")) {
    const std::string policy = string(r, "policy");
    const double records = number(r, "cache"), rate = number(r, "hit_rate");
    curves[policy].label = policy;
    curves[policy].points.emplace_back(records, 100 * rate);
    chart.x.most = std::max(chart.x.most, records);
    table.row({policy, grouped(records), percent(rate), percent(number(r, "hit_rate_last_100"))});
  }
  for (auto& [policy, series] : curves) {
    std::sort(series.points.begin(), series.points.end());
    chart.series.push_back(series);
  }
  const double set = number(trace, "working_set_records");
  chart.references.push_back({"working set", set, 0, set, 96});
  return note("A recorded run of " + grouped(number(trace, "tokens")) +
              " tokens, replayed through the cache.") +
         chart_svg(chart) + details("Numbers", table.end());
}

/// JSON that may stand in an HTML script and in XML: no markup characters outside of escapes.
std::string embedded(const JsonValue& report) {
  std::string out;
  for (const char c : dump_json(report, 1)) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

constexpr const char* style =
    "body { font: 15px/1.45 sans-serif; max-width: 800px; margin: 2em auto; padding: 0 1em; "
    "color: #222; }\n"
    "h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }\n"
    "svg { width: 100%; height: auto; font: 12px sans-serif; fill: #222; }\n"
    "table { border-collapse: collapse; margin: .7em 0; }\n"
    "td, th { padding: .15em .9em .15em 0; text-align: right; border-bottom: 1px solid #ddd; }\n"
    "td:first-child, th:first-child { text-align: left; }\n"
    ".note { color: #555; }\n";

}  // namespace

std::string report_page(const JsonValue& report) {
  const std::string title = string(report, "directory");
  std::string out = "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n";
  out += "<head>\n<meta charset=\"utf-8\"/>\n<title>" + xml_text(title) + "</title>\n<style>\n" +
         style + "</style>\n</head>\n<body>\n<h1>" + xml_text(title) + "</h1>\n";
  out += "<p>" +
         xml_text(string(report, "arch") + ", experts " + string(report, "format") + ", " +
                  grouped(number(report, "moe_layers")) + " layers of " +
                  grouped(number(report, "experts")) + " experts, records of " +
                  grouped(number(report, "record_bytes")) + " bytes. waste " +
                  string(report, "version") + ".") +
         "</p>\n";
  const auto part = [&](const char* key, const char* heading, const char* how, const auto& draw) {
    const JsonValue* v = report.find(key);
    out += section(heading, v && !v->is_null() ? draw(*v) : note(how));
  };
  part("bytes", "Where the bytes are", "", bytes_part);
  part("plan", "Memory plan", "There is no plan for this family of models.", plan_part);
  part("errors", "Error per layer and kind",
       "Not measured: give --source CHECKPOINT, or --verify with what waste verify --source "
       "CHECKPOINT --json printed.",
       error_part);
  part("kernels", "Kernels",
       "Not measured: give --kernels with what waste bench kernels --json FILE wrote.",
       [](const JsonValue& v) { return kernel_part(*v.as_array()); });
  part("trace", "Expert cache", "Not measured: give --trace with what waste trace --json printed.",
       trace_part);
  out += "<script type=\"application/json\" id=\"data\">\n" + embedded(report) +
         "\n</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace waste::cli
