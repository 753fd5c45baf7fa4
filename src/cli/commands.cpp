#include "commands.hpp"

namespace waste::cli {

const std::vector<AddCommand> commands = {};

}  // namespace waste::cli
