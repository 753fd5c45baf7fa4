#include "commands.hpp"

namespace waste::cli {

const std::vector<AddCommand> commands = {
    add_convert,
    add_calibrate,
    add_verify,
    add_info,
    add_plan,
    add_run,
    add_eval,
    add_trace,
    add_report,
    add_tokenize,
    add_synth,
    add_bench,
};

}  // namespace waste::cli
