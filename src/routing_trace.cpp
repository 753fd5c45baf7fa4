#include "waste/engine/routing_trace.hpp"

#include <algorithm>
#include <string>

#include "waste/format/json.hpp"
#include "waste/io/file.hpp"

namespace waste::engine {
namespace {

constexpr std::uint64_t never = ~std::uint64_t{0};

std::vector<std::uint16_t> parse_layer(const JsonValue& value, std::string_view file,
                                       const std::string& line) {
  const auto* ids = value.as_array();
  if (ids == nullptr || ids->empty()) {
    throw Error(fault(Errc::bad_field, "layers"), file, line + ": a layer is no list of experts");
  }
  std::vector<std::uint16_t> out;
  out.reserve(ids->size());
  std::vector<bool> there(trace_limit_experts);
  for (const JsonValue& id : *ids) {
    const auto* n = id.as_unsigned();
    if (n == nullptr) throw Error(fault(Errc::bad_field, "expert"), file, line + ": no integer");
    if (*n >= trace_limit_experts) {
      throw Error(fault(Errc::out_of_range, "expert", *n, trace_limit_experts - 1), file, line);
    }
    const auto expert = static_cast<std::uint16_t>(*n);
    if (there[expert]) {
      throw Error(fault(Errc::bad_field, "expert", *n, 0), file, line + ": twice in one layer");
    }
    there[expert] = true;
    out.push_back(expert);
  }
  return out;
}

}  // namespace

std::uint64_t RoutingTrace::demands(std::size_t first, std::size_t end) const noexcept {
  std::uint64_t n = 0;
  end = std::min(end, tokens());
  for (std::size_t i = std::min(first, end) * layers; i < end * layers; ++i) n += choices[i].size();
  return n;
}

std::uint64_t RoutingTrace::working_set() const noexcept {
  const std::size_t n = tokens();
  return n == 0 ? 0 : (demands(0, n) + n - 1) / n;
}

RoutingTrace RoutingTrace::prefix(std::size_t n) const {
  RoutingTrace out;
  out.layers = layers;
  out.experts = experts;
  const std::size_t end = std::min(n, tokens()) * layers;
  out.choices.assign(choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(end));
  return out;
}

RoutingTrace parse_trace(std::string_view text, std::string_view file) {
  RoutingTrace out;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view content = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    if (content.empty()) continue;
    const std::string line = "line " + std::to_string(number);
    const JsonValue value = parse_json(content, std::string(file) + " " + line);
    const JsonValue* layers = value.find("layers");
    const auto* list = layers == nullptr ? nullptr : layers->as_array();
    if (list == nullptr || list->empty()) {
      throw Error(fault(Errc::bad_field, "layers"), file, line + ": no list of layers");
    }
    if (out.layers == 0) out.layers = list->size();
    if (out.layers > trace_limit_layers) {
      throw Error(fault(Errc::out_of_range, "layers", out.layers, trace_limit_layers), file, line);
    }
    if (list->size() != out.layers) {
      throw Error(fault(Errc::mismatch, "layers", list->size(), out.layers), file, line);
    }
    for (const JsonValue& layer : *list) {
      out.choices.push_back(parse_layer(layer, file, line));
      for (const std::uint16_t e : out.choices.back()) {
        out.experts = std::max<std::size_t>(out.experts, e + std::size_t{1});
      }
    }
    if (out.layers * out.experts > trace_limit_records) {
      throw Error(fault(Errc::out_of_range, "layers times experts", out.layers * out.experts,
                        trace_limit_records),
                  file, line);
    }
  }
  if (out.layers == 0) throw Error(fault(Errc::truncated, "trace"), file, "no token in it");
  return out;
}

RoutingTrace read_trace(const std::filesystem::path& path) {
  return parse_trace(io::read_text(path, trace_limit_bytes), path.string());
}

