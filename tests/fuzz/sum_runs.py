#!/usr/bin/env python3
"""Sums BUILD_DIR/runs.tsv files of tests/fuzz/run.sh as the table of the README.

Usage: sum_runs.py RUNS_TSV...
"""
import sys


def main(paths):
    if not paths:
        print(__doc__, file=sys.stderr)
        return 64
    sums = {}
    for path in paths:
        with open(path, encoding="ascii") as lines:
            for line in lines:
                target, _, seconds, runs, edges, peak, outcome = line.rstrip("\n").split("\t")
                s = sums.setdefault(target, [0, 0, 0, 0, 0])
                s[0] += int(seconds or 0)
                s[1] += int(runs or 0)
                s[2] = max(s[2], int(edges or 0))
                s[3] = max(s[3], int(peak or 0))
                s[4] += outcome != "ok"
    print("| target | CPU minutes | executions | cov | peak MB | runs that ended in a finding |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for target, (seconds, runs, edges, peak, found) in sorted(sums.items()):
        print(f"| {target} | {seconds / 60:.1f} | {runs:,} | {edges:,} | {peak} | {found} |")
    minutes = sum(s[0] for s in sums.values()) / 60
    print(f"| all | {minutes:.0f} | {sum(s[1] for s in sums.values()):,} | | | "
          f"{sum(s[4] for s in sums.values())} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
