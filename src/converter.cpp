#include "waste/convert/converter.hpp"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "converter_internal.hpp"
#include "waste/core/parallel.hpp"
#include "waste/format/trunk_view.hpp"
#include "waste/io/drives.hpp"

namespace waste::convert {
namespace {

namespace fs = std::filesystem;
using detail::plan_name;

constexpr std::uint64_t side_file_allowance = 64u << 20;

bool is_container_file(const std::string& name) {
  constexpr std::string_view exact[] = {
      "manifest.json",       "trunk.bin",     "codebooks.bin", "checksums.json",
      "tokenizer.model",     "specials.json", "vision.json",   "chat.json",
      "chat_template.jinja", "usage.waste",   plan_name,       "generation_config.json"};
  return std::find(std::begin(exact), std::end(exact), name) != std::end(exact) ||
         ((name.starts_with("experts-L") || name.starts_with("subs-")) && name.ends_with(".bin"));
}

/// The manifest goes first: from then on the directory is no container.
void remove_container(const fs::path& directory) {
  std::error_code ec;
  fs::remove(directory / "manifest.json", ec);
  std::vector<fs::path> files;
  for (const fs::directory_entry& e : fs::directory_iterator(directory, ec)) {
    if (is_container_file(e.path().filename().string())) files.push_back(e.path());
  }
  for (const fs::path& f : files) {
    fs::remove(f, ec);
    if (ec) throw Error(fault(Errc::io, "remove"), f.string(), ec.message());
  }
  io::remove_parts(directory);
}

std::uint64_t allocated_bytes(const fs::path& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec) ? fs::file_size(path, ec) : 0;
}

std::vector<io::BankSet> sets_of(const io::ContainerWriter& writer) {
  std::vector<io::BankSet> out{io::BankSet::experts};
  if (writer.has_substitutes()) out.push_back(io::BankSet::substitutes);
  return out;
}

/// Bytes that this run may still have to write. Part files are sparse, so they count as unwritten.
std::uint64_t missing_bytes(const io::ContainerWriter& writer) {
  std::uint64_t have = 0;
  for (const format::BankEntry& b : writer.manifest().layers) {
    for (const io::BankSet set : sets_of(writer)) {
      if (writer.has_bank(LayerId{b.layer}, set)) {
        have += writer.layout(set).record_bytes * b.experts;
      }
    }
  }
  if (writer.has_trunk()) have += allocated_bytes(writer.directory() / "trunk.bin");
  return writer.total_bytes() - have;
}

/// Every file system that is written to must have room for what goes there.
void require_space(const io::ContainerWriter& writer, const io::Drives& drives,
                   const ConvertOptions& options) {
  struct Need {
    fs::path folder;
    std::uint64_t bytes = 0;
  };
  std::map<std::uint64_t, Need> needs;  // of each file system
  const auto add = [&](const fs::path& folder, std::uint64_t bytes) {
    Need& need = needs[io::device_of(folder)];
    if (need.folder.empty()) need.folder = folder;
    need.bytes += bytes;
  };
  std::uint64_t rest = missing_bytes(writer) + side_file_allowance;
  const auto& layers = writer.manifest().layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerId layer{layers[i].layer};
    for (const io::BankSet set : sets_of(writer)) {
      if (writer.has_bank(layer, set)) continue;
      const std::uint64_t bytes = writer.layout(set).record_bytes * layers[i].experts;
      add(drives.home(writer.bank_file(layer, set), i), bytes);
      rest -= bytes;
    }
  }
  add(writer.directory(), rest);
  for (const auto& [device, need] : needs) {
    const std::uint64_t free = std::min(io::free_bytes(need.folder), options.free_bytes_limit);
    if (free < need.bytes) {
      throw Error(fault(Errc::no_space, "free bytes", free, need.bytes), need.folder.string(),
                  "the container needs " + std::to_string(need.bytes) + " bytes more there");
    }
  }
}

void validate_options(const ConvertOptions& options) {
  check(format::validate(options.quant), {}, "expert format");
  if (options.trunk_bits != 3 && options.trunk_bits != 4 && options.trunk_bits != 8) {
    throw Error(fault(Errc::bad_argument, "trunk bits", options.trunk_bits, 4));
  }
  if (options.layers.has_value() + options.merge_only + options.trunk_only > 1) {
    throw Error(fault(Errc::bad_argument, "layers"), {},
                "wanted one of: a slice of layers, the trunk alone, the finish alone");
  }
  if (!options.calibration.empty() && !(options.damping > 0 && options.damping <= 1e6)) {
    throw Error(fault(Errc::bad_argument, "damping"), {}, "wanted a positive number");
  }
}

