#!/usr/bin/env bash
# Fuzzes with libFuzzer (clang), AddressSanitizer and UndefinedBehaviorSanitizer.
# Usage: tests/fuzz/run.sh [-s SECONDS] [-b BUILD_DIR] [TARGET...]     default: 60 s of every target
# What is found stays in BUILD_DIR/found, new corpus files in BUILD_DIR/corpus/TARGET.
set -eu
cd "$(dirname "$0")/../.."
seconds=60
build=build-fuzz
while getopts s:b: option; do
  case $option in
    s) seconds=$OPTARG ;;
    b) build=$OPTARG ;;
    *) exit 64 ;;
  esac
done
shift $((OPTIND - 1))
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for f in tests/fuzz/fuzz_*.cpp; do
    f=${f##*/fuzz_}
    targets+=("${f%.cpp}")
  done
fi
mkdir -p "$build/o" "$build/found"
flags="-std=c++20 -O1 -g -fno-omit-frame-pointer -ffp-contract=off -DWASTE_STD_THREADS -Iinclude -Itests"
flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=undefined"
sources="src/json.cpp src/json_fields.cpp src/manifest.cpp src/model_config.cpp src/error.cpp src/file.cpp
  src/codebook_file.cpp src/expert_bank.cpp src/trunk_file.cpp src/container.cpp src/memory_limit.cpp
  src/crc32.cpp src/parallel.cpp src/audit.cpp src/usage_log.cpp src/safetensors.cpp
  src/tokenizer_ranks.cpp tests/support/tiny_container.cpp tests/support/tiny_model.cpp"
objects=()
for source in $sources; do
  object="$build/o/$(basename "${source%.cpp}").o"
  if [ "$source" -nt "$object" ]; then
    # shellcheck disable=SC2086
    clang++ $flags -fsanitize=fuzzer-no-link -c "$source" -o "$object"
  fi
  objects+=("$object")
done
failed=0
for target in "${targets[@]}"; do
  # shellcheck disable=SC2086
  clang++ $flags -fsanitize=fuzzer "tests/fuzz/fuzz_$target.cpp" "${objects[@]}" -lz -pthread -o "$build/fuzz_$target"
  mkdir -p "$build/corpus/$target"
  echo "== $target for $seconds s"
  "$build/fuzz_$target" -max_total_time="$seconds" -timeout=10 -len_control=0 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -verbosity=1 -artifact_prefix="$build/found/$target-" "$build/corpus/$target" \
    "tests/fuzz/corpus/$target" >"$build/$target.log" 2>&1 || failed=1
  grep -E "ERROR|SUMMARY|broken|stat::number_of_executed_units|stat::peak_rss_mb" "$build/$target.log" || true
  grep -E "cov:" "$build/$target.log" | tail -1
done
exit $failed
