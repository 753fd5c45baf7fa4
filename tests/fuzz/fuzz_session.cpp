// Input: a flag byte, then a session file; bit 0 mends the header's crc, bit 1 the other one.
// A typed error, or a session that writes back as the same file.
#include <cstring>
#include <vector>

#include "fuzz_target.hpp"
#include "scratch_container.hpp"
#include "waste/core/half.hpp"
#include "waste/io/crc32.hpp"
#include "waste/io/file.hpp"
#include "waste/model/session_file.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  static const fuzz::ScratchFolder folder;
  format::ModelConfig config;
  config.num_hidden_layers = 2;
  config.attention = {format::AttentionKind::kda, format::AttentionKind::mla};
  config.hidden_size = 8;
  config.vocab_size = 300;
  config.kda_heads = 1;
  config.kda_head_dim = 2;
  config.short_conv_kernel_size = 4;
  config.kv_lora_rank = 2;
  config.qk_rope_head_dim = 1;
  constexpr std::uint32_t fingerprint = 7;
  constexpr std::size_t context = 64;

  const unsigned flags = size == 0 ? 0 : data[0];
  std::vector<std::uint8_t> bytes(data + (size != 0), data + size);
  if (bytes.size() >= model::session_header_bytes) {
    const std::span<const std::uint8_t> all = bytes;
    if (flags & 2) store_le(bytes.data() + 48, io::crc32(all.subspan(64)));
    if (flags & 1) store_le(bytes.data() + 60, io::crc32(all.first(60)));
  }
  folder.put("s", bytes.data(), bytes.size());
  try {
    const model::SavedSession saved =
        model::load_session(config, fingerprint, context, folder.dir / "s");
    WASTE_FUZZ_CHECK(saved.session.position() <= context && !saved.session.broken());
    for (const std::uint32_t t : saved.pending) WASTE_FUZZ_CHECK(t < config.vocab_size);
    model::save_session(saved.session, config, fingerprint, saved.pending, folder.dir / "again");
    const std::string again = io::read_text(folder.dir / "again", std::uint64_t{1} << 20);
    WASTE_FUZZ_CHECK(again == fuzz::text_of(bytes.data(), bytes.size()));
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok && e.file() == (folder.dir / "s").string());
  }
  return 0;
}
