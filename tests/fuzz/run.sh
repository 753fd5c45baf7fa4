#!/usr/bin/env bash
# Fuzzes with libFuzzer (clang), AddressSanitizer and UndefinedBehaviorSanitizer.
# Usage: tests/fuzz/run.sh [-s SECONDS] [-l MAX_BYTES] [-b BUILD_DIR] [TARGET...]
#        default: 60 s of every target, inputs of up to 65536 bytes (-l 512 runs ten times as many of text)
# What is found stays in BUILD_DIR/found, new corpus files in BUILD_DIR/corpus/TARGET, and each run adds
# a line to BUILD_DIR/runs.tsv, which sum_runs.py adds up.
set -eu
cd "$(dirname "$0")/../.."
seconds=60
max_bytes=65536
build=build-fuzz
while getopts s:l:b: option; do
  case $option in
    s) seconds=$OPTARG ;;
    l) max_bytes=$OPTARG ;;
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
flags="$flags -fsanitize=address,undefined -fno-sanitize-recover=undefined $(pkg-config --cflags eigen3)"
# What the targets use of the library.
sources="src/audit.cpp src/calibration.cpp src/chat.cpp src/checkpoint.cpp src/checkpoint_account.cpp
  src/checksums.cpp src/codebook_file.cpp src/container.cpp src/crc32.cpp src/dispatch.cpp src/error.cpp
  src/expert_bank.cpp src/file.cpp src/input_moments.cpp src/json.cpp src/json_fields.cpp src/json_value.cpp src/manifest.cpp
  src/memory_limit.cpp src/model_config.cpp src/model_families.cpp src/parallel.cpp src/routing_trace.cpp
  src/safetensors.cpp src/session.cpp src/session_file.cpp src/substitutes.cpp src/tokenizer*.cpp src/trunk_file.cpp src/usage_log.cpp tests/support/tiny_*.cpp"
# The kernels of this CPU's tiers, without UndefinedBehaviorSanitizer, which makes them compile many times longer.
tiers="baseline"
cpu_has() { grep -qw "$1" /proc/cpuinfo; }
if [ "$(uname -m)" = x86_64 ]; then
  if cpu_has avx2; then tiers="$tiers avx2"; fi
  if cpu_has avx512bw; then tiers="$tiers avx512bw"; fi
  if cpu_has avx512_vbmi2; then tiers="$tiers icelake"; fi
fi
flags_of() {
  case $1 in
    avx2) echo "-march=x86-64-v3" ;;
    avx512bw) echo "-march=x86-64-v4 -mprefer-vector-width=512" ;;
    icelake) echo "-march=icelake-server -mprefer-vector-width=512" ;;
  esac
}
compile() {  # SOURCE OBJECT FLAGS...
  local source=$1 object=$2
  shift 2
  if [ ! -e "$object" ] || [ "$source" -nt "$object" ] ||
    [ -n "$(find include src tests/support -name '*.hpp' -newer "$object" -print -quit)" ]; then
    # shellcheck disable=SC2086
    $clang $flags -fsanitize=fuzzer-no-link "$@" -c "$source" -o "$object"
  fi
}
clang="clang++"
if command -v ccache >/dev/null 2>&1; then clang="ccache clang++"; fi
has_tiers=""
for tier in $tiers; do has_tiers="$has_tiers -DWASTE_HAS_TIER_$tier"; done
objects=()
for source in $sources; do
  object="$build/o/$(basename "${source%.cpp}").o"
  # shellcheck disable=SC2086
  compile "$source" "$object" $has_tiers
  objects+=("$object")
done
case " ${targets[*]} " in
  *" tiers "*)
    for tier in $tiers; do
      for source in src/arch/*.cpp; do
        object="$build/o/$(basename "${source%.cpp}").$tier.o"
        # shellcheck disable=SC2046
        compile "$source" "$object" $(flags_of "$tier") "-DWASTE_TIER=$tier" -fvisibility=hidden -fno-sanitize=undefined
        objects+=("$object")
      done
    done
    ;;
esac
if [ ! -e "$build/libwaste.a" ] || [ -n "$(find "${objects[@]}" -newer "$build/libwaste.a" -print -quit)" ]; then
  rm -f "$build/libwaste.a"
  ar rcs "$build/libwaste.a" "${objects[@]}"
fi
failed=0
for target in "${targets[@]}"; do
  if [ ! -e "$build/fuzz_$target" ] || [ -n "$(find "$build/libwaste.a" tests/fuzz -newer "$build/fuzz_$target" \
    \( -name '*.a' -o -name '*.hpp' -o -name "fuzz_$target.cpp" \) -print -quit)" ]; then
    # shellcheck disable=SC2086
    clang++ $flags -fsanitize=fuzzer "tests/fuzz/fuzz_$target.cpp" "$build/libwaste.a" -lz -lpcre2-8 -pthread \
      -o "$build/fuzz_$target"
  fi
  mkdir -p "$build/corpus/$target"
  echo "== $target for $seconds s"
  result=ok
  TIMEFORMAT='%U %S'
  { time "$build/fuzz_$target" -max_total_time="$seconds" -timeout=60 -len_control=0 -rss_limit_mb=2048 \
    -max_len="$max_bytes" -print_final_stats=1 -verbosity=1 -artifact_prefix="$build/found/$target-" \
    "$build/corpus/$target" "tests/fuzz/corpus/$target" >"$build/$target.log" 2>&1; } 2>"$build/$target.time" || result=found
  [ $result = ok ] || failed=1
  grep -E "ERROR|SUMMARY|broken|stat::number_of_executed_units|stat::peak_rss_mb" "$build/$target.log" || true
  grep -E "cov:" "$build/$target.log" | tail -1
  # target, UTC, CPU seconds, executions, edges covered, peak MB, outcome
  printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$target" "$(date -u +%Y-%m-%dT%H:%MZ)" \
    "$(tail -1 "$build/$target.time" | awk '{ printf "%.0f", $1 + $2 }')" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")" \
    "$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$build/$target.log" | tail -1)" \
    "$(sed -n 's/^stat::peak_rss_mb: *//p' "$build/$target.log")" "$result" >>"$build/runs.tsv"
done
exit $failed
