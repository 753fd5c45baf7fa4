#include "waste/io/substitutes.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <string>

#include "waste/core/parallel.hpp"
#include "waste/io/checksums.hpp"

namespace waste::io {
namespace {

namespace fs = std::filesystem;

AlignedBuffer<std::uint8_t> memory_of(const format::BankEntry& bank) {
  try {
    return AlignedBuffer<std::uint8_t>(bank.bytes, format::page_bytes, Uninitialized{});
  } catch (const std::bad_alloc&) {
    throw Error(fault(Errc::over_budget, "substitutes").at(LayerId{bank.layer}), bank.file,
                std::to_string(bank.bytes) + " bytes cannot be had");
  }
}

}  // namespace

bool has_substitutes(const fs::path& directory, const format::SubstituteBanks& banks) {
  std::error_code ec;
  return fs::exists(directory / format::substitute_codebooks_file, ec) ||
         std::any_of(banks.layers.begin(), banks.layers.end(),
                     [&](const auto& bank) { return fs::exists(directory / bank.file, ec); });
}

std::uint64_t substitute_bytes(const format::Manifest& manifest) {
  constexpr std::uint64_t books = format::kinds * 256 * format::vec_dim * sizeof(float);
  const format::SubstituteBanks banks = format::substitutes_of(manifest);
  return banks.bytes() + banks.layers.size() * books;
}

Substitutes Substitutes::open(const Container& container, unsigned threads) {
  const fs::path& directory = container.directory();
  Substitutes out;
  out.banks_ = format::substitutes_of(container.manifest());
  if (!has_substitutes(directory, out.banks_)) {
    throw Error(fault(Errc::missing, "substitutes"), directory.string(),
                "there are none; convert with --substitutes");
  }
  const std::optional<Checksums>& sums = container.trunk().checksums();
  out.codebooks_ = std::make_shared<const Codebooks>(Codebooks::load(
      directory / format::substitute_codebooks_file, out.banks_.layout.quant, out.banks_.layers,
      sums ? std::span<const std::uint32_t>(sums->substitute_codebooks)
           : std::span<const std::uint32_t>()));
  const std::uint64_t record = out.banks_.layout.record_bytes;
  for (const format::BankEntry& entry : out.banks_.layers) {
    const ExpertBank bank(directory, entry, out.banks_.layout, out.codebooks_);
    AlignedBuffer<std::uint8_t>& to = out.records_.emplace_back(memory_of(entry));
    parallel_for(entry.experts, threads == 0 ? available_threads() : threads, [&](std::size_t e) {
      check(bank.try_read(ExpertId{static_cast<std::uint32_t>(e)},
                          to.span().subspan(e * record, record), true),
            bank.file().path().string());
    });
  }
  return out;
}

ExpertView Substitutes::view(LayerId layer, ExpertId expert) const noexcept {
  const std::size_t i = to_index(layer) - banks_.layers.front().layer;
  const std::uint64_t record = banks_.layout.record_bytes;
  return view_record(banks_.layout, records_[i].span().subspan(to_index(expert) * record, record),
                     *codebooks_, banks_.layers[i].codebook_base);
}

std::uint64_t Substitutes::bytes() const noexcept { return banks_.bytes() + codebooks_->bytes(); }

}  // namespace waste::io
