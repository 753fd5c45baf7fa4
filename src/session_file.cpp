#include "waste/model/session_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "waste/core/checked.hpp"
#include "waste/core/half.hpp"
#include "waste/io/crc32.hpp"
#include "waste/io/file.hpp"

namespace waste::model {
namespace {

constexpr std::size_t most_pending = std::size_t{1} << 16;
constexpr std::size_t crc_at = 60;
using Header = std::array<std::uint8_t, session_header_bytes>;

struct Field {
  const char* name;
  std::size_t at;
  std::uint32_t value;
};

/// What a session's shape follows from, and the model it belongs to.
std::array<Field, 7> shape_of(const format::ModelConfig& c, std::uint32_t fingerprint) {
  return {{{"layers", 8, c.num_hidden_layers},
           {"hidden_size", 12, c.hidden_size},
           {"kda_heads", 16, c.kda_heads},
           {"kda_head_dim", 20, c.kda_head_dim},
           {"short_conv_kernel_size", 24, c.short_conv_kernel_size},
           {"latent width", 28, c.kv_lora_rank + c.qk_rope_head_dim},
           {"model", 44, fingerprint}}};
}

template <class T>
std::span<const std::uint8_t> bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
}

Fault check_pending(std::span<const std::uint32_t> pending, const format::ModelConfig& config) {
  if (pending.size() > most_pending) {
    return fault(Errc::out_of_range, "pending tokens", pending.size(), most_pending);
  }
  for (const std::uint32_t token : pending) {
    if (token >= config.vocab_size) {
      return fault(Errc::out_of_range, "pending token", token, config.vocab_size - 1);
    }
  }
  return {};
}

}  // namespace

/// The state of a session, part by part, in the order of the file.
struct SessionParts {
  static std::vector<std::span<const float>> of(const Session& s) {
    std::vector<std::span<const float>> out;
    for (const Session::Layer& l : s.layers_) {
      if (l.kda_state.size() != 0) {
        out.emplace_back(l.kda_state.data(), l.kda_state.size());
        out.emplace_back(l.kda_ring.data(), l.kda_ring.size());
      } else {
        out.emplace_back(l.latent.data(), l.used * s.width_);
      }
    }
    return out;
  }
  /// Sets the position and makes room; the parts are then to be filled.
  static std::vector<std::span<float>> make(Session& s, std::size_t position) {
    std::vector<std::span<float>> out;
    s.position_ = position;
    for (std::size_t i = 0; i < s.layers_.size(); ++i) {
      Session::Layer& l = s.layers_[i];
      if (l.kda_state.size() != 0) {
        out.emplace_back(l.kda_state.data(), l.kda_state.size());
        out.emplace_back(l.kda_ring.data(), l.kda_ring.size());
      } else {
        const nn::MlaCache cache = s.mla(i, position);
        l.used = position;
        out.emplace_back(cache.rows, position * s.width_);
      }
    }
    return out;
  }
  static std::size_t width(const Session& s) { return s.width_; }
  static std::size_t layers(const Session& s) { return s.layers_.size(); }
};

void save_session(const Session& session, const format::ModelConfig& config,
                  std::uint32_t fingerprint, std::span<const std::uint32_t> pending,
                  const std::filesystem::path& path) {
  if (session.broken()) {
    throw Error(fault(Errc::bad_argument, "session"), path.string(),
                "a forward pass ended in an error: there is nothing whole to save");
  }
  if (SessionParts::layers(session) != config.num_hidden_layers ||
      SessionParts::width(session) != config.kv_lora_rank + config.qk_rope_head_dim) {
    throw Error(fault(Errc::bad_argument, "session"), path.string(), "it is of another model");
  }
  check(check_pending(pending, config), path.string());
  const auto parts = SessionParts::of(session);

  Header header{};
  store_le(header.data(), session_magic);
  store_le(header.data() + 4, session_version);
  for (const Field& f : shape_of(config, fingerprint)) store_le(header.data() + f.at, f.value);
  store_le<std::uint64_t>(header.data() + 32, session.position());
  store_le(header.data() + 40, static_cast<std::uint32_t>(pending.size()));
  std::uint32_t crc = io::crc32(bytes_of(pending));
  for (const auto part : parts) crc = io::crc32(bytes_of(part), crc);
  store_le(header.data() + 48, crc);
  store_le(header.data() + crc_at, io::crc32({header.data(), crc_at}));

  io::write_atomically(path, [&](const io::File& file) {
    std::uint64_t at = 0;
    const auto put = [&](std::span<const std::uint8_t> bytes) {
      if (!bytes.empty()) file.pwrite(bytes, at);
      at += bytes.size();
    };
    put(header);
    put(bytes_of(pending));
    for (const auto part : parts) put(bytes_of(part));
  });
}

