#!/usr/bin/env bash
# Streaming figures on synthetic Kimi-Linear containers, cache one quarter of the experts: what
# checking every record once costs, what reading ahead wins with the page cache bypassed, and peak
# memory against the budget. Builds what it needs; takes about 1 GB of disk under TMPDIR.
# Usage: bench/streaming.sh [--build DIR] [--layers N] [--experts M] [--tokens N] [--rounds N]
#        [--threads N]
set -eu
cd "$(dirname "$0")/.."
build=build layers=8 experts=32 tokens=48 rounds=3 threads=1
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --layers) layers=$2 ;;
    --experts) experts=$2 ;;
    --tokens) tokens=$2 ;;
    --rounds) rounds=$2 ;;
    --threads) threads=$2 ;;
    *) sed -n '2,6s/^# //p' "$0" >&2; exit 64 ;;
  esac
  shift 2
done
if [ ! -d "$build/meson-private" ]; then
  meson setup --wrap-mode=nodownload "$build" . >&2
fi
ninja -C "$build" waste >&2
waste=$build/waste
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$waste" synth "$dir/kl.waste" --layers "$layers" --experts "$experts" --vocab 4096 --quiet
common="$dir/kl.waste --share 0.25 --threads $threads --tokens $tokens --precision split8 --quiet"
echo "synthetic Kimi-Linear, $layers layers of $experts experts, VQ3R, cache 1/4, $threads threads, $(nproc) cores"
echo
echo "== crc32 once against off, page cache warm"
"$waste" bench $common --direct off --compare crc --repeat "$rounds"
echo
echo "== read-ahead and look-ahead against synchronous reads, page cache bypassed"
"$waste" bench $common --direct on --compare read-ahead --repeat "$rounds"
echo
echo "== peak memory of one run"
"$waste" bench $common --direct on
