// A source checkpoint becomes a container: bounded memory, resumable, the same bytes every time.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "waste/convert/checkpoint.hpp"
#include "waste/format/expert_quant.hpp"
#include "waste/io/container_writer.hpp"
#include "waste/quant/group.hpp"
#include "waste/quant/vq_encode.hpp"

namespace waste::convert {

/// Format of the routers (`block_sparse_moe.gate.weight`) of 65,536 elements or more; smaller ones
/// are F32 always. `follow` gives them the trunk's bits, as converters in the world do.
enum class RouterFormat : std::uint8_t { follow, f32, q8g, q4g };

/// What a conversion is doing; passed to ConvertOptions::progress.
struct ConvertProgress {
  std::string_view stage;   ///< "codebooks", "experts", "substitute codebooks", "substitutes",
                            ///< "trunk", "finish"
  std::uint32_t layer = 0;  ///< of all but the last two
  double done = 0;          ///< work done, of `total`; the unit is the cost of coding one weight
  double total = 0;
  std::uint64_t weights = 0;  ///< expert weights coded by this run so far
  double relative_error = 0;  ///< of those weights so far; of their output where calibrated
};

struct ConvertOptions {
  // These decide the bytes: a resumed conversion must state them again, unchanged.
  format::ExpertQuant quant = format::vq3r;
  quant::Effort effort = quant::Effort::standard;
  unsigned trunk_bits = 4;  ///< 3, 4 or 8
  RouterFormat router = RouterFormat::follow;
  quant::GroupScale trunk_scale = quant::GroupScale::search;
  std::uint32_t codebook_sample = 0;  ///< experts sampled per layer; 0: at least 12, and enough
                                      ///< for 300,000 vectors where the layer has them
  std::uint64_t seed = 0;
  std::filesystem::path calibration;  ///< file of model::calibrate; empty: none
  double damping = 0.01;     ///< with it: added to the moments' diagonal, in parts of its mean
  bool substitutes = false;  ///< also write SUB1 substitutes of every expert