std::string trace_text(const RoutingTrace& trace) {
  std::string out;
  for (std::size_t t = 0; t < trace.tokens(); ++t) {
    out += "{\"tok\": " + std::to_string(t) + ", \"layers\": ";
    for (std::size_t l = 0; l < trace.layers; ++l) {
      out += l == 0 ? "[[" : ", [";
      const char* between = "";
      for (const std::uint16_t e : trace.at(t, l)) {
        out += between + std::to_string(e);
        between = ", ";
      }
      out += ']';
    }
    out += "]}\n";
  }
  return out;
}

void TraceRecorder::record(std::uint32_t layer, MatrixView<const std::uint32_t> ids) {
  const std::size_t n = layers_.size();
  if (!layers_.empty() && layer == layers_[0]) {
    turn_ = 0;
    pending_.assign(ids.rows * n, {});
  }
  if (turn_ == n || layer != layers_[turn_] || ids.rows * n != pending_.size()) {
    throw Error(fault(Errc::bad_argument, "recorded layer").at(LayerId{layer}), {},
                "layers must be recorded in order, all for the same tokens");
  }
  for (std::size_t t = 0; t < ids.rows; ++t) {
    for (const std::uint32_t e : ids.row(t)) {
      if (e >= trace_limit_experts) {
        throw Error(fault(Errc::out_of_range, "expert", e, trace_limit_experts - 1));
      }
      pending_[t * n + turn_].push_back(static_cast<std::uint16_t>(e));
    }
  }
  if (++turn_ < n) return;
  trace_.layers = n;
  for (auto& chosen : pending_) {
    for (const std::uint16_t e : chosen) {
      trace_.experts = std::max<std::size_t>(trace_.experts, e + std::size_t{1});
    }
    trace_.choices.push_back(std::move(chosen));
  }
}

void TraceRecorder::write(const std::filesystem::path& path) const {
  io::write_atomically(path, trace_text(trace_));
}

std::vector<std::uint32_t> optimal_hits(const RoutingTrace& trace, std::size_t records) {
  if (trace.choices.size() != trace.tokens() * trace.layers) {
    throw Error(fault(Errc::bad_argument, "choices", trace.choices.size(),
                      (trace.tokens() + 1) * trace.layers),
                {}, "wanted one for every token and layer");
  }
  for (const auto& chosen : trace.choices) {
    for (const std::uint16_t e : chosen) {
      if (trace.experts == 0) {
        throw Error(fault(Errc::bad_argument, "experts", 0, 1));
      }
      if (e >= trace.experts) {
        throw Error(fault(Errc::out_of_range, "expert", e, trace.experts - 1));
      }
    }
  }
  const std::size_t steps = trace.choices.size(), keys = trace.layers * trace.experts;
  // When each choice is next asked for, counted in layers from the start.
  std::vector<std::uint64_t> later(keys, never);
  std::vector<std::vector<std::uint64_t>> next(steps);
  for (std::size_t i = steps; i-- > 0;) {
    for (const std::uint16_t e : trace.choices[i]) {
      std::uint64_t& soonest = later[i % trace.layers * trace.experts + e];
      next[i].push_back(soonest);
      soonest = i;
    }
  }
  std::vector<std::uint32_t> hits(trace.tokens(), 0);
  std::vector<std::uint64_t> due(keys, never);
  std::vector<std::size_t> held;
  for (std::size_t i = 0; i < steps; ++i) {
    const std::size_t first = i % trace.layers * trace.experts;
    const auto& chosen = trace.choices[i];
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      const std::size_t key = first + chosen[j];
      if (std::find(held.begin(), held.end(), key) != held.end()) {
        ++hits[i / trace.layers];
      } else {
        held.push_back(key);
      }
      due[key] = next[i][j];
    }
    if (held.size() > records) {
      const auto keep = held.begin() + static_cast<std::ptrdiff_t>(records);
      std::nth_element(held.begin(), keep, held.end(), [&](std::size_t a, std::size_t b) {
        return due[a] != due[b] ? due[a] < due[b] : a < b;
      });
      held.erase(keep, held.end());
    }
  }
  return hits;
}

}  // namespace waste::engine
