// Byte work: reading memory, crc32, and narrow floats to f32.
#include <memory>

#include "data.hpp"
#include "registry.hpp"
#include "waste/arch/cpu.hpp"
#include "waste/core/half.hpp"
#include "waste/core/parallel.hpp"
#include "waste/io/crc32.hpp"
#include "waste/kernels/kernel_table.hpp"
#include "waste/quant/mxfp4.hpp"

namespace waste::bench {
namespace {

constexpr std::size_t record_bytes = 12406784;  ///< of a K3 expert at three bits

constexpr std::size_t slice_bytes = std::size_t{16} << 20;  ///< read a run

/// Sums 64-bit words of four quarters of a span at once: one stream alone waits for its pages, and
/// here nothing but the memory limits the loads.
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
std::uint64_t
read_words(const std::uint8_t* from, std::size_t bytes) {
  typedef std::uint64_t Words __attribute__((vector_size(32), aligned(32)));
  constexpr std::size_t streams = 4;
  const std::size_t quarter = bytes / streams;
  Words sum[2 * streams] = {};
  for (std::size_t i = 0; i < quarter; i += 2 * sizeof(Words)) {
    for (std::size_t k = 0; k < streams; ++k) {
      const auto* words = reinterpret_cast<const Words*>(from + k * quarter + i);
      sum[2 * k] += words[0];
      sum[2 * k + 1] += words[1];
    }
  }
  std::uint64_t out = 0;
  for (const Words& s : sum) out += s[0] + s[1] + s[2] + s[3];
  return out;
}

void add_reads(unsigned threads) {
  Group group;
  group.labels.push_back(
      {"read", "-", std::to_string(ram_bytes() >> 20) + "MiB", "-", "-", "ram", threads});
  group.make = [threads] {
    const auto bytes = std::make_shared<AlignedBuffer<std::uint8_t>>(ram_bytes());
    std::uint64_t seed = 1;
    for (std::size_t i = 0; i < bytes->size(); i += 64) {
      (*bytes)[i] = static_cast<std::uint8_t>(random_bits(seed));
    }
    const auto got = std::make_shared<std::uint64_t>(0);
    Case c;
    // A slice a run, so that the fastest run is one that nothing interrupted.
    const auto turn = std::make_shared<std::size_t>(0);
    c.run = [bytes, got, turn, threads] {
      const std::size_t part = slice_bytes / 16;
      const std::uint8_t* const from =
          bytes->data() + (*turn)++ % (bytes->size() / slice_bytes) * slice_bytes;
      std::uint64_t sums[16];
      parallel_for(16, threads,
                   [&](std::size_t i) { sums[i] = read_words(from + i * part, part); });
      for (const std::uint64_t s : sums) *got += s;
    };
    c.payload_bytes = slice_bytes;
    c.error = [bytes, got, turn, run = c.run] {
      *got = *turn = 0;
      std::uint64_t want = 0;
      for (std::size_t i = 0; i < bytes->size() / slice_bytes; ++i) run();
      for (std::size_t i = 0; i < bytes->size(); i += 8) {
        want += load_le<std::uint64_t>(bytes->data() + i);
      }
      return want == *got ? 0.0 : 1.0;
    };
    return std::vector<Case>{c};
  };
  add(std::move(group));
}

void add_crc(const std::string& cache, std::size_t size) {
  Group group;
  for (const auto& kernel : io::crc32_kernels()) {
    group.labels.push_back({"crc32", "-", std::to_string(size) + "B", kernel.name, "-", cache, 1});
  }
  group.make = [cache, size] {
    const auto data = std::make_shared<Copies>(size, copies_for(cache, size), 17);
    data->spread();
    const std::uint32_t want = io::crc32_kernels().front().update({data->copy(0), size}, 0);
    std::vector<Case> cases;
    for (const auto& kernel : io::crc32_kernels()) {
      const auto got = std::make_shared<std::uint32_t>(0);
      Case c;
      c.run = [data, got, size, update = kernel.update] { *got = update({data->next(), size}, 0); };
      c.payload_bytes = static_cast<double>(size);
      c.error = [got, want] { return *got == want ? 0.0 : 1.0; };
      cases.push_back(std::move(c));
    }
    return cases;
  };
  add(std::move(group));
}

void add_conversions() {
  constexpr std::size_t n = 1 << 16;
  const char* const names[] = {"F16", "BF16", "MXFP4"};
  for (std::size_t kind = 0; kind < 3; ++kind) {
    Group group;
    for (const auto tier : arch::runnable_tiers()) {
      group.labels.push_back(
          {"to_f32", names[kind], std::to_string(n), std::string(to_string(tier)), "exact"});
    }
    group.make = [kind] {
      struct State {
        std::vector<std::uint8_t> from;
        std::vector<float> want, got;
      };
      const auto s = std::make_shared<State>();
      s->want.resize(n);
      s->got.resize(n);
      const auto values = random_inputs(n, 23);
      if (kind < 2) {
        s->from.resize(2 * n);
        for (std::size_t i = 0; i < n; ++i) {
          const std::uint16_t bits = kind == 0 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
          store_le<std::uint16_t>(s->from.data() + 2 * i, bits);
          s->want[i] = kind == 0 ? f16_to_f32(bits) : bf16_to_f32(bits);
        }
      } else {
        std::uint64_t seed = 29;  // n / 2 bytes of nibbles, then n / 32 scales
        s->from.resize(n / 2 + n / 32);
        for (auto& b : s->from) b = static_cast<std::uint8_t>(random_bits(seed) % 200);
        (void)quant::decode_mxfp4(s->from.data(), s->from.data() + n / 2,
                                  MatrixView<float>(s->want.data(), 1, n));
      }
      std::vector<Case> cases;
      for (const auto tier : arch::runnable_tiers()) {
        const auto* k = kernels::kernel_table(tier).matrix;
        Case c;
        c.run = [s, k, kind] {
          const std::uint8_t* from = s->from.data();
          if (kind == 0) k->f16_to_f32(from, n, s->got.data());
          if (kind == 1) k->bf16_to_f32(from, n, s->got.data());
          if (kind == 2) k->mxfp4_row(from, from + n / 2, n, s->got.data());
        };
        c.weights = n;
        c.payload_bytes = static_cast<double>(s->from.size());
        c.error = [s] { return s->got == s->want ? 0.0 : 1.0; };
        cases.push_back(std::move(c));
      }
      return cases;
    };
    add(std::move(group));
  }
}

}  // namespace

void add_read() {
  add_reads(1);
  if (all_threads() > 1) add_reads(all_threads());
}

void add_bytes() {
  add_crc("hot", std::size_t{1} << 16);
  add_crc("ram", record_bytes);
  add_conversions();
}

}  // namespace waste::bench
