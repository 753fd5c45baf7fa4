#!/usr/bin/env bash
# From a bare machine to text: install, build, convert the bundled checkpoint three ways, verify, run and compare.
# Usage: examples/quickstart.sh [OUTPUT_DIR]      (default: quickstart-out; about 7 minutes on two cores)
set -eu
cd "$(dirname "$0")/.."
out=${1:-quickstart-out}
source_dir=examples/tiny_k3/checkpoint
prompt="And the LORD said unto "
tokens=60
step() { printf '\n== %s\n' "$*"; }

step "1/6 System packages"
tests/install_dependencies.sh build

step "2/6 Build"
if [ ! -d build/meson-private ]; then
  meson setup --wrap-mode=nodownload build . >build-setup.log 2>&1 || { cat build-setup.log; exit 1; }
  rm -f build-setup.log
fi
ninja -C build waste
waste=build/waste
mkdir -p "$out"

step "3/6 Convert $source_dir"
for format in vq3r vq4p vq2r; do
  rm -rf "$out/$format.waste"
  "$waste" convert "$source_dir" "$out/$format.waste" --format "$format"
done

step "4/6 Verify each container against its source"
for format in vq3r vq4p vq2r; do
  "$waste" verify "$out/$format.waste" --source "$source_dir" --json >"$out/$format.verify.json"
  echo "$format: every record, codebook and trunk tensor is as written, and within its format's error of the source"
done

step "5/6 Generate: \"$prompt\""
"$waste" run "$source_dir" "$prompt" -n "$tokens" --json >"$out/float.run.json"
for format in vq3r vq4p vq2r; do
  "$waste" run "$out/$format.waste" "$prompt" -n "$tokens" --json >"$out/$format.run.json"
done
python3 examples/quickstart_report.py text "$out"

step "6/6 Held-out text: bits per byte of $source_dir/heldout.txt"
"$waste" eval "$source_dir" "$source_dir/heldout.txt" --json >"$out/float.eval.json"
for format in vq3r vq4p vq2r; do
  "$waste" eval "$out/$format.waste" "$source_dir/heldout.txt" --json >"$out/$format.eval.json"
done

python3 examples/quickstart_report.py table "$out"