  // These do not.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> layers;  ///< first and last: only these
                                                                  ///< layers' experts, no finish
  bool trunk_only = false;  ///< only trunk and side files, no finish: for merge()
  bool merge_only = false;  ///< finish; Error(missing) where a layer's experts are not there yet
  bool replace = false;     ///< remove a container (or a conversion) that is in the way first
  unsigned jobs = 0;        ///< threads; 0: available_threads()
  std::uint64_t free_bytes_limit = ~std::uint64_t{0};     ///< treat the disk as having at most this
  std::uint64_t commit_bytes = std::uint64_t{256} << 20;  ///< trunk bytes between two commits
  /// Called before and after every unit of work, from one thread at a time; may throw to cancel.
  std::function<void(const ConvertProgress&)> progress;
  std::vector<std::filesystem::path> drives;  ///< take the banks in turn, see io::Drives
};

struct ConvertReport {
  bool complete = false;  ///< manifest.json is published (not so for a slice of layers)
  std::uint32_t layers_done = 0, layers_total = 0;
  /// Substitutes included; kept: from an interrupted run.
  std::uint64_t records_written = 0, records_kept = 0;
  std::uint64_t records_calibrated = 0;                          ///< of those written
  std::array<quant::EncodeStats, format::kinds> error{};         ///< of the others
  std::array<quant::EncodeStats, format::kinds> output_error{};  ///< of calibrated records' output
  /// Of substitutes; of their output where calibrated.
  std::array<quant::EncodeStats, format::kinds> substitute_error{};
  std::uint64_t expert_weights = 0, expert_bytes = 0;  ///< of the whole container
  std::uint64_t substitute_bytes = 0;
  std::uint64_t trunk_weights = 0, trunk_bytes = 0;
  std::uint64_t memory_bytes = 0;  ///< convert_memory_bytes of this run
};

/// Converts the checkpoint in `source` to a container in `destination`.
///
/// Order: every tensor of the source is accounted for, side files are made and the disk space is
/// checked before anything is written; then layer by layer codebooks and expert records, the trunk,
/// side files, codebooks.bin and at last manifest.json, each file under a temporary name until it
/// is complete. `convert-plan.json` records options and source while the conversion is unfinished;
/// after a kill at any instant the same call continues, at the granularity of one record or
/// `commit_bytes` of trunk, and the result is byte for byte that of an uninterrupted run. The
/// result depends on the source and the first group of options alone, not on jobs, slices or
/// interruptions.
///
/// Side files: tokenizer.model (from tiktoken.model, or kimi's tokenizer.model), specials.json
/// (from tokenizer_config.json), chat_template.jinja (the file, else tokenizer_config.json's
/// chat_template), chat.json, vision.json (from vision_config and preprocessor_config.json), and
/// generation_config.json verbatim, because its eos_token_id may hold more than config.json's,
/// which the manifest repeats verbatim.
///
/// With a calibration, experts that its text used are coded for the least error of their output on
/// that text (quant::CalibratedEncoder): by moments of their own where the file has them, on top of
/// their layer's, and the others as without one; grouped trunk tensors with error feedback
/// (quant::quantize_groups_calibrated) unless trunk_scale is absmax. Its use counts are baked:
/// usage.waste lists the experts met, and the records of hot_experts() bear the hot hint.
///
/// With `substitutes`, each layer also gets a subs-L{n}.bin of the same experts coded again at 1
/// bit a weight, with codebooks trained for that (in the same way, calibrated where the experts
/// are), and the experts' records bear record_flags::has_substitute; nothing else of the container
/// changes.
///
/// With `drives`, banks are written there and the container has links to them; with `replace` those
/// of the container in the way are removed from these drives.
///
/// Throws Error: exists (a container or foreign files are in the way), mismatch (the unfinished
/// conversion there has another plan; the message says which option), no_space, out_of_range (a
/// weight that is not finite), and what Checkpoint::open and the writers throw.
ConvertReport convert(const std::filesystem::path& source, const std::filesystem::path& destination,
                      const ConvertOptions& options = {});

/// Joins slices of one conversion, made on any machines with the same options and copied or mounted
/// here: directories of runs with `layers` that cover every layer once, and of one with
/// `trunk_only`. The container is byte for byte that of a single run. Files are linked where the
/// file system can and copied otherwise; banks on other drives stay there and get a second link;
/// the parts stay. After a kill the same call continues. Throws Error: bad_argument (no parts),
/// missing (a directory that is no slice; a layer or the trunk that is in none), duplicate (a layer
/// in two), mismatch (slices with other options or another source), exists as convert(), and what
/// the writers throw.
ConvertReport merge(const std::filesystem::path& destination,
                    const std::vector<std::filesystem::path>& parts);

/// Which experts of a layer are hot: the fewest of the most used that have half of its uses (the
/// lower number first at a tie), 1 each.
std::vector<std::uint8_t> hot_experts(std::span<const std::uint64_t> uses);

/// Format of one trunk tensor: F32 for one dimension, for fewer than 65,536 elements and where a
/// grouped format would take no fewer bytes; else Q8G for the embedding, the head, vision and MTP
/// tensors; else the router's or the trunk's format.
format::Fmt trunk_format(const TrunkSource& tensor, const ConvertOptions& options) noexcept;

/// The container that these options make of a checkpoint, without its weights.
io::ContainerPlan container_plan(const Checkpoint& source, const ConvertOptions& options);

/// Upper estimate of the memory of a conversion: per job the largest expert matrix in f32 and one
/// record, or a trunk slab; the codebook sample; with a calibration what prepares an encoder, once
/// a kind and once a job. Headers of the source are not counted.
std::uint64_t convert_memory_bytes(const Checkpoint& source, const ConvertOptions& options);

/// A small file that a container carries beside its weights.
struct SideFile {
  std::string name;
  std::string bytes;
};
/// The side files that convert() writes, from the files beside a checkpoint. Throws Error for JSON
/// that is not strict, ids that are no numbers, names that are no strings.
std::vector<SideFile> side_files(const Checkpoint& source);

}  // namespace waste::convert
