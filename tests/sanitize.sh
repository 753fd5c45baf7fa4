#!/usr/bin/env bash
# Runs the tests under AddressSanitizer (leaks included) and UndefinedBehaviorSanitizer, those of what threads share
# under ThreadSanitizer, and one pass of a model under valgrind; the last line is "N passed, N failed".
# Usage: tests/sanitize.sh [BUILD_DIR [OUT_DIR]]     BUILD_DIR: what tests/run.sh built (default: build)
# Compiled without optimization, which takes a third of the time; tests/README.md says what is left out, and why.
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
out=${2:-build-sanitize}
tests/install_dependencies.sh sanitize || { echo "0 passed, 1 failed"; exit 1; }
. tests/support/instrument.sh
export WASTE_TEST_DATA="$PWD/tests/data" WASTE_SOURCE_ROOT="$PWD"
mkdir -p "$out/logs"
rm -f "$out"/logs/*

# Encoders and kernels need optimization to end in time: the address step takes theirs from BUILD_DIR, and leaves out the
# tests of nothing else and those that convert again and again.
encoders="codebook_fit group group_calibrated search_books vq_calibrated vq_encode vq_train"
left_out="tiers step_kernels matrix_kernels dense_kernels group vq_encode vq_search vq_calibrated group_calibrated reference
  calibrated_conversion calibrate interop resume merge striped_conversion families convert_independent"

all_but() {  # "NAME..." NAME...: those of the second list that are not in the first
  local without=" $(echo $1) " name
  shift
  for name in "$@"; do [[ $without == *" $name "* ]] || printf '%s ' "$name"; done
}

sources_of() { printf 'src/%s.cpp ' "$@"; }

tests_named() { sed 's/#.*//' tests/*/meson.build | grep -o "'[a-z_0-9]*' : files(" | cut -d "'" -f 2; }

fuzzers() { sed -n "s/^  '\([a-z]*\)' : .*/fuzz_\1/p" tests/fuzz/meson.build; }

run() {  # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" 2>&1 | tee "$out/logs/$name.log"
  echo "${PIPESTATUS[0]}" >"$out/logs/$name.rc"
  echo "== $name took $((SECONDS - start)) s"
}

address() {
  local programs sources test_flags="-fno-sanitize=undefined"
  # shellcheck disable=SC2046
  programs="$(all_but "$left_out" $(tests_named)) damage_inputs $(all_but fuzz_tiers $(fuzzers))"
  # shellcheck disable=SC2046
  sources=$(sources_of $(all_but "dispatch $encoders" $(basename -s .cpp src/*.cpp)))
  # shellcheck disable=SC2086
  instrument "$build" "$out/address" \
    "-O0 -g1 -DWASTE_STD_THREADS -fsanitize=address,undefined -fno-sanitize-recover=all" "$sources" $programs &&
    ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:quarantine_size_mb=8" \
      python3 tests/support/run_programs.py "$out/address" $programs
}

threads() {  # OpenMP's barriers are invisible to the sanitizer, hence WASTE_STD_THREADS
  local programs="parallel expert_cache read_ahead interleavings late_experts faults experts_by_rows" sources
  # shellcheck disable=SC2046
  sources=$(sources_of cache_policy codebook_file container error expert_bank file fitted_score memory_limit parallel \
    substitutes trunk_file usage usage_log $(find src -name 'expert_cache*.cpp' -o -name 'read_*.cpp' | xargs basename -s .cpp))
  # shellcheck disable=SC2086
  instrument "$build" "$out/thread" "-O0 -g1 -DWASTE_STD_THREADS -fsanitize=thread" "$sources" $programs &&
    TSAN_OPTIONS="halt_on_error=1" WASTE_INTERLEAVINGS=10000 python3 tests/support/run_programs.py "$out/thread" $programs
}

valgrind_pass() {
  local container="$out/tiny.waste"
  rm -rf "$container"
  "$build/waste" convert examples/tiny_k3/checkpoint "$container" --format vq4p --effort fast --quiet &&
    OMP_NUM_THREADS=1 timeout 300 valgrind -q --leak-check=full --errors-for-leak-kinds=definite --error-exitcode=99 \
      "$build/waste" logits "$container" --threads 1 --tokens 65,66,67
}

run address address
run threads threads
run valgrind_pass valgrind_pass
exec python3 tests/support/total.py "$out/logs"
