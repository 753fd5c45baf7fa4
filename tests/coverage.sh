#!/usr/bin/env bash
# Line coverage of format/, io/ and convert/ (headers, and the sources that implement them) by their tests, the
# one of calibration files, which is with the model, and the replayed fuzz targets. Prints a line a file, the
# uncovered lines with -v, and the sum; exit code 1 below 95 %.
# Usage: tests/coverage.sh [-v] [BUILD_DIR [OUT_DIR]]     BUILD_DIR: what tests/run.sh built (default: build)
# Needs gcov, which comes with g++.
set -eu
cd "$(dirname "$0")/.."
verbose=""
if [ "${1:-}" = -v ]; then
  verbose=-v
  shift
fi
build=${1:-build}
out=${2:-build-coverage}
. tests/support/instrument.sh
export WASTE_TEST_DATA="$PWD/tests/data" WASTE_SOURCE_ROOT="$PWD"
folders="include/waste/format include/waste/io include/waste/convert"
# shellcheck disable=SC2086
sources=$(python3 tests/support/line_coverage.py --sources $folders)
mapfile -t programs < <(sed -n "s/^[^#]*'\([a-z_0-9]*\)' : files.*/\1/p" tests/{format,io,convert}/meson.build
  echo calibrate
  sed -n "s/^  '\([a-z]*\)' : .*/fuzz_\1/p" tests/fuzz/meson.build)
find "$out" -name '*.gcda' -delete 2>/dev/null || true
instrument "$build" "$out" "-O0 --coverage" "$sources" "${programs[@]}"
# A failing test is reported by tests/run.sh; here it only covers fewer lines.
python3 tests/support/run_programs.py "$out" "${programs[@]}" || true
# shellcheck disable=SC2086
exec python3 tests/support/line_coverage.py $verbose "$out" $folders
