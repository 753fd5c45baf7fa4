// Undamaged folders of every format, ways of damaging one file of them, and what must be said then.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/matrices.hpp"
#include "support/tiny_container.hpp"
#include "waste/core/error.hpp"

namespace waste::damage {

using test::Bytes;

/// A folder: a container with all its side files, or a source checkpoint.
struct World {
  std::string name;
  bool source = false;
  test::TinyContainer tiny;            ///< of a container
  std::map<std::string, Bytes> files;  ///< all of the folder
  std::filesystem::path dir;           ///< where they lie

  /// Whether checksums.json has the crc32 of manifest and tokenizer files: containers with
  /// index_block 0 have one as older conversions wrote it.
  bool files_summed() const { return !source && tiny.spec.index_block != 0; }
  std::vector<std::string> named(const std::string& stem) const;  ///< files whose names begin so
};

/// VQ3R, VQ2R and VQ4P with index_block 64 and 0, K3 and VQ4P with fewer entries than an index can
/// say, and two checkpoints, BF16 and MXFP4; each written below `root`.
std::vector<World> make_worlds(const std::filesystem::path& root);

/// What a kind of damage did and what must be said of it.
struct Hurt {
  std::string file;  ///< that was damaged, and that an error must name
  Bytes bytes;       ///< its new content
  std::function<void(const std::filesystem::path&)> place;  ///< instead of bytes: makes the file
  Errc code = Errc::ok;     ///< ok: any typed error, or the answers of the undamaged folder
  Errc or_code = Errc::ok;  ///< as good as `code`, where not ok
  std::string field;        ///< part of the fault's field; empty: any
  std::string distinct;     ///< of a `place`: what makes it another input than the rest
  bool refused = true;      ///< false: the file holds hints, and accepting it is right
};

struct Kind {
  const char* name;
  std::function<bool(const World&)> fits;  ///< false: no such file or bytes in this world
  std::function<Hurt(const World&, test::Random&)> hurt;
};

/// The tables: of manifest, banks, codebooks and trunk; of side files and checkpoints.
const std::vector<Kind>& container_kinds();
const std::vector<Kind>& side_kinds();

}  // namespace waste::damage
