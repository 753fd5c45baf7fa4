#!/usr/bin/env bash
# One conversion on many machines of a Slurm cluster: an array of jobs, each of which makes a slice (task 0 the trunk, the others the
# experts of some layers), and a job that joins them when all are done. The container is byte for byte that of one machine.
# SOURCE and OUT must be paths that every node sees; slices are kept in OUT.parts until the container is there.
# A task that was killed or requeued continues where it stopped.
#
# Usage: examples/slurm/submit.sh [--waste PROGRAM] [--sbatch "OPTIONS"] SOURCE OUT SLICES [OPTIONS OF waste convert...]
#   --waste    the program, on every node (default: waste, from PATH)
#   --sbatch   options for every job, such as "--partition=big --time=12:00:00 --cpus-per-task=64"
# Example: examples/slurm/submit.sh /data/k3 /data/k3.waste 23 --format vq4p --effort best
set -eu
program=waste
more=()
while [ $# -gt 0 ]; do
  case $1 in
    --waste) program=$2; shift 2 ;;
    --sbatch) read -r -a more <<<"$2"; shift 2 ;;
    *) break ;;
  esac
done
if [ $# -lt 3 ]; then
  sed -n '2,10p' "$0" >&2
  exit 64
fi
source_dir=$(realpath "$1") out=$(realpath -m "$2") slices=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)

read -r first last < <(python3 - "$source_dir/config.json" <<'PY'
import json, sys
config = json.load(open(sys.argv[1], encoding="utf-8"))
config = config.get("text_config", config)
print(config.get("first_k_dense_replace", 0), config["num_hidden_layers"] - 1)
PY
)
layers=$((last - first + 1))
[ "$slices" -le "$layers" ] || slices=$layers
mkdir -p "$out.parts/log"
job=$(sbatch --parsable "${more[@]+"${more[@]}"}" --array="0-$slices" --output="$out.parts/log/%A_%a.log" \
  "$here/slice.sbatch" "$program" "$source_dir" "$out" "$first" "$last" "$slices" "$@")
join=$(sbatch --parsable "${more[@]+"${more[@]}"}" --dependency="afterok:$job" --output="$out.parts/log/%A_merge.log" \
  "$here/merge.sbatch" "$program" "$out")
echo "slices: job $job, tasks 0 to $slices; merge: job $join; logs in $out.parts/log"
