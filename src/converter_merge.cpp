#include <algorithm>

#include "converter_internal.hpp"
#include "waste/io/drives.hpp"

namespace waste::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* side_names[] = {
    "tokenizer.model",     "specials.json",          "vision.json", "chat.json",
    "chat_template.jinja", "generation_config.json", "usage.waste"};
constexpr std::uint64_t max_side_bytes = std::uint64_t{1} << 30;

/// A second name for a finished file, or a copy of it; for one on another drive a second link.
void bring(const fs::path& from, const fs::path& to) {
  std::error_code ec;
  if (fs::is_symlink(from, ec)) return io::copy_link(from, to);
  fs::create_hard_link(from, to, ec);
  if (!ec) {
    io::sync_directory(to.parent_path());
    return;
  }
  const fs::path part = to.string() + ".part";
  fs::copy_file(from, part, fs::copy_options::overwrite_existing, ec);
  if (ec) throw Error(fault(Errc::io, "copy"), part.string(), ec.message());
  io::publish(part, to);
}

/// A writer on a slice, to ask what is in it.
std::vector<io::ContainerWriter> writers(const std::vector<fs::path>& parts,
                                         const io::ContainerPlan& plan) {
  std::vector<io::ContainerWriter> out;
  for (const fs::path& part : parts) out.emplace_back(part, plan);
  return out;
}

}  // namespace

ConvertReport merge(const fs::path& destination, const std::vector<fs::path>& parts) {
  if (parts.empty()) throw Error(fault(Errc::bad_argument, "parts", 0, 1));
  std::error_code ec;
  std::vector<io::File> locks;
  JsonValue plan;
  const fs::path* trunk = nullptr;
  for (const fs::path& part : parts) {
    if (fs::equivalent(part, destination, ec)) {
      throw Error(fault(Errc::bad_argument, "destination"), destination.string(),
                  "one of the parts");
    }
    const fs::path path = part / detail::plan_name;
    if (!fs::exists(path, ec)) {
      throw Error(fault(Errc::missing, detail::plan_name), part.string(),
                  "no slice of a conversion");
    }
    locks.push_back(detail::lock_plan(path, false));
    JsonValue one = detail::read_plan(path);
    if (locks.size() == 1) {
      plan = std::move(one);
    } else {
      detail::require_same_plan(one, plan, path.string());
    }
    if (!fs::exists(part / detail::manifest_part_name, ec)) continue;
    if (trunk) throw Error(fault(Errc::duplicate, "trunk"), part.string());
    trunk = &part;
  }
  if (!trunk) {
    throw Error(fault(Errc::missing, "trunk"), destination.string(),
                "no part was converted with --layers trunk to its end");
  }
  const fs::path draft = *trunk / detail::manifest_part_name;
  format::Manifest m =
      format::parse_manifest(io::read_text(draft, format::limits::manifest_bytes), draft.string());
  io::ContainerPlan container;
  container.arch = m.arch;
  container.tensor_prefix = m.tensor_prefix;
  container.config = std::move(m.config);
  container.expert_quant = m.expert_quant;
  container.trunk = std::move(m.trunk);
  const JsonValue* substitutes = plan.find("substitutes");
  container.substitutes = substitutes && *substitutes == JsonValue(true);
  std::vector<io::BankSet> sets{io::BankSet::experts};
  if (container.substitutes) sets.push_back(io::BankSet::substitutes);

  const std::vector<io::ContainerWriter> slices = writers(parts, container);
  std::vector<const io::ContainerWriter*> holder(m.layers.size());
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const LayerId layer{m.layers[i].layer};
    for (const io::ContainerWriter& slice : slices) {
      const bool whole = std::all_of(sets.begin(), sets.end(), [&](io::BankSet set) {
        return slice.has_bank(layer, set) && slice.has_codebooks(layer, set);
      });
      if (!whole) continue;
      if (holder[i]) {
        throw Error(fault(Errc::duplicate, "experts").at(layer), slice.directory().string(),
                    "also in " + holder[i]->directory().string());
      }
      holder[i] = &slice;
    }
    if (!holder[i]) {
      throw Error(fault(Errc::missing, "experts").at(layer), destination.string(),
                  "in none of the parts, or not to its end");
    }
  }

  ConvertReport report;
  const fs::path plan_path = destination / detail::plan_name;
  if (!detail::settle_destination(destination, plan,
                                  false)) {  // killed just after its manifest
    const io::File lock = detail::lock_plan(plan_path, false);
    io::remove_parts(destination);
    fs::remove(plan_path, ec);
    report.complete = true;
    return report;
  }
  const io::ContainerWriter writer(destination, container);
  if (!fs::exists(plan_path, ec)) io::write_atomically(plan_path, dump_json(plan, 1));
  const io::File lock = detail::lock_plan(plan_path, false);
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const LayerId layer{m.layers[i].layer};
    for (const io::BankSet set : sets) {
      if (!writer.has_codebooks(layer, set)) {
        writer.write_codebooks(layer, holder[i]->read_codebooks(layer, set), set);
      }
      if (writer.has_bank(layer, set)) continue;
      const std::string& file = writer.bank_file(layer, set);
      bring(holder[i]->directory() / file, destination / file);
    }
  }
  if (!writer.has_trunk()) bring(*trunk / "trunk.bin", destination / "trunk.bin");
  for (const char* name : side_names) {
    if (!fs::exists(*trunk / name, ec)) continue;
    writer.write_side_file(name, io::read_text(*trunk / name, max_side_bytes));
  }
  io::ContainerWriter(destination, container).finish();
  fs::remove(plan_path, ec);
  report.complete = true;
  detail::fill_sizes(writer, report);
  return report;
}

}  // namespace waste::convert
