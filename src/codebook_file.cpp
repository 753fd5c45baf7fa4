#include "waste/io/codebook_file.hpp"

#include <algorithm>
#include <string>

#include "waste/format/codebook.hpp"
#include "waste/io/crc32.hpp"
#include "waste/io/file.hpp"

namespace waste::io {

std::size_t Codebooks::floats_per_kind() const noexcept {
  return quant_.stages * (std::size_t{1} << quant_.index_bits) * format::vec_dim;
}

const float* Codebooks::of(std::uint32_t codebook_base, format::Kind kind) const noexcept {
  const auto it = std::lower_bound(bases_.begin(), bases_.end(), codebook_base);
  if (it == bases_.end() || *it != codebook_base) return nullptr;
  const auto slot = static_cast<std::size_t>(it - bases_.begin());
  return values_.data() +
         (slot * format::kinds + static_cast<std::size_t>(kind)) * floats_per_kind();
}

Codebooks Codebooks::load(const std::filesystem::path& path, const format::ExpertQuant& quant,
                          std::span<const format::BankEntry> banks,
                          std::span<const std::uint32_t> crcs) {
  check(validate(quant), path.string());
  const File file = File::open(path);
  const FileIdentity identity = file.identity();
  const std::size_t record_bytes = format::codebook_record_bytes(quant);
  if (identity.size % record_bytes != 0) {
    throw Error(fault(Errc::mismatch, "file size", identity.size,
                      round_up<std::uint64_t>(identity.size, record_bytes)),
                path.string(),
                "wanted whole records of " + std::to_string(record_bytes) + " bytes");
  }
  const std::uint32_t per_layer = format::codebooks_per_layer(quant);
  Codebooks out;
  out.quant_ = quant;
  for (const format::BankEntry& bank : banks) {
    const std::uint64_t end = (std::uint64_t{bank.codebook_base} + per_layer) * record_bytes;
    if (end > identity.size) {
      throw Error(fault(Errc::truncated, "file size", identity.size, end).at(LayerId{bank.layer}),
                  path.string(), "codebook_base " + std::to_string(bank.codebook_base));
    }
    out.bases_.push_back(bank.codebook_base);
  }
  std::sort(out.bases_.begin(), out.bases_.end());
  out.bases_.erase(std::unique(out.bases_.begin(), out.bases_.end()), out.bases_.end());
  out.values_ = AlignedBuffer<float>(out.bases_.size() * format::kinds * out.floats_per_kind(), 64);

  const std::size_t table = (std::size_t{1} << quant.index_bits) * format::vec_dim;
  std::vector<std::uint8_t> records(per_layer * record_bytes);
  float* to = out.values_.data();
  for (const std::uint32_t base : out.bases_) {
    file.pread(records, std::uint64_t{base} * record_bytes);
    for (std::uint32_t i = 0; i < per_layer; ++i, to += table) {
      const std::span<const std::uint8_t> record(records.data() + i * record_bytes, record_bytes);
      check(format::validate_codebook(record, quant, base + i), path.string(),
            "codebook " + std::to_string(base + i));
      if (base + i < crcs.size() && crc32(record) != crcs[base + i]) {
        throw Error(fault(Errc::checksum, "crc32", crc32(record), crcs[base + i]), path.string(),
                    "codebook " + std::to_string(base + i));
      }
      const std::uint8_t* from = record.data() + format::codebook_header_bytes;
      for (std::size_t e = 0; e < quant.entries * format::vec_dim; ++e) {
        to[e] = f16_to_f32(load_le<std::uint16_t>(from + 2 * e));
      }
    }
  }
  check(file.check_unchanged(identity), path.string());
  return out;
}

}  // namespace waste::io
