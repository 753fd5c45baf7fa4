// checksums.json of a valid container: a typed error, or sums that write and read back as
// themselves; the container then opens exactly where every sum of what is read whole is right.
#include "fuzz_target.hpp"
#include "scratch_container.hpp"
#include "waste/io/checksums.hpp"
#include "waste/io/container.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  static const fuzz::ScratchContainer base(fuzz::small(test::TinySpec::vq2r()));
  static const Container container = [] {
    OpenOptions options;
    options.resident_trunk = false;
    return Container::open(base.dir, options);
  }();
  static const io::Checksums right = io::compute_checksums(base.dir, container.manifest());
  base.put(io::checksums_file, data, size);
  bool agrees = true;
  try {
    const auto sums = io::read_checksums(base.dir);
    if (sums) {
      WASTE_FUZZ_CHECK(io::dump_checksums(*sums).size() > 0);
      for (const auto& [name, crc] : right.trunk) {
        if (const auto got = sums->of_tensor(name)) agrees = agrees && *got == crc;
      }
      for (std::size_t id = 0; id < right.codebooks.size(); ++id) {
        if (const auto got = sums->of_codebook(id)) agrees = agrees && *got == right.codebooks[id];
      }
      for (const auto& [name, crc] : right.files) {
        const auto got = name == "manifest.json" ? sums->of_file(name) : std::nullopt;
        if (got) agrees = agrees && *got == crc;  // the others are an audit's matter
      }
      const std::string text = io::dump_checksums(*sums);
      base.put(io::checksums_file, text.data(), text.size());
      const auto again = io::read_checksums(base.dir);
      WASTE_FUZZ_CHECK(again && again->trunk == sums->trunk);
      WASTE_FUZZ_CHECK(again->codebooks == sums->codebooks && again->files == sums->files);
    }
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() == Errc::bad_json || e.code() == Errc::bad_field ||
                     e.code() == Errc::out_of_range);
    return 0;
  }
  bool opened = true;
  try {
    OpenOptions options;
    options.threads = 1;
    const Container c = Container::open(base.dir, options);
    for (const auto& [name, crc] : right.trunk) c.trunk().load(name);
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() == Errc::checksum);
    opened = false;
  }
  WASTE_FUZZ_CHECK(opened == agrees);
  return 0;
}
