#!/usr/bin/env bash
# Builds the test programs for AArch64 and runs them under qemu, those of tests/cross/long.txt where WASTE_EMULATE_ALL is
# set, and but for the cases tagged [native], which are too long there or do what qemu cannot; what is left out is named.
# The last line is "N passed, N failed, N skipped".
# Usage: tests/cross/run.sh [BUILD_DIR]     Needs what tests/install_dependencies.sh cross installs.
set -u
cd "$(dirname "$0")/../.."
build=${1:-build-aarch64}
tests/install_dependencies.sh cross || exit 1
# Linked statically: a thread of a dynamically linked program does not end in qemu 7.2's user mode. Kernels are built
# with full optimization whatever this says.
options="--wrap-mode=nodownload --cross-file tests/cross/aarch64-linux-gnu.ini -Dcpp_link_args=-static -Dprefer_static=true
  -Doptimization=1 -Dio_uring=disabled -Dbench=disabled -Dpython=disabled"
if [ -d "$build/meson-private" ]; then options="$options --reconfigure"; fi
# shellcheck disable=SC2086
meson setup $options "$build" . && ninja -C "$build" test_programs || exit 1
left_out=/dev/null
if [ -z "${WASTE_EMULATE_ALL:-}" ]; then left_out=tests/cross/long.txt; fi
mapfile -t programs < <(meson test -C "$build" --no-rebuild --list --suite programs | sed -n 's#.* / ##p')
mapfile -t run < <(printf '%s\n' "${programs[@]}" | grep -vxF -f "$left_out")
export WASTE_TEST_EMULATOR=qemu-aarch64  # for programs that start themselves
meson test -C "$build" --no-rebuild --print-errorlogs --num-processes "${WASTE_TEST_JOBS:-2}" --timeout-multiplier 4 \
  --test-args '~[native]' "${run[@]}"
{
  printf '%s\n' "${programs[@]}" | grep -xF -f "$left_out"
  sed -n 's/^TEST_CASE("\(.*\)", ".*\[native\].*/\1/p' tests/*/*.cpp
} | sed 's#$#: not run in emulation#' >"$build/left_out.txt"
exec python3 tests/support/summarize.py "$build/meson-logs/testlog.json" "$build/left_out.txt"
