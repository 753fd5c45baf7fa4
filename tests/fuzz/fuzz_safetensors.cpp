// The header of a safetensors file: the first 8 bytes are the size of the data, the rest is the
// JSON. A typed error, or tensors that tile the data.
#include <algorithm>

#include "fuzz_target.hpp"
#include "waste/io/safetensors.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace waste;
  fuzz::Input in(data, size);
  const std::uint64_t data_bytes = in.take(8);
  const auto rest = in.rest();
  const std::uint64_t data_off = 8 + rest.size();
  try {
    const auto tensors = io::parse_safetensors_header(fuzz::text_of(rest.data(), rest.size()),
                                                      data_off, data_bytes, "fuzz");
    std::uint64_t end = data_off;
    for (const io::SourceTensor& t : tensors) {
      WASTE_FUZZ_CHECK(t.off == end);
      end += t.bytes;
    }
    WASTE_FUZZ_CHECK(end == data_off + data_bytes);
  } catch (const Error& e) {
    WASTE_FUZZ_CHECK(e.code() != Errc::ok);
  }
  return 0;
}
