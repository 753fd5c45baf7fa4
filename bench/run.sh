#!/usr/bin/env bash
# `waste bench kernels` from a source tree: one table, and in OUT (default bench-results)
# kernels.jsonl, one object a line, and roofline.svg. Builds what it needs.
# Usage: bench/run.sh [--build DIR] [--out DIR] [--filter REGEX] [--min-time S] [--repetitions N]
set -eu
cd "$(dirname "$0")/.."
build=build
out=bench-results
args=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) args+=("$1"); shift ;;
  esac
done
if [ ! -d "$build/meson-private" ]; then
  meson setup --wrap-mode=nodownload "$build" . >&2
fi
ninja -C "$build" waste >&2
mkdir -p "$out"
"$build/waste" bench kernels --json "$out/kernels.jsonl" --svg "$out/roofline.svg" "${args[@]+"${args[@]}"}"
echo "wrote $out/kernels.jsonl and $out/roofline.svg" >&2