double total_work(const Checkpoint& source, const io::ContainerWriter& writer,
                  const ConvertOptions& options) {
  const format::ModelConfig& model = source.model();
  const format::ExpertShape shape = model.expert_shape();
  const detail::SampleShape sample = detail::sample_shape(model, options);
  const double layer = 3.0 * static_cast<double>(shape.inter * shape.width) * model.num_experts +
                       detail::training_cost_per_vector * format::kinds *
                           static_cast<double>(sample.experts * sample.vectors);
  double work = 0;
  for (const format::BankEntry& b : writer.manifest().layers) {
    const bool wanted =
        !options.layers || (b.layer >= options.layers->first && b.layer <= options.layers->second);
    if (!wanted || options.trunk_only) continue;
    for (const io::BankSet set : sets_of(writer)) {
      if (!writer.has_bank(LayerId{b.layer}, set)) work += layer;
    }
  }
  if (!options.layers && !writer.has_trunk()) {
    for (const TrunkSource& t : source.trunk()) {
      work += detail::trunk_cost_per_weight * static_cast<double>(t.elements());
    }
  }
  return work;
}

std::vector<LayerId> wanted_layers(const io::ContainerWriter& writer,
                                   const ConvertOptions& options) {
  std::vector<LayerId> out;
  for (const format::BankEntry& b : writer.manifest().layers) {
    if (!options.layers ||
        (b.layer >= options.layers->first && b.layer <= options.layers->second)) {
      out.push_back(LayerId{b.layer});
    }
  }
  if (out.empty()) {
    throw Error(fault(Errc::bad_argument, "layers"), {},
                "layers with experts are " +
                    std::to_string(writer.manifest().layers.front().layer) + " to " +
                    std::to_string(writer.manifest().layers.back().layer));
  }
  return out;
}

}  // namespace

namespace detail {

io::File lock_plan(const fs::path& path, bool shared) {
  io::File file = io::File::open(path);
  const int mode = (shared ? LOCK_SH : LOCK_EX) | LOCK_NB;
  if (::flock(file.native_handle(), mode) != 0 && errno == EWOULDBLOCK) {
    throw Error(fault(Errc::exists, "lock"), path.string(),
                "another process is converting into this directory");
  }
  return file;
}

JsonValue read_plan(const fs::path& path) {
  return parse_json(io::read_text(path, max_plan_bytes), path.string());
}

bool settle_destination(const fs::path& directory, const JsonValue& plan, bool replace) {
  std::error_code ec;
  const fs::path plan_path = directory / plan_name;
  if (replace) remove_container(directory);
  const bool has_plan = fs::exists(plan_path, ec);
  const bool has_manifest = fs::exists(directory / "manifest.json", ec);
  if (has_plan) {
    require_same_plan(read_plan(plan_path), plan, plan_path.string());
    return !has_manifest;
  }
  if (has_manifest) {
    throw Error(fault(Errc::exists, "manifest.json"), directory.string(),
                "there is a container already");
  }
  if (fs::exists(directory, ec) && !fs::is_directory(directory, ec)) {
    throw Error(fault(Errc::exists, "destination"), directory.string(), "wanted a directory");
  }
  if (fs::exists(directory, ec)) {
    for (const fs::directory_entry& e : fs::directory_iterator(directory, ec)) {
      const std::string name = e.path().filename().string();
      // A run killed while it wrote its first file leaves only this behind.
      if (name.starts_with(std::string(plan_name) + ".tmp")) continue;
      throw Error(fault(Errc::exists, "destination"), directory.string(),
                  "the directory is not empty (" + name + ") and holds no unfinished conversion");
    }
  }
  return true;
}

void fill_sizes(const io::ContainerWriter& writer, ConvertReport& report) {
  const format::Manifest& m = writer.manifest();
  const std::uint64_t weights = 3 * m.layout.shape.inter * m.layout.shape.width;
  for (const format::BankEntry& b : m.layers) {
    report.expert_weights += weights * b.experts;
    report.expert_bytes += b.bytes;
    bool done = writer.has_bank(LayerId{b.layer});
    if (writer.has_substitutes()) {
      report.substitute_bytes += writer.layout(io::BankSet::substitutes).record_bytes * b.experts;
      done = done && writer.has_bank(LayerId{b.layer}, io::BankSet::substitutes);
    }
    report.layers_done += done ? 1 : 0;
  }
  report.layers_total = static_cast<std::uint32_t>(m.layers.size());
  for (const format::TrunkEntry& t : m.trunk) {
    report.trunk_weights += t.rows() * t.cols();
    report.trunk_bytes += t.bytes;
  }
}

}  // namespace detail

