#!/usr/bin/env bash
# Builds and runs every test; the last line is "N passed, N failed[, N skipped]".
# Usage: tests/run.sh [BUILD_DIR]     Environment: WASTE_SHARED, folder of external check data.
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
tests/install_dependencies.sh test || exit 1
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
meson setup $options "$build" . || { echo "0 passed, 1 failed"; exit 1; }
echo "Building (about 6 minutes on two cores the first time)"
ninja -C "$build" tests || { echo "0 passed, 1 failed"; exit 1; }
export WASTE_BINARY="$PWD/$build/waste"
meson test -C "$build" --no-rebuild --print-errorlogs --num-processes "${WASTE_TEST_JOBS:-2}"
exec python3 tests/support/summarize.py "$build/meson-logs/testlog.json"
