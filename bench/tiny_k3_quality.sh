#!/usr/bin/env bash
# What each way of encoding costs examples/tiny_k3: VQ2R, VQ3R, VQ4P x fast, default, best, best with a calibration x a trunk of
# 4 and 8 bits, each with relative weight error and bits per byte of heldout.txt. Calibrates on calibration.txt.
# Prints one Markdown table; leaves table.md, quality.svg and a JSON file a cell in OUT. Cells already there are kept.
# Usage: bench/tiny_k3_quality.sh [--build DIR] [--out DIR] [--source DIR] [--cells REGEX]
#   --cells   only cells whose name (vq2r-fast-8, vq3r-calibrated-4, ...) matches
set -eu
cd "$(dirname "$0")/.."
build=build
out=bench-results/tiny_k3
source_dir=examples/tiny_k3/checkpoint
cells=.
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --source) source_dir=$2; shift 2 ;;
    --cells) cells=$2; shift 2 ;;
    *) sed -n '2,7p' "$0" >&2; exit 64 ;;
  esac
done
waste=$build/waste
if [ ! -x "$waste" ]; then
  [ -d "$build/meson-private" ] || meson setup --wrap-mode=nodownload "$build" . >&2
  ninja -C "$build" waste >&2
fi
mkdir -p "$out"
say() { echo "$(date +%H:%M:%S) $*" >&2; }

# Results of another checkpoint do not belong in the same table.
print=$(cat "$source_dir"/config.json "$source_dir"/*.safetensors "$source_dir"/heldout.txt "$source_dir"/calibration.txt | cksum)
if [ -e "$out/checkpoint.cksum" ] && [ "$(cat "$out/checkpoint.cksum")" != "$print" ]; then
  echo "$out holds results of another checkpoint: remove it or name another --out" >&2
  exit 1
fi
echo "$print" >"$out/checkpoint.cksum"

measure() { # MODEL NAME: bits per byte into NAME.eval.json
  "$waste" eval "$1" "$source_dir/heldout.txt" --json >"$out/$2.eval.json.part" 2>/dev/null
  mv "$out/$2.eval.json.part" "$out/$2.eval.json"
}
if [ ! -e "$out/float.eval.json" ]; then
  say "float source"
  measure "$source_dir" float
fi
for format in vq2r vq3r vq4p; do
  for effort in fast default best calibrated; do
    for bits in 4 8; do
      name=$format-$effort-$bits
      if [ -e "$out/$name.eval.json" ] || ! [[ $name =~ $cells ]]; then continue; fi
      say "$name"
      options=(--format "$format" --trunk-bits "$bits" --effort "$effort")
      if [ "$effort" = calibrated ]; then
        if [ ! -e "$out/tiny.wcal" ]; then
          "$waste" calibrate "$source_dir" "$source_dir/calibration.txt" --out "$out/tiny.wcal" -q >&2
        fi
        options=(--format "$format" --trunk-bits "$bits" --effort best --calibration "$out/tiny.wcal")
      fi
      rm -rf "$out/container"
      "$waste" convert "$source_dir" "$out/container" "${options[@]}" --json -q >"$out/$name.convert.json"
      # Exit code 2 is a weight error past its limit, which coding for another metric may leave.
      "$waste" verify "$out/container" --source "$source_dir" --json -q >"$out/$name.verify.json" || [ $? -eq 2 ]
      measure "$out/container" "$name"
      rm -rf "$out/container"
    done
  done
done
python3 bench/tiny_k3_quality.py "$out"
