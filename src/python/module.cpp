// The Python module `waste`: open a container, look at matrices as NumPy arrays, multiply,
// quantize.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <memory>
#include <string>
#include <variant>

#include "waste/core/parallel.hpp"
#include "waste/format/manifest.hpp"
#include "waste/io/container.hpp"
#include "waste/nn/matvec.hpp"
#include "waste/quant/reference.hpp"
#include "waste/quant/vq_encode.hpp"
#include "waste/quant/vq_train.hpp"
#include "waste/version.hpp"

namespace py = pybind11;

namespace {

using namespace waste;
/// Any array becomes contiguous float32, copied only where it is not that already.
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

[[noreturn]] void refuse(const char* what, const std::string& detail) {
  throw Error(fault(Errc::bad_argument, what), {}, detail);
}

/// A matrix in any format, with whatever its bytes belong to.
struct Matrix {
  std::variant<VqMatrix, TrunkMatrix> view;
  std::shared_ptr<const void> keep;
  double relative_error = std::nan("");  ///< of what quantize() made

  std::size_t rows() const {
    return std::visit([](const auto& w) { return w.rows(); }, view);
  }
  std::size_t cols() const {
    return std::visit([](const auto& w) { return w.cols(); }, view);
  }
  const VqMatrix& vq() const {
    const auto* w = std::get_if<VqMatrix>(&view);
    if (w == nullptr) refuse("format", "a trunk matrix has no indices, scales or codebooks of VQ");
    return *w;
  }
};

std::string format_name(const Matrix& m) {
  const auto* trunk = std::get_if<TrunkMatrix>(&m.view);
  return std::string(to_string(trunk ? trunk->fmt : m.vq().quant.fmt));
}

/// The bytes of a matrix as an array that cannot be written and keeps `owner` alive.
template <class T>
py::array look(py::dtype type, std::vector<py::ssize_t> shape, const T* data, py::object owner) {
  py::array out(std::move(type), std::move(shape), data, std::move(owner));
  out.attr("setflags")(py::arg("write") = false);
  return out;
}

py::array indices(const py::object& self) {
  const VqMatrix& w = self.cast<Matrix&>().vq();
  return look(py::dtype::of<std::uint8_t>(), {static_cast<py::ssize_t>(w.layout().bytes())},
              w.indices, self);
}
py::array scales(const py::object& self) {
  const VqMatrix& w = self.cast<Matrix&>().vq();
  return look(py::dtype("float16"), {static_cast<py::ssize_t>(w.rows())}, w.scales, self);
}
py::array codebooks(const py::object& self) {
  const VqMatrix& w = self.cast<Matrix&>().vq();
  return look(
      py::dtype::of<float>(),
      {static_cast<py::ssize_t>(w.quant.stages), static_cast<py::ssize_t>(w.table_entries()), 8},
      w.codebooks, self);
}

Floats decode(const Matrix& m, unsigned threads) {
  Floats out({m.rows(), m.cols()});
  float* const to = out.mutable_data();
  const py::gil_scoped_release release;
  std::visit(
      [&](const auto& w) {
        parallel_for(w.rows(), threads, [&](std::size_t r) {
          for (std::size_t c = 0; c < w.cols(); ++c) {
            to[r * w.cols() + c] = static_cast<float>(quant::reference::element(w, r, c));
          }
        });
      },
      m.view);
  return out;
}

kernels::Precision precision_of(const std::string& name) {
  if (name == "exact") return kernels::Precision::exact;
  if (name == "hilo14") return kernels::Precision::hilo14;
  if (name == "split8") return kernels::Precision::split8;
  refuse("precision", "wants exact, hilo14 or split8, got " + name);
}

Floats product(const Matrix& m, const Floats& x, const std::string& precision, unsigned threads) {
  if (x.ndim() != 1) refuse("x", "wants a vector, got " + std::to_string(x.ndim()) + " dimensions");
  Exec exec;
  exec.precision = precision_of(precision);
  exec.threads = threads;
  Floats out(static_cast<py::ssize_t>(m.rows()));
  const std::span<const float> from(x.data(), static_cast<std::size_t>(x.size()));
  const std::span<float> to(out.mutable_data(), m.rows());
  const py::gil_scoped_release release;
  std::visit([&](const auto& w) { waste::matvec(w, from, to, exec); }, m.view);
  return out;
}

format::ExpertQuant quant_of(const std::string& name) {
  if (name == "VQ3R") return format::vq3r;
  if (name == "VQ2R") return format::vq2r;
  if (name == "VQ4P") return format::vq4p;
  refuse("format", "wants VQ3R, VQ2R or VQ4P, got " + name);
}
quant::Effort effort_of(const std::string& name) {
  if (name == "fast") return quant::Effort::fast;
  if (name == "standard") return quant::Effort::standard;
  if (name == "best") return quant::Effort::best;
  refuse("effort", "wants fast, standard or best, got " + name);
}

Matrix quantize(const Floats& w, const std::string& format, const std::string& effort,
                std::uint64_t seed, unsigned threads) {
  struct Owned {
    std::vector<std::uint8_t> indices, scales;
    AlignedBuffer<float> codebooks;
  };
  if (w.ndim() != 2) refuse("w", "wants a matrix, got " + std::to_string(w.ndim()) + " dimensions");
  quant::EncodeOptions options;
  options.quant = quant_of(format);
  options.effort = effort_of(effort);
  options.seed = seed;
  options.threads = threads;
  const MatrixView<const float> view(w.data(), static_cast<std::size_t>(w.shape(0)),
                                     static_cast<std::size_t>(w.shape(1)));
  const py::gil_scoped_release release;
  quant::VectorSample sample(seed);
  sample.append(view, 300'000);
  const std::vector<float> books = quant::train_codebooks(sample.view(), options);
  auto owned = std::make_shared<Owned>();
  owned->codebooks = AlignedBuffer<float>(books.size(), 64);
  std::copy(books.begin(), books.end(), owned->codebooks.begin());
  owned->indices.resize(format::IndexLayout(options.quant, view.rows, view.cols).bytes());
  owned->scales.resize(2 * view.rows);
  const quant::EncodeStats stats = quant::encode_matrix(
      view, owned->codebooks.data(), options, owned->indices.data(), owned->scales.data());
  Matrix out;
  out.view = VqMatrix{
      owned->indices.data(), owned->scales.data(), owned->codebooks.data(), view.rows, view.cols,
      options.quant};
  out.keep = owned;
  out.relative_error = stats.relative_error();
  return out;
}

Matrix expert_matrix(const std::shared_ptr<Expert>& expert, const VqMatrix& view) {
  return {view, expert, std::nan("")};
}

std::shared_ptr<Expert> read_expert(const Container& c, std::uint32_t layer, std::uint32_t expert) {
  const py::gil_scoped_release release;
  return std::make_shared<Expert>(c.bank(LayerId{layer}).read(ExpertId{expert}));
}

Matrix read_tensor(const Container& c, const std::string& name) {
  const py::gil_scoped_release release;
  auto loaded = std::make_shared<io::LoadedTensor>(c.trunk().load(name));
  const TrunkMatrix view = loaded->view();
  return {view, std::move(loaded), std::nan("")};
}

io::Verify verify_of(const std::string& name) {
  if (name == "off") return io::Verify::off;
  if (name == "once") return io::Verify::once;
  if (name == "always") return io::Verify::always;
  refuse("verify", "wants off, once or always, got " + name);
}

Container open(const std::string& path, const std::string& verify) {
  OpenOptions options;
  options.verify_records = verify_of(verify);
  options.resident_trunk = false;  // tensors are read when they are asked for
  const py::gil_scoped_release release;
  return Container::open(path, options);
}

std::vector<std::uint32_t> layers_of(const Container& c) {
  std::vector<std::uint32_t> out;
  for (const io::ExpertBank& bank : c.banks()) out.push_back(to_index(bank.layer()));
  return out;
}
std::vector<std::string> tensors_of(const Container& c) {
  std::vector<std::string> out;
  for (const format::TrunkEntry& entry : c.trunk().entries()) out.push_back(entry.name);
  return out;
}
py::object manifest_of(const Container& c) {
  return py::module_::import("json").attr("loads")(format::dump_manifest(c.manifest()));
}

}  // namespace

PYBIND11_MODULE(waste, m) {
  m.doc() = "WASTE containers: residual-vector-quantized experts, streamed from disk";
  m.attr("__version__") = version_string;

  // Never destroyed: the interpreter may be gone when static objects are.
  static const py::object& error = *new py::object(py::exception<Error>(m, "Error"));
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& e) {
      const py::object value = error(e.what());
      value.attr("code") = std::string(to_string(e.code()));
      value.attr("file") = e.file();
      PyErr_SetObject(error.ptr(), value.ptr());
    }
  });

  py::class_<Matrix>(m, "Matrix", "A quantized matrix [rows][cols]; bytes stay where they are.")
      .def_property_readonly("rows", &Matrix::rows)
      .def_property_readonly("cols", &Matrix::cols)
      .def_property_readonly("shape",
                             [](const Matrix& w) { return py::make_tuple(w.rows(), w.cols()); })
      .def_property_readonly("format", &format_name, "VQ3R, VQ2R, VQ4P, F32, F16, Q8G, Q4G or Q3G")
      .def_readonly("relative_error", &Matrix::relative_error,
                    "|W - decoded| / |W| of what quantize() made; else NaN")
      .def_property_readonly("indices", &indices, "uint8 [bytes], not copied; see docs/format.md")
      .def_property_readonly("scales", &scales, "float16 [rows], not copied")
      .def_property_readonly("codebooks", &codebooks, "float32 [stages][entries][8], not copied")
      .def("decode", &decode, "float32 [rows][cols], each element rounded once",
           py::arg("threads") = 1u)
      .def("matvec", &product, "y = W x as float32 [rows], on the best tier of this CPU",
           py::arg("x"), py::arg("precision") = "exact", py::arg("threads") = 1u);

  py::class_<Expert, std::shared_ptr<Expert>>(m, "Expert", "Three matrices of one record.")
      .def_property_readonly(
          "gate", [](const std::shared_ptr<Expert>& e) { return expert_matrix(e, e->gate()); })
      .def_property_readonly(
          "up", [](const std::shared_ptr<Expert>& e) { return expert_matrix(e, e->up()); })
      .def_property_readonly(
          "down", [](const std::shared_ptr<Expert>& e) { return expert_matrix(e, e->down()); });

  py::class_<Container>(m, "Container", "An open container; cheap to copy, safe between threads.")
      .def(py::init(&open), py::arg("path"), py::arg("verify") = "once")
      .def_property_readonly("layers", &layers_of, "the layers that have experts")
      .def_property_readonly("experts", [](const Container& c) { return c.model().num_experts; })
      .def_property_readonly("tensors", &tensors_of, "names of the trunk's tensors")
      .def_property_readonly("manifest", &manifest_of, "manifest.json as a dictionary")
      .def("expert", &read_expert, "reads one record, checked", py::arg("layer"), py::arg("expert"))
      .def("tensor", &read_tensor, "reads one tensor of the trunk", py::arg("name"));

  m.def(
      "quantize", &quantize, py::arg("w"), py::arg("format") = "VQ3R",
      py::arg("effort") = "standard", py::arg("seed") = std::uint64_t{0}, py::arg("threads") = 0u,
      "Fits codebooks to w [rows][cols], cols a multiple of 8, and encodes it. The same w, format, "
      "effort and seed give the same bytes.");
}
