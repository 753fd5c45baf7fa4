#include "registry.hpp"

int main(int argc, char** argv) { return waste::bench::run(argc, argv); }
