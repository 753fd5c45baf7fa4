// The page of `waste report`: one HTML document from one JSON object.
#pragma once

#include <string>

#include "waste/format/json.hpp"

namespace waste::cli {

/// HTML that is also well-formed XML, with inline SVG and no reference to anything outside. Every
/// number in it is a member of `report` (see report.cpp), which it carries as JSON in the script
/// element with the id "data". Parts that are null are left out, with a line on how to get them.
std::string report_page(const JsonValue& report);

}  // namespace waste::cli
