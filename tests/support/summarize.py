"""Adds up the test cases of a Meson run and prints the closing line.

Each Meson test is a Catch2 program, whose own totals are counted, or a script, which counts as one.
A line "SKIPPED: reason" in a test's output is a skipped check and is repeated here; so is each line of the file that
a second argument names.
"""
import json
import re
import sys


def count(test):
    """(passed, failed) test cases of one Meson test."""
    output = test.get("stdout", "")
    ok = test["result"] == "OK"
    whole = re.findall(r"All tests passed \(.*? in (\d+) test cases?\)", output)
    if whole:
        passed = sum(map(int, whole))
        return (passed, 0) if ok else (passed, 1)
    line = re.search(r"^test cases:(.*)$", output, re.M)
    if line:
        passed = re.search(r"(\d+) passed", line[1])
        failed = re.search(r"(\d+) failed", line[1])
        return int(passed[1]) if passed else 0, max(int(failed[1]) if failed else 0, 0 if ok else 1)
    return (1, 0) if ok else (0, 1)


def main():
    passed = failed = 0
    skips = []
    with open(sys.argv[1], encoding="utf-8") as log:
        for line in log:
            test = json.loads(line)
            if test["result"] == "SKIP":
                skips.append(f"{test['name']}: skipped as a whole")
                continue
            p, f = count(test)
            passed, failed = passed + p, failed + f
            output = test.get("stdout", "") + "\n" + test.get("stderr", "")
            skips += [f"{test['name']}: {m}" for m in re.findall(r"^SKIPPED: (.*)$", output, re.M)]
            if f:
                print(f"FAILED: {test['name']}")
    for name in sys.argv[2:]:
        with open(name, encoding="utf-8") as left_out:
            skips += left_out.read().splitlines()
    for skip in skips:
        print(f"skipped: {skip}")
    tail = f", {len(skips)} skipped" if skips else ""
    print(f"{passed} passed, {failed} failed{tail}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