SavedSession load_session(const format::ModelConfig& config, std::uint32_t fingerprint,
                          std::size_t context, const std::filesystem::path& path) {
  SavedSession out{Session(config, context), {}};
  const io::File file = io::File::open(path);
  const std::string name = path.string();
  const io::FileIdentity identity = file.identity();
  Header header{};
  if (identity.size < header.size()) {
    throw Error(fault(Errc::truncated, "header", identity.size, header.size()), name);
  }
  file.pread(header, 0);
  const auto number = [&](std::size_t at) { return load_le<std::uint32_t>(header.data() + at); };
  if (number(0) != session_magic) {
    throw Error(fault(Errc::bad_magic, "magic", number(0), session_magic), name);
  }
  if (number(4) != session_version) {
    throw Error(fault(Errc::bad_version, "version", number(4), session_version), name);
  }
  const std::uint32_t header_crc = io::crc32({header.data(), crc_at});
  if (number(crc_at) != header_crc) {
    throw Error(fault(Errc::checksum, "header crc32", header_crc, number(crc_at)), name);
  }
  for (const Field& f : shape_of(config, fingerprint)) {
    if (number(f.at) != f.value) {
      throw Error(fault(Errc::mismatch, f.name, number(f.at), f.value), name,
                  "the session is of another model");
    }
  }
  if (load_le<std::uint64_t>(header.data() + 52) != 0) {
    throw Error(fault(Errc::bad_field, "reserved"), name);
  }
  const auto position = load_le<std::uint64_t>(header.data() + 32);
  if (position > context)
    throw Error(fault(Errc::out_of_range, "position", position, context), name);
  const std::uint32_t pending = number(40);
  if (pending > most_pending) {
    throw Error(fault(Errc::out_of_range, "pending tokens", pending, most_pending), name);
  }
  // The size first: room for the caches is only made for a file that fills it.
  CheckedSize want(position);
  const auto mla = static_cast<std::uint64_t>(
      std::count(config.attention.begin(), config.attention.end(), format::AttentionKind::mla));
  want.mul(config.kv_lora_rank + config.qk_rope_head_dim).mul(mla).mul(sizeof(float));
  want.add(out.session.state_bytes()).add(pending * sizeof(std::uint32_t)).add(header.size());
  if (!want.ok() || identity.size != want.value()) {
    const bool less = !want.ok() || identity.size < want.value();
    throw Error(fault(less ? Errc::truncated : Errc::mismatch, "size", identity.size, want.value()),
                name);
  }

  std::uint64_t at = header.size();
  std::uint32_t crc = 0;
  const auto get = [&](std::span<std::uint8_t> bytes) {
    if (!bytes.empty()) file.pread(bytes, at);
    at += bytes.size();
    crc = io::crc32(bytes, crc);
  };
  out.pending.resize(pending);
  get({reinterpret_cast<std::uint8_t*>(out.pending.data()), pending * sizeof(std::uint32_t)});
  const auto parts = SessionParts::make(out.session, static_cast<std::size_t>(position));
  for (const auto part : parts) {
    get({reinterpret_cast<std::uint8_t*>(part.data()), part.size_bytes()});
  }
  check(file.check_unchanged(identity), name);
  if (crc != number(48)) throw Error(fault(Errc::checksum, "crc32", crc, number(48)), name);
  check(check_pending(out.pending, config), name);
  for (const auto part : parts) {
    if (!std::all_of(part.begin(), part.end(), [](float v) { return std::isfinite(v); })) {
      throw Error(fault(Errc::bad_field, "state"), name, "a number that is not finite");
    }
  }
  return out;
}

}  // namespace waste::model
