#!/usr/bin/env bash
# Builds the suites of tests/cross/suites.txt for AArch64 and runs them under qemu; the last line is "N passed, N failed".
# Usage: tests/cross/run.sh [BUILD_DIR]     Needs what tests/install_dependencies.sh cross installs.
set -u
cd "$(dirname "$0")/../.."
build=${1:-build-aarch64}
tests/install_dependencies.sh cross || exit 1
options="--wrap-mode=nodownload"
if [ -d "$build/meson-private" ]; then options="$options --reconfigure"; fi
mapfile -t suites < <(grep -v '^#' tests/cross/suites.txt)
# shellcheck disable=SC2086
meson setup $options --cross-file tests/cross/aarch64-linux-gnu.ini -Dbench=disabled -Dpython=disabled "$build" . &&
  ninja -C "$build" "${suites[@]/#/tests/test_}" || { echo "0 passed, 1 failed"; exit 1; }
# With more threads libgomp did not end in qemu's user mode.
export OMP_THREAD_LIMIT=1
meson test -C "$build" --no-rebuild --print-errorlogs --num-processes "${WASTE_TEST_JOBS:-2}" --timeout-multiplier 4 "${suites[@]}"
exec python3 tests/support/summarize.py "$build/meson-logs/testlog.json"
