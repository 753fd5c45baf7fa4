#include "chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

#include "printable.hpp"

namespace waste::cli {
namespace {

constexpr std::array colours = {"#33628f", "#b5482f", "#3b7d4f", "#8a5a9e", "#b98522",
                                "#2f8a8a", "#5d5d5d", "#94511d", "#4a5ab0", "#7c7a2a"};
constexpr double width = 760, height = 400, left = 72, right = 560, top = 16, bottom = 350;

const char* colour(std::size_t i) { return colours[i % colours.size()]; }

std::string text_at(double x, double y, const char* anchor, const std::string& what) {
  return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + anchor +
         "\">" + xml_text(what) + "</text>\n";
}

std::string line(double x0, double y0, double x1, double y1, const char* style) {
  return "<line x1=\"" + fixed(x0, 1) + "\" y1=\"" + fixed(y0, 1) + "\" x2=\"" + fixed(x1, 1) +
         "\" y2=\"" + fixed(y1, 1) + "\" " + style + "/>\n";
}

std::string begin(const std::string& title, double tall) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + fixed(width, 0) + " " +
         fixed(tall, 0) + "\" role=\"img\" aria-label=\"" + xml_text(title) + "\">\n<title>" +
         xml_text(title) + "</title>\n";
}

/// Where a value lies between two coordinates.
struct Scale {
  const Axis& axis;
  double from, to;
  double operator()(double v) const {
    const auto place = [&](double a) { return axis.logarithmic ? std::log(a) : a; };
    v = std::clamp(v, axis.least, axis.most);
    const double a = place(axis.least), b = place(axis.most);
    return b > a ? from + (to - from) * (place(v) - a) / (b - a) : from;
  }
};

std::vector<double> ticks(const Axis& axis) {
  std::vector<double> out;
  if (axis.logarithmic) {
    for (double p = std::pow(10.0, std::floor(std::log10(axis.least))); p <= axis.most; p *= 10) {
      for (const double m : {1.0, 2.0, 5.0}) {
        if (m * p >= axis.least && m * p <= axis.most) out.push_back(m * p);
      }
    }
    return out;
  }
  const double rough = (axis.most - axis.least) / 5;
  if (!(rough > 0)) return {axis.least};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power;
  for (const double m : {1.0, 2.0, 5.0, 10.0}) {
    step = m * power;
    if (step >= rough) break;
  }
  for (double v = std::ceil(axis.least / step) * step; v <= axis.most * (1 + 1e-9); v += step) {
    out.push_back(std::fabs(v) < step / 2 ? 0.0 : v);
  }
  return out;
}

std::string short_number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", v);
  return text;
}

}  // namespace

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : as_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string chart_svg(const Chart& chart) {
  const Scale x{chart.x, left, right}, y{chart.y, bottom, top};
  std::string out = begin(chart.title, height);
  const char* const grid = "stroke=\"#d8d8d8\"";
  for (const double v : ticks(chart.x)) {
    out += line(x(v), top, x(v), bottom, grid);
    out += text_at(x(v), bottom + 18, "middle", short_number(v));
  }
  for (const double v : ticks(chart.y)) {
    out += line(left, y(v), right, y(v), grid);
    out += text_at(left - 8, y(v) + 4, "end", short_number(v));
  }
  out += text_at((left + right) / 2, height - 10, "middle", chart.x.label);
  out += "<text transform=\"translate(18 " + fixed((top + bottom) / 2, 1) +
         ") rotate(-90)\" text-anchor=\"middle\">" + xml_text(chart.y.label) + "</text>\n";
  for (const Reference& r : chart.references) {
    out += line(x(r.x0), y(r.y0), x(r.x1), y(r.y1), "stroke=\"#222\" stroke-dasharray=\"5 4\"");
    out += text_at(x(r.x1), std::max(y(r.y1) - 6, 14.0), "end", r.label);  // not above the picture
  }
  std::map<std::string, std::size_t> legend;
  for (const Series& s : chart.series) {
    const auto [entry, added] = legend.emplace(s.label, legend.size());
    const char* const c = colour(entry->second);
    if (added) {
      const double at = top + 18.0 * static_cast<double>(entry->second) + 8;
      out += "<circle cx=\"" + fixed(right + 20, 1) + "\" cy=\"" + fixed(at - 4, 1) +
             "\" r=\"4\" fill=\"" + c + "\"/>\n" + text_at(right + 30, at, "start", s.label);
    }
    if (chart.joined && s.points.size() > 1) {
      out += std::string("<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"") + c +
             "\" points=\"";
      for (const auto& [px, py] : s.points) out += fixed(x(px), 1) + "," + fixed(y(py), 1) + " ";
      out += "\"/>\n";
    }
    for (const auto& [px, py] : s.points) {
      out += "<circle cx=\"" + fixed(x(px), 1) + "\" cy=\"" + fixed(y(py), 1) +
             "\" r=\"3\" stroke=\"" + c + "\" fill=\"" + (s.hollow ? "none" : c) + "\"><title>" +
             xml_text(s.label) + ": " + short_number(px) + ", " + short_number(py) +
             "</title></circle>\n";
    }
  }
  return out + "</svg>\n";
}

std::string bars_svg(const std::string& title, const std::vector<Bar>& bars, double unit,
                     const std::string& unit_name) {
  constexpr double from = 150, to = 740, row = 34;
  double most = 0;
  std::map<std::string, std::size_t> legend;
  std::vector<std::string> names;
  for (const Bar& b : bars) {
    double sum = 0;
    for (const auto& [name, value] : b.parts) {
      sum += value;
      if (legend.emplace(name, names.size()).second) names.push_back(name);
    }
    most = std::max(most, sum);
  }
  const double tall = row * static_cast<double>(bars.size()) +
                      22 * std::ceil(static_cast<double>(names.size()) / 3) + 12;
  std::string out = begin(title, tall);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double y = 6 + row * static_cast<double>(i);
    out += text_at(from - 8, y + 17, "end", bars[i].label);
    double at = from;
    for (const auto& [name, value] : bars[i].parts) {
      const double w = most > 0 ? (to - from) * value / most : 0;
      out += "<rect x=\"" + fixed(at, 2) + "\" y=\"" + fixed(y, 1) + "\" width=\"" + fixed(w, 2) +
             "\" height=\"24\" fill=\"" + colour(legend[name]) + "\"><title>" + xml_text(name) +
             ": " + fixed(value / unit, 3) + " " + xml_text(unit_name) + "</title></rect>\n";
      at += w;
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double x = 20 + 245 * static_cast<double>(i % 3);
    const double y = row * static_cast<double>(bars.size()) + 22 * static_cast<double>(i / 3) + 22;
    out += "<rect x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y - 11, 1) +
           "\" width=\"12\" height=\"12\" fill=\"" + colour(i) + "\"/>\n" +
           text_at(x + 18, y, "start", names[i]);
  }
  return out + "</svg>\n";
}

}  // namespace waste::cli
