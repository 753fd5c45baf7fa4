#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "waste/format/json.hpp"

namespace waste::bench {
namespace {

std::string text(const char* format, ...) {
  char buffer[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  return buffer;
}

std::string number_or_dash(double value, const char* format) {
  return value > 0 ? text(format, value) : "-";
}

struct Point {
  double x, y;
  const Result* result;
};

}  // namespace

void relate(std::vector<Result>& results) {
  std::map<unsigned, double> read;
  std::map<std::string, double> gather;
  const auto key = [](const Labels& l) {
    return l.format + "/" + l.shape + "/" + l.cache + "/" + std::to_string(l.threads);
  };
  for (const Result& r : results) {
    if (r.labels.op == "read") read[r.labels.threads] = r.gb_per_s();
    if (r.labels.tier == "gather") gather[key(r.labels)] = r.ns;
  }
  for (Result& r : results) {
    if (const auto it = read.find(r.labels.threads); it != read.end() && r.labels.cache == "ram") {
      r.of_read = r.gb_per_s() / it->second;
    }
    if (r.labels.op != "vq_matvec") continue;
    if (const auto it = gather.find(key(r.labels)); it != gather.end()) {
      r.x_gather = it->second / r.ns;
    }
  }
}

void print_table(const std::vector<Result>& results) {
  std::size_t width = 4;
  for (const Result& r : results) width = std::max(width, r.labels.name().size());
  const int w = static_cast<int>(width);
  std::printf("%-*s %12s %12s %9s %7s %9s %10s\n", w, "case", "us", "weights/ns", "GB/s", "% read",
              "x gather", "rel error");
  for (const Result& r : results) {
    std::printf("%-*s %12.2f %12s %9s %7s %9s %10.2g%s\n", w, r.labels.name().c_str(), r.ns / 1e3,
                number_or_dash(r.weights_per_ns(), "%.2f").c_str(),
                number_or_dash(r.gb_per_s(), "%.2f").c_str(),
                number_or_dash(100 * r.of_read, "%.0f").c_str(),
                number_or_dash(r.x_gather, "%.2f").c_str(), r.rel_error,
                r.failed ? "  FAILED" : "");
  }
}

std::string json_lines(const std::vector<Result>& results) {
  std::string out;
  for (const Result& r : results) {
    const Labels& l = r.labels;
    JsonValue line;
    line.set("op", l.op);
    line.set("format", l.format);
    line.set("shape", l.shape);
    line.set("tier", l.tier);
    line.set("precision", l.precision);
    line.set("cache", l.cache);
    line.set("threads", std::uint64_t{l.threads});
    line.set("ns", r.ns);
    line.set("weights_per_ns", r.weights_per_ns());
    line.set("payload_gb_s", r.gb_per_s());
    line.set("of_read_bandwidth", r.of_read);
    line.set("x_gather", r.x_gather);
    line.set("rel_error", r.rel_error);
    out += dump_json(line) + "\n";
  }
  return out;
}

std::string roofline(const std::vector<Result>& results) {
  std::vector<Point> points;
  std::map<unsigned, double> read;
  double x0 = 0.2, x1 = 8, y0 = 0.5, y1 = 50;
  for (const Result& r : results) {
    if (r.labels.op == "read") read[r.labels.threads] = r.gb_per_s();
    if (r.weights <= 0 || r.payload_bytes <= 0) continue;
    if (r.labels.op != "vq_matvec" && r.labels.op != "trunk_matvec") continue;
    points.push_back({r.weights / r.payload_bytes, r.weights_per_ns(), &r});
    y0 = std::min(y0, points.back().y / 1.5);
    y1 = std::max(y1, points.back().y * 1.5);
  }
  constexpr double width = 900, height = 600, left = 70, right = 200, top = 30, bottom = 60;
  const auto px = [&](double x) {
    return left + (width - left - right) * std::log(x / x0) / std::log(x1 / x0);
  };
  const auto py = [&](double y) {
    return height - bottom - (height - top - bottom) * std::log(y / y0) / std::log(y1 / y0);
  };
  std::string out;
  out += text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n",
      width, height);
  out += text("<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n", width, height);
  const auto line = [&](double xa, double ya, double xb, double yb, const char* style) {
    out +=
        text("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", xa, ya, xb, yb, style);
  };
  const auto label = [&](double x, double y, const char* anchor, const std::string& what) {
    out += text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                what.c_str());
  };
  const char* const grid = "stroke=\"#ddd\"";
  for (const double x : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    line(px(x), py(y0), px(x), py(y1), grid);
    label(px(x), height - bottom + 18, "middle", text("%g", x));
  }
  for (double y = std::pow(10.0, std::ceil(std::log10(y0))); y <= y1; y *= 10) {
    line(px(x0), py(y), px(x1), py(y), grid);
    label(left - 6, py(y) + 4, "end", text("%g", y));
  }
  label((left + width - right) / 2, height - 14, "middle", "weights per byte of payload");
  out += text(
      "<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">weights per "
      "ns</text>\n",
      height / 2);
  for (const auto& [threads, bandwidth] : read) {
    const double from = std::max(x0, y0 / bandwidth), to = std::min(x1, y1 / bandwidth);
    line(px(from), py(from * bandwidth), px(to), py(to * bandwidth), "stroke=\"black\"");
    label(px(to), py(to * bandwidth) - 6, "end",
          text("read %.1f GB/s, %u thread%s", bandwidth, threads, threads == 1 ? "" : "s"));
  }
  // Colour by tier and precision, filled where the bytes come from RAM.
  const char* const colours[] = {"#1b6ca8", "#c0392b", "#27804a", "#8e44ad", "#d68910",
                                 "#16808a", "#555555", "#a04000", "#1f3a93", "#7d6608"};
  std::map<std::string, const char*> colour;
  for (const Point& p : points) {
    const std::string kind = p.result->labels.tier + " " + p.result->labels.precision;
    const auto [it, added] =
        colour.emplace(kind, colours[colour.size() % (sizeof colours / sizeof *colours)]);
    if (added) {
      const double y = top + 18 * static_cast<double>(colour.size());
      out += text("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", width - right + 20,
                  y - 4, it->second);
      label(width - right + 30, y, "start", kind);
    }
    const bool filled = p.result->labels.cache == "ram";
    out += text(
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" stroke=\"%s\" fill=\"%s\">"
        "<title>%s: %.2f weights/ns</title></circle>\n",
        px(p.x), py(p.y), p.result->labels.threads == 1 ? 4.0 : 6.0, it->second,
        filled ? it->second : "none", p.result->labels.name().c_str(), p.y);
  }
  label(width - right + 20, height - bottom, "start", "filled: from RAM");
  label(width - right + 20, height - bottom + 16, "start", "large: all threads");
  out += "</svg>\n";
  return out;
}

}  // namespace waste::bench
