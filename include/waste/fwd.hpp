// Forward declarations of the daily names, for headers that only pass them on.
#pragma once

#include <cstdint>

namespace waste {

enum class LayerId : std::uint32_t;
enum class ExpertId : std::uint32_t;
enum class Errc : std::uint8_t;
struct Fault;
class Error;

struct VqMatrix;
struct TrunkMatrix;
struct ExpertView;
class Expert;
struct Exec;
class VqTable;
template <class T>
struct MatrixView;

namespace io {
class File;
class ExpertBank;
class Trunk;
class Codebooks;
class Container;
}  // namespace io

namespace format {
struct Manifest;
struct ModelConfig;
struct ExpertQuant;
struct RecordLayout;
}  // namespace format

}  // namespace waste
