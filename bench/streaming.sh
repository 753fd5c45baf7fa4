#!/usr/bin/env bash
# Streaming figures on synthetic Kimi-Linear containers, cache one quarter of the experts: what
# checking every record once costs, what reading ahead wins with the page cache bypassed, peak
# memory against the budget, and what waste plan predicts of a run against that run; with --traces
# also the hit rates of every policy on the routing traces (*.jsonl) of a folder. Builds what it
# needs; takes about 1 GB of disk under TMPDIR, which is the disk that is measured.
# Usage: bench/streaming.sh [--build DIR] [--layers N] [--experts M] [--tokens N] [--rounds N]
#        [--threads N] [--traces DIR]
set -eu
cd "$(dirname "$0")/.."
build=build layers=8 experts=32 tokens=48 rounds=3 threads=1 traces=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --layers) layers=$2 ;;
    --experts) experts=$2 ;;
    --tokens) tokens=$2 ;;
    --rounds) rounds=$2 ;;
    --threads) threads=$2 ;;
    --traces) traces=$2 ;;
    *) sed -n '2,8s/^# //p' "$0" >&2; exit 64 ;;
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
bank=$(ls "$dir"/kl.waste/experts-L*.bin | head -n 1)
# What one reader gets of this disk, in GB/s: records are read whole, past the page cache.
disk=$( (LC_ALL=C dd if="$bank" of=/dev/null bs=4M iflag=direct 2>&1 || LC_ALL=C dd if="$bank" of=/dev/null bs=4M 2>&1) |
  awk '/copied/ { for (i = 2; i <= NF; ++i) if ($i == "s,") t = $(i - 1); printf "%.4f", $1 / t / 1e9 }')
echo "synthetic Kimi-Linear, $layers layers of $experts experts, VQ3R, cache 1/4, $threads threads, $(nproc) cores,"
echo "disk of $disk GB/s with one reader past the page cache: reading ahead cannot be faster than its bytes arrive"
echo
echo "== crc32 once against off, page cache warm"
"$waste" bench $common --direct off --compare crc --repeat "$rounds"
echo
echo "== read-ahead and look-ahead against synchronous reads, page cache bypassed"
"$waste" bench $common --direct on --compare read-ahead --repeat "$rounds"
echo
echo "== io_uring against pread, page cache bypassed"
"$waste" bench $common --direct on --compare uring --repeat "$rounds"
echo
echo "== peak memory of one run"
"$waste" bench $common --direct on

echo
echo "== waste plan --disk --trace against the run whose routing it was told"
warmup=8
"$waste" bench "$dir/kl.waste" --share 1 --threads "$threads" --tokens "$tokens" --warmup 32 --precision split8 \
  --direct off --quiet --json >"$dir/memory.json"
"$waste" bench $common --warmup "$warmup" --direct on --record-trace "$dir/trace.jsonl" --json >"$dir/run.json"
python3 - "$waste" "$dir" "$disk" "$threads" "$tokens" "$warmup" <<'END'
import json, subprocess, sys
waste, directory, disk, threads, tokens, warmup = sys.argv[1:]
run = json.load(open(directory + "/run.json"))
arm = run["arms"][0]
memory = json.load(open(directory + "/memory.json"))["arms"][0]
compute = 1e3 * (memory["seconds"] / int(tokens) - memory["stall_seconds_per_token"])
plan = json.loads(subprocess.run(
    [waste, "plan", directory + "/kl.waste", "--context", str(int(tokens) + int(warmup)), "--threads", threads,
     "--budget", str(run["budget_bytes"]), "--disk", disk, "--compute", str(compute), "--skip", warmup,
     "--trace", directory + "/trace.jsonl", "--json"], stdout=subprocess.PIPE).stdout).get("prediction")
if plan is None:
    sys.exit("the cache is below the floor of waste plan: nothing is predicted")
print(f"told: a disk of {disk} GB/s (one reader), {compute:.1f} ms of computing a token, {arm['cache_records']} records")
print(f"{'':16} {'predicted':>10} {'measured':>10} {'ratio':>8}")
for name, told, was in (("hit rate, %", 100 * plan["hit_rate"], 100 * arm["hit_rate"]),
                        ("GB a token", plan["read_bytes_per_token"] / 1e9, arm["gb_per_token"]),
                        ("tokens a second", plan["tokens_per_second"], arm["tokens_per_second"])):
    print(f"{name:16} {told:10.4f} {was:10.4f} {was / told if told else float('nan'):8.3f}")
END
for trace in ${traces:+"$traces"/*.jsonl}; do
  echo
  echo "== hit rates, $(basename "$trace"), cache 0.5, 1 and 2 working sets"
  "$waste" trace "$trace"
done
