// What most tests include of others' headers and of the library, compiled once. They still include
// what they use: -Db_pch=false builds them without.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "waste/io/container.hpp"
