#!/usr/bin/env bash
# Decoding a synthetic Kimi-Linear container that lies in memory whole: the library's kernels, and
# the same program with scalar trunk products and the scalar gather. Builds what it needs; takes
# about 1.5 GB of disk under TMPDIR and as much memory.
# Usage: bench/decode.sh [--build DIR] [--layers N] [--experts M] [--tokens N] [--threads N]
#        [--format vq3r|vq4p|vq2r]
set -eu
cd "$(dirname "$0")/.."
build=build layers=8 experts=64 tokens=16 threads=1 format=vq3r
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --layers) layers=$2 ;;
    --experts) experts=$2 ;;
    --tokens) tokens=$2 ;;
    --threads) threads=$2 ;;
    --format) format=$2 ;;
    *) sed -n '2,7s/^# //p' "$0" >&2; exit 64 ;;
  esac
  shift 2
done
if [ ! -d "$build/meson-private" ]; then
  meson setup --wrap-mode=nodownload "$build" . >&2
fi
ninja -C "$build" waste bench/decode >&2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$build/waste" synth "$dir/kl.waste" --layers "$layers" --experts "$experts" --format "$format" --vocab 4096 --quiet
"$build/bench/decode" "$dir/kl.waste" "$tokens" "$threads"
