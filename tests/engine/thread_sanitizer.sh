#!/usr/bin/env bash
# Builds the random interleavings of the expert cache with ThreadSanitizer and runs them; exit code 0
# when there is neither a race nor a failure. OpenMP's barriers are invisible to the sanitizer, hence
# -Dthreads=std.
# Usage: tests/engine/thread_sanitizer.sh [BUILD_DIR]   (default: build-tsan)
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build-tsan}
if [ ! -d "$build/meson-private" ]; then
  meson setup --wrap-mode=nodownload "$build" . -Dthreads=std -Db_sanitize=thread -Db_lundef=false \
    -Dbuildtype=debugoptimized -Dcli=disabled -Dbench=disabled -Dexamples=false >&2
fi
ninja -C "$build" tests/test_interleavings >&2
TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" WASTE_TEST_DATA="$PWD/tests/data" \
  WASTE_SOURCE_ROOT="$PWD" "$build/tests/test_interleavings"