ConvertReport convert(const fs::path& source_dir, const fs::path& destination,
                      const ConvertOptions& options) {
  validate_options(options);
  std::error_code ec;
  if (fs::equivalent(source_dir, destination, ec)) {
    throw Error(fault(Errc::bad_argument, "destination"), destination.string(),
                "the source itself");
  }
  const Checkpoint source = Checkpoint::open(source_dir);
  const io::ContainerPlan container = container_plan(source, options);
  io::make_manifest(container);  // refuse what cannot be written before touching the disk
  const auto opened = detail::open_calibration(source, options);
  const CalibrationFile* const calibration = opened ? &*opened : nullptr;
  std::vector<SideFile> beside = side_files(source);
  if (calibration) {
    beside.push_back({"usage.waste", detail::usage_bytes(*calibration, source.model())});
  }
  const JsonValue plan = detail::plan_of(source, options, calibration);
  ConvertReport report;
  report.memory_bytes = convert_memory_bytes(source, options);

  const bool slice = options.layers || options.trunk_only;
  const bool replace = options.replace && !slice && !options.merge_only;
  const io::Drives drives(destination, options.drives);
  if (replace && !drives.empty()) {
    fs::remove(destination / "manifest.json", ec);  // first, as always
    drives.remove_banks();
  }
  const bool unfinished = detail::settle_destination(destination, plan, replace);
  const fs::path plan_path = destination / plan_name;
  if (!unfinished) {
    const io::File lock = detail::lock_plan(plan_path, false);
    io::remove_parts(destination);
    fs::remove(plan_path, ec);
    report.complete = true;
    return report;
  }
  const bool was_there = fs::exists(destination, ec);
  io::ContainerWriter writer(destination, container);
  std::vector<LayerId> layers;
  try {
    layers = wanted_layers(writer, options);
    require_space(writer, drives, options);
  } catch (...) {
    if (!was_there) fs::remove(destination, ec);
    throw;
  }
  if (!fs::exists(plan_path, ec)) io::write_atomically(plan_path, dump_json(plan, 1));
  const io::File lock = detail::lock_plan(plan_path, slice);

  detail::ProgressSink progress(options, total_work(source, writer, options));
  if (!options.merge_only && !options.trunk_only) {
    for (const LayerId layer : layers) {
      const std::size_t turn = to_index(layer) - writer.manifest().layers.front().layer;
      for (const io::BankSet set : sets_of(writer)) {
        drives.place(writer.bank_file(layer, set), turn);
        detail::convert_layer(source, writer, layer, set, options, calibration, progress, report);
      }
    }
  }
  if (options.trunk_only) {
    if (!writer.has_trunk()) {
      detail::convert_trunk(source, writer, options, calibration, progress);
    }
    for (const SideFile& f : beside) writer.write_side_file(f.name, f.bytes);
    io::write_atomically(destination / detail::manifest_part_name,
                         format::dump_manifest(writer.manifest()));
  } else if (!options.layers) {
    for (const LayerId layer : layers) {
      for (const io::BankSet set : sets_of(writer)) {
        if (writer.has_bank(layer, set)) continue;
        throw Error(fault(Errc::missing, "experts").at(layer), destination.string(),
                    "convert this layer first");
      }
    }
    if (!writer.has_trunk()) {
      detail::convert_trunk(source, writer, options, calibration, progress);
    }
    progress.stage("finish", 0);
    for (const SideFile& f : beside) writer.write_side_file(f.name, f.bytes);
    writer.finish();
    fs::remove(plan_path, ec);
    report.complete = true;
  }
  detail::fill_sizes(writer, report);
  return report;
}

std::uint64_t convert_memory_bytes(const Checkpoint& source, const ConvertOptions& options) {
  const format::ModelConfig& model = source.model();
  const format::ExpertShape shape = model.expert_shape();
  format::RecordLayout layout;
  check(format::derive_layout(options.quant, shape, layout));
  const std::uint64_t matrix = 4 * shape.inter * shape.width;
  const detail::SampleShape sample = detail::sample_shape(model, options);
  const std::uint64_t training = 2 * format::kinds * sample.experts * sample.vectors * 32;
  const unsigned jobs = detail::jobs_of(options);
  const auto calibration = detail::open_calibration(source, options);
  return jobs * (matrix + layout.record_bytes + (std::uint64_t{16} << 20)) + training +
         (calibration ? detail::calibration_memory_bytes(*calibration, model, options, jobs) : 0);
}

}  // namespace waste::convert
