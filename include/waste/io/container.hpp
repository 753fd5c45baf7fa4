// Opening a container directory: manifest, codebooks, banks and trunk, checked against each other.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "waste/format/manifest.hpp"
#include "waste/io/codebook_file.hpp"
#include "waste/io/expert_bank.hpp"
#include "waste/io/trunk_file.hpp"

namespace waste::io {

struct OpenOptions {
  Verify verify_records = Verify::once;  ///< when the crc32 of expert records is compared
  bool verify_checksums = true;  ///< compare what is read whole with checksums.json, if there
  bool direct_io = false;        ///< bypass the page cache for expert records where possible
  bool resident_trunk = true;    ///< read the trunk into memory; false suits audits and listings
  unsigned threads = 0;          ///< that read the trunk; 0: all
};

/// An open container. Cheap to copy (copies share everything); immutable, so safe to share between
/// threads. Files stay open: what replaces them by rename is not seen, what rewrites them in place
/// is an error (Errc::changed) of the read that notices.
///
///     auto model  = waste::Container::open("k3.waste");
///     auto expert = model.bank(waste::LayerId{37}).read(waste::ExpertId{412});
class Container {
 public:
  /// Throws Error naming file, field, wanted and got for anything that does not fit; reads no
  /// expert. Memory: the resident trunk, the codebooks and the manifest.
  static Container open(const std::filesystem::path& directory, const OpenOptions& options = {});

  const format::Manifest& manifest() const noexcept { return state_->manifest; }
  const format::ModelConfig& model() const noexcept { return state_->manifest.model; }
  /// Throws Error(out_of_range) for a layer without experts.
  const ExpertBank& bank(LayerId layer) const;
  const std::vector<ExpertBank>& banks() const noexcept { return state_->banks; }
  const Trunk& trunk() const noexcept { return state_->trunk; }
  const Codebooks& codebooks() const noexcept { return *state_->codebooks; }
  const std::filesystem::path& directory() const noexcept { return state_->directory; }

 private:
  struct State {
    std::filesystem::path directory;
    format::Manifest manifest;
    std::shared_ptr<const Codebooks> codebooks;
    std::vector<ExpertBank> banks;
    Trunk trunk;
  };
  std::shared_ptr<const State> state_;
};

}  // namespace waste::io

namespace waste {
using io::Container;
using io::OpenOptions;
}  // namespace waste
