// The substitute banks of a container: files, layout and codebook ids, derived from its manifest.
#pragma once

#include <string>
#include <vector>

#include "waste/format/manifest.hpp"
#include "waste/format/record_layout.hpp"

namespace waste::format {

/// Codebooks of all substitutes, records as in codebooks.bin (fmt 6, 256 entries): those of the
/// i-th MoE layer have the ids 3i gate, 3i+1 up, 3i+2 down.
inline constexpr const char* substitute_codebooks_file = "subs-codebooks.bin";

/// Substitutes of every expert: a `subs-L{n}.bin` for each expert bank, with records of the same
/// header (magic WSUB, fmt 6, flags 0) and layout at one stage of 256 entries in blocks of 64 rows.
/// The manifest does not mention them; they are there for all layers or for none, and then the
/// records of the expert banks bear record_flags::has_substitute.
struct SubstituteBanks {
  RecordLayout layout;
  std::vector<BankEntry> layers;  ///< as Manifest::layers

  std::uint64_t bytes() const noexcept {
    std::uint64_t sum = 0;
    for (const BankEntry& b : layers) sum += b.bytes;
    return sum;
  }
};

/// `manifest` as parse_manifest returned it. Throws Error where a record would not fit the format.
inline SubstituteBanks substitutes_of(const Manifest& manifest) {
  SubstituteBanks out;
  check(derive_layout(sub1, manifest.layout.shape, out.layout), "substitutes");
  for (const BankEntry& bank : manifest.layers) {
    BankEntry one = bank;
    one.file = "subs-L" + std::to_string(bank.layer) + ".bin";
    one.bytes = out.layout.record_bytes * bank.experts;
    one.codebook_base = static_cast<std::uint32_t>(kinds * out.layers.size());
    out.layers.push_back(std::move(one));
  }
  return out;
}

}  // namespace waste::format
