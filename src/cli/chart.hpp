// Charts as inline SVG: lines or points over two axes, and stacked bars.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace waste::cli {

/// Text as XML character data or attribute: markup escaped, bytes that are no character replaced.
std::string xml_text(std::string_view text);

/// A number with so many digits behind the point.
std::string fixed(double value, int digits);

struct Axis {
  std::string label;
  double least = 0, most = 1;
  bool logarithmic = false;
};

struct Series {
  std::string label;
  std::vector<std::pair<double, double>> points;
  bool hollow = false;  ///< of points that are not joined
};

/// A straight line from one place to another, labelled at its end.
struct Reference {
  std::string label;
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
};

struct Chart {
  std::string title;  ///< for readers that do not see the picture
  Axis x, y;
  std::vector<Series> series;  ///< with the same label: the same colour, one legend entry
  std::vector<Reference> references;
  bool joined = true;
};

/// 760 by 400 units. Points outside the axes are drawn at their edge; on a logarithmic axis both
/// bounds must be above 0.
std::string chart_svg(const Chart& chart);

struct Bar {
  std::string label;
  std::vector<std::pair<std::string, double>> parts;  ///< name and length, in order
};

/// One horizontal bar a row, parts side by side, all to the same scale; `unit` is what lengths are
/// divided by, `unit_name` what a legend calls it.
std::string bars_svg(const std::string& title, const std::vector<Bar>& bars, double unit,
                     const std::string& unit_name);

}  // namespace waste::cli
