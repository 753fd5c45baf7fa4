#include <algorithm>

#include "converter_internal.hpp"
#include "waste/core/parallel.hpp"
#include "waste/quant/vq_train.hpp"

namespace waste::convert::detail {
namespace {

using format::Kind;
constexpr Kind all_kinds[] = {Kind::gate, Kind::up, Kind::down};

/// Runs f and gives an Error that names no file the place it happened at.
template <class F>
auto naming(const Checkpoint& source, LayerId layer, ExpertId expert, Kind kind, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    if (!e.file().empty()) throw;
    throw Error(e.fault().at(layer, expert), source.directory().string(),
                "matrix " + std::string(format::to_string(kind)));
  }
}

/// One layer's codebooks for `quant`.
std::vector<float> train_layer(const Checkpoint& source, LayerId layer,
                               const format::ExpertQuant& quant, const ConvertOptions& options,
                               ProgressSink& progress) {
  const format::ModelConfig& model = source.model();
  const format::ExpertShape shape = model.expert_shape();
  const SampleShape sample = sample_shape(model, options);
  const double work =
      training_cost_per_vector * static_cast<double>(sample.experts * sample.vectors);
  std::vector<float> out;
  std::vector<float> matrix(shape.inter * shape.width);
  for (const Kind kind : all_kinds) {
    // Every (layer, kind) draws from a stream of its own, so that slices agree with a whole run.
    quant::EncodeOptions encode;
    encode.quant = quant;
    encode.effort = options.effort;
    encode.seed = options.seed + 0x9e3779b97f4a7c15u * (format::kinds * to_index(layer) +
                                                        static_cast<std::uint64_t>(kind) + 1);
    encode.threads = jobs_of(options);
    quant::VectorSample vectors(encode.seed);
    const MatrixView<float> view(matrix.data(), shape.rows(kind), shape.cols(kind));
    for (std::uint32_t i = 0; i < sample.experts; ++i) {
      const ExpertId expert{
          static_cast<std::uint32_t>(std::uint64_t{i} * model.num_experts / sample.experts)};
      source.read_expert_rows(layer, expert, kind, 0, view);
      naming(source, layer, expert, kind, [&] { vectors.append(view, sample.vectors); });
    }
    const std::vector<float> books = naming(source, layer, ExpertId{0}, kind, [&] {
      return quant::train_codebooks(vectors.view(), encode);
    });
    out.insert(out.end(), books.begin(), books.end());
    progress.add(work);
  }
  return out;
}

}  // namespace

void convert_layer(const Checkpoint& source, const io::ContainerWriter& writer, LayerId layer,
                   io::BankSet set, const ConvertOptions& options,
                   const CalibrationFile* calibration, ProgressSink& progress,
                   ConvertReport& report) {
  const format::ModelConfig& model = source.model();
  const bool substitutes = set == io::BankSet::substitutes;
  const format::RecordLayout& layout = writer.layout(set);
  if (writer.has_bank(layer, set) && writer.has_codebooks(layer, set)) {
    report.records_kept += model.num_experts;
    return;
  }
  progress.stage(substitutes ? "substitute codebooks" : "codebooks", to_index(layer));
  if (!writer.has_codebooks(layer, set)) {
    writer.write_codebooks(layer, train_layer(source, layer, layout.quant, options, progress), set);
  }
  if (writer.has_bank(layer, set)) return;
  progress.stage(substitutes ? "substitutes" : "experts", to_index(layer));
  const std::vector<float> books = writer.read_codebooks(layer, set);
  io::BankWriter bank = writer.open_bank(layer, set);

  const unsigned jobs = jobs_of(options);
  std::vector<std::uint8_t> there(model.num_experts);
  parallel_for(model.num_experts, jobs, [&](std::size_t e) {
    there[e] = bank.has(ExpertId{static_cast<std::uint32_t>(e)}) ? 1 : 0;
  });
  std::vector<std::uint32_t> todo;
  for (std::uint32_t e = 0; e < model.num_experts; ++e) {
    if (!there[e]) todo.push_back(e);
  }
  const format::ExpertShape shape = model.expert_shape();
  const std::size_t weights = shape.inter * shape.width;
  report.records_kept += model.num_experts - todo.size();
  if (todo.size() < model.num_experts) {
    progress.add(static_cast<double>(3 * weights * (model.num_experts - todo.size())));
  }

  quant::EncodeOptions encode;
  encode.quant = layout.quant;
  encode.effort = options.effort;
  encode.seed = options.seed;
  encode.threads = 1;
  const std::size_t kind_books = books.size() / format::kinds;
  std::optional<LayerCalibration> calibrated;
  if (calibration && !todo.empty()) {
    calibrated.emplace(*calibration, layer, books, encode, options);
  }
  struct Coded {
    std::array<quant::EncodeStats, format::kinds> plain, output;
  };
  std::vector<Coded> stats(todo.size());
  std::atomic<bool> failed{false};
  parallel_for(todo.size(), jobs, [&](std::size_t i) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      const ExpertId expert{todo[i]};
      io::RecordBuffer record(layout);
      std::vector<float> matrix(weights);
      quant::EncodeStats sum;
      for (const Kind kind : all_kinds) {
        const auto k = static_cast<std::size_t>(kind);
        const MatrixView<float> view(matrix.data(), shape.rows(kind), shape.cols(kind));
        source.read_expert_rows(layer, expert, kind, 0, view);
        const auto encoder = calibrated ? calibrated->encoder(expert, kind) : nullptr;
        const quant::EncodeStats one = naming(source, layer, expert, kind, [&] {
          std::uint8_t* const indices = record.indices(kind).data();
          std::uint8_t* const scales = record.scales(kind).data();
          return encoder ? encoder->encode(view, indices, scales)
                         : quant::encode_matrix(view, books.data() + k * kind_books, encode,
                                                indices, scales);
        });
        (encoder ? stats[i].output : stats[i].plain)[k] = one;
        sum += one;
      }
      std::uint8_t flags = 0;
      if (!substitutes && calibrated) flags = calibrated->flags(expert);
      if (!substitutes && options.substitutes) flags |= format::record_flags::has_substitute;
      bank.write(expert, record.seal(layer, expert, writer.codebook_base(layer, set), flags));
      const double work = static_cast<double>(3 * weights);
      if (substitutes) {
        progress.add(work);
      } else {
        progress.add(work, 3 * weights, sum);
      }
    } catch (...) {
      failed = true;
      throw;
    }
  });
  bank.publish();
  report.records_written += todo.size();
  for (const Coded& s : stats) {
    bool used = false;
    for (std::size_t k = 0; k < format::kinds; ++k) {
      if (substitutes) {
        report.substitute_error[k] += s.plain[k];
        report.substitute_error[k] += s.output[k];
        continue;
      }
      report.error[k] += s.plain[k];
      report.output_error[k] += s.output[k];
      used = used || s.output[k].squared_norm > 0;
    }
    report.records_calibrated += used;
  }
}

}  // namespace waste::convert::detail
