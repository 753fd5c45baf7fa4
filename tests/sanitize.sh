#!/usr/bin/env bash
# Runs the tests of everything that reads files under AddressSanitizer and UndefinedBehaviorSanitizer, those of
# what threads share under ThreadSanitizer, and one pass of a model under valgrind; the last line is
# "N passed, N failed".
# Usage: tests/sanitize.sh [BUILD_DIR [OUT_DIR]]     BUILD_DIR: what tests/run.sh built (default: build)
# Left out: kernels, encoders, layers and whole models under the compiler's sanitizers, which take half an hour to
# compile; tests/fuzz/run.sh tiers fuzzes the kernels with AddressSanitizer.
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
out=${2:-build-sanitize}
tests/install_dependencies.sh sanitize || { echo "0 passed, 1 failed"; exit 1; }
. tests/support/instrument.sh
export WASTE_TEST_DATA="$PWD/tests/data" WASTE_SOURCE_ROOT="$PWD"
mkdir -p "$out/logs"
rm -f "$out"/logs/*

sources() { printf 'src/%s.cpp ' "$@"; }
files="audit checksums codebook_file container container_writer crc32 error expert_bank file json json_fields manifest
  memory_limit model_config model_families parallel safetensors substitutes trunk_file usage_log"
texts="chat tokenizer tokenizer_files tokenizer_pattern tokenizer_ranks"
readers="calibration checkpoint checkpoint_account routing_trace session side_files verify verify_compare"
cache="cache_policy expert_cache expert_cache_state fitted_score usage"
fuzzers=$(sed -n "s/^  '\([a-z]*\)' : .*/fuzz_\1/p" tests/fuzz/meson.build)

run() {  # NAME COMMAND...
  local name=$1
  shift
  echo "== $name"
  "$@" 2>&1 | tee "$out/logs/$name.log"
  echo "${PIPESTATUS[0]}" >"$out/logs/$name.rc"
}

address() {
  local programs="json layout manifest model_config usage_log crc32 safetensors container damage file container_writer
    checksums checkpoint rank_table tokenizer_files chat routing_trace usage expert_cache faults damage_inputs $fuzzers"
  # shellcheck disable=SC2046,SC2086
  instrument "$build" "$out/address" "-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all" \
    "$(sources $files $texts $readers $cache)" $programs &&
    python3 tests/support/run_programs.py "$out/address" $programs
}

threads() {  # OpenMP's barriers are invisible to the sanitizer, hence WASTE_STD_THREADS
  local programs="parallel expert_cache read_ahead interleavings"
  # shellcheck disable=SC2046,SC2086
  instrument "$build" "$out/thread" "-O1 -g1 -fsanitize=thread -DWASTE_STD_THREADS" "$(sources $files $cache)" \
    $programs && TSAN_OPTIONS="halt_on_error=1" python3 tests/support/run_programs.py "$out/thread" $programs
}

valgrind_pass() {
  local container="$out/tiny.waste"
  [ -e "$container/manifest.json" ] ||
    "$build/waste" convert examples/tiny_k3/checkpoint "$container" --format vq4p --quiet || return 1
  OMP_NUM_THREADS=1 valgrind -q --error-exitcode=99 "$build/waste" logits "$container" --threads 1 --tokens 65,66,67
}

run address address
run threads threads
run valgrind_pass valgrind_pass
exec python3 tests/support/total.py "$out/logs"
