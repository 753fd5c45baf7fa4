#!/usr/bin/env bash
# Builds and runs every test; the last line is "N passed, N failed[, N skipped]". Where a cross compiler and qemu are
# installed (tests/install_dependencies.sh cross), the test programs are also built for AArch64 and run there; where
# clang is, with it and with the newest xsimd and Catch2 at hand (tests/combinations.sh).
# Usage: tests/run.sh [BUILD_DIR]
# Environment: WASTE_SHARED, folder of external check data; WASTE_NATIVE_ONLY, set to leave those two out.
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
steps="$build/steps"
. tests/support/steps.sh

native() {
  tests/install_dependencies.sh test || return
  if [ -z "${WASTE_SHARED:-}" ] && [ -d ../shared/interop ]; then
    WASTE_SHARED=$(cd ../shared && pwd)
    export WASTE_SHARED
  fi
  # The reference is Python with NumPy; the interpreter that has NumPy need not be the first on PATH.
  for python in "${WASTE_PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$python" ] && "$python" -c 'import numpy' 2>/dev/null; then
      export WASTE_PYTHON=$python
      break
    fi
  done
  options="--wrap-mode=nodownload"
  if [ -d "$build/meson-private" ]; then options="$options --reconfigure"; fi
  [ -z "${WASTE_PYTHON:-}" ] || options="$options -Dpython_program=$WASTE_PYTHON"
  # shellcheck disable=SC2086
  meson setup $options "$build" . || return
  echo "Building (about ten minutes on two cores the first time)"
  ninja -C "$build" tests || return
  export WASTE_BINARY="$PWD/$build/waste"
  meson test -C "$build" --no-rebuild --print-errorlogs --num-processes "${WASTE_TEST_JOBS:-2}"
  python3 tests/support/summarize.py "$build/meson-logs/testlog.json"
}

aarch64() {
  if [ -n "${WASTE_NATIVE_ONLY:-}" ] || ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
    echo "skipped: AArch64 (tests/cross/run.sh)"
    echo "0 passed, 0 failed, 1 skipped"
  else
    tests/cross/run.sh "$build-aarch64"
  fi
}

combinations() {
  if [ -n "${WASTE_NATIVE_ONLY:-}" ] || ! command -v clang++ >/dev/null; then
    echo "skipped: other compilers and versions of dependencies (tests/combinations.sh)"
    echo "0 passed, 0 failed, 1 skipped"
  else
    tests/combinations.sh "$build-combinations"
  fi
}

step native native
step aarch64 aarch64
step combinations combinations
sum_steps
