// What most files of the command include, compiled once: half of their compile time. They still
// include what they use.
#include <CLI/CLI.hpp>

#include "open_model.hpp"
