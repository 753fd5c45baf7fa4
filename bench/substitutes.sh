#!/usr/bin/env bash
# What substitutes cost and win on examples/tiny_k3 with an artificially slow disk: bits per byte of heldout.txt against the
# share of experts that were substituted, tokens a second against how long a read may take, and the same memory spent on a
# larger expert cache instead. Prints three tables.
# Usage: bench/substitutes.sh [--build DIR] [--source DIR] [--delay MS] [--tokens N] [--format vq3r|vq2r|vq4p] [--effort E]
#   --delay   how much longer each read of an expert takes
#   --tokens  of heldout.txt for each figure of quality
set -eu
cd "$(dirname "$0")/.."
build=build source_dir=examples/tiny_k3/checkpoint delay=8 tokens=4000 format=vq3r effort=default
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --source) source_dir=$2 ;;
    --delay) delay=$2 ;;
    --tokens) tokens=$2 ;;
    --format) format=$2 ;;
    --effort) effort=$2 ;;
    *) sed -n '2,7s/^# //p' "$0" >&2; exit 64 ;;
  esac
  shift 2
done
waste=$build/waste
if [ ! -x "$waste" ]; then
  [ -d "$build/meson-private" ] || meson setup --wrap-mode=nodownload "$build" . >&2
  ninja -C "$build" waste >&2
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$waste" convert "$source_dir" "$dir/tiny.waste" --format "$format" --effort "$effort" --substitutes -q
python3 - "$waste" "$dir/tiny.waste" "$source_dir/heldout.txt" "$delay" "$tokens" <<'END'
import json, subprocess, sys
waste, container, text, delay, tokens = sys.argv[1:]


def run(*arguments):
    return json.loads(subprocess.run([waste, *map(str, arguments)], check=True, capture_output=True, text=True).stdout)


plan = run("plan", container, "--substitutes", "--context", 48, "--json")
record, substitutes = plan["record_bytes"], plan["substitute_bytes"]
records = (plan["everything_bytes"] - run("plan", container, "--context", 48, "--json")["floor_bytes"] - substitutes
           ) // record + plan["floor_records"]


def quality(cache, *more):
    out = run("eval", container, text, "--max-tokens", tokens, "--threads", 1, "--cache", int(cache * record), "--json", *more)
    return out["bits_per_byte"], out["cache"]["substituted_share"]


def speed(cache, *more):
    arm = run("bench", container, "--threads", 1, "-n", 32, "--cache", int(cache * record), "--disk-delay", delay, "--json",
              "-q", *more)["arms"][0]
    asked = arm["misses_per_token"] + arm["substituted_per_token"]
    asked /= max(1 - arm["hit_rate"], 1e-9)
    return arm["tokens_per_second"], arm["hit_rate"], arm["substituted_per_token"] / max(asked, 1e-9)


print(f"\n{records} experts of {record} bytes; substitutes take {substitutes} bytes, as much as "
      f"{substitutes / record:.0f} experts; each read takes {delay} ms longer\n")
print("| experts cached | substituted at once where missing | bits per byte | lost |")
print("|---|---|---|---|")
exact, _ = quality(records, "--window", 64)
print(f"| all | none | {exact:.4f} | |")
for eighths in (7, 6, 5, 4, 3, 2, 1):
    bits, share = quality(records * eighths // 8, "--window", 64, "--disk-delay", 2, "--substitute-after", 0)
    print(f"| {eighths}/8 | {100 * share:.1f} % | {bits:.4f} | {100 * (bits / exact - 1):+.2f} % |", flush=True)
print("\n| a quarter cached, substituted after | tokens/s | hit rate | substituted |")
print("|---|---|---|---|")
for after in (None, 64, 32, 16, 8, 4, 2, 1, 0):
    more = [] if after is None else ["--substitute-after", after]
    rate, hits, share = speed(records // 4, *more)
    print(f"| {'never' if after is None else f'{after} ms'} | {rate:.1f} | {100 * hits:.1f} % | {100 * share:.1f} % |", flush=True)
print("\n| the same memory: experts cached | substitutes | tokens/s | hit rate | substituted |")
print("|---|---|---|---|---|")
for eighths in (1, 2, 3):
    cached = records * eighths // 8
    for extra, more, name in ((0, ["--substitute-after", 0], "at once"), (substitutes / record, [], "none")):
        rate, hits, share = speed(cached + extra, *more)
        print(f"| {cached + extra:.0f} | {name} | {rate:.1f} | {100 * hits:.1f} % | {100 * share:.1f} % |", flush=True)
END
