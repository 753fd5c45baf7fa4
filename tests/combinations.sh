#!/usr/bin/env bash
# Builds the library with the compilers and versions of its dependencies that are promised, and runs the tests that
# depend on them; each combination is one build. The last line is "N passed, N failed[, N skipped]".
# Usage: tests/combinations.sh [OUT_DIR]
# g++ with this system's own xsimd and Catch2 and OpenMP is what tests/run.sh builds. What the machine lacks is named.
set -u
cd "$(dirname "$0")/.."
mkdir -p "${1:-build-combinations}"
out=$(cd "${1:-build-combinations}" && pwd)
tests/install_dependencies.sh combinations || { echo "0 passed, 1 failed"; exit 1; }
newer="$out/newer"
tests/support/fetch_newer.sh "$newer"
steps="$out/steps"
. tests/support/steps.sh

# What has code of a tier, threads or a compiler's own in it, one pass of a model, and every file of the library.
programs=(core half parallel crc32 json layout manifest file container io_contracts reference group vq_search
  vq_encode matvec layers gqa step_kernels matrix_kernels dense_kernels tiers expert_cache read_ahead container_model)

launcher=$(if command -v ccache >/dev/null; then echo "ccache "; fi)

versions() { PKG_CONFIG_PATH=$1 pkg-config --modversion "$2" 2>/dev/null || echo none; }

build_and_test() {  # COMPILER PKG_CONFIG_PATH THREADS BUILD_DIR TARGET...
  # Kernels are built with full optimization whatever this says. Without precompiled headers a file that lacks an
  # include does not compile.
  local options="--wrap-mode=nodownload -Db_pch=false -Doptimization=1 -Dthreads=$3 -Dbench=disabled -Dpython=disabled"
  if [ -d "$4/meson-private" ]; then options="$options --reconfigure"; fi
  # shellcheck disable=SC2086
  CXX="$launcher$1" PKG_CONFIG_PATH=$2 meson setup $options "$4" . &&
    ninja -C "$4" ${WASTE_JOBS:+-j$WASTE_JOBS} "${@:5}" "${programs[@]/#/tests/test_}" || return
  meson test -C "$4" --no-rebuild --print-errorlogs --num-processes "${WASTE_TEST_JOBS:-2}" "${programs[@]}"
  python3 tests/support/summarize.py "$4/meson-logs/testlog.json"
}

combination() {  # COMPILER own|new own|new openmp|std TARGET...
  local compiler=$1 path="" lacking="" name
  [ "$2" = own ] || path="$(dirname "$(find "$newer/xsimd14" -name xsimd.pc 2>/dev/null)")"
  [ "$3" = own ] || path="$path:$newer/catch3/usr/share/pkgconfig"
  command -v "$compiler" >/dev/null || lacking+="no $compiler; "
  [ "$2" = own ] || [ -e "$newer/xsimd14/version" ] || lacking+="no xsimd 14; "
  [ "$3" = own ] || [ -e "$newer/catch3/version" ] || lacking+="no Catch2 3; "
  name="$compiler-xsimd$(versions "$path" xsimd)-catch$(versions "$path" catch2)-$4"
  if [ -n "$lacking" ]; then
    step "$name" printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "${lacking%; }"
  else
    step "$name" build_and_test "$compiler" "$path" "$4" "$out/$name" "${@:5}"
  fi
}

# The command and the examples, which know neither xsimd nor Catch2, are built with the other compiler once.
combination clang++ own own openmp waste examples/example_{matvec,inspect,quantize_matrix,stream_experts,custom_forward}
combination clang++ new new std
combination g++ new new std
sum_steps
