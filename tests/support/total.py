"""Adds up the closing lines of several steps. Usage: total.py FOLDER

FOLDER has NAME.log and NAME.rc (the exit code) of each. A step without a closing line counts as one test; one that
failed without saying so counts as a failure.
"""
import pathlib
import re
import sys

LINE = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)


def main(folder):
    passed = failed = skipped = 0
    for rc in sorted(pathlib.Path(folder).glob("*.rc")):
        ok = rc.read_text(encoding="ascii").strip() == "0"
        lines = LINE.findall(rc.with_suffix(".log").read_text(encoding="utf-8", errors="replace"))
        p, f, s = (int(n or 0) for n in lines[-1]) if lines else (int(ok), int(not ok), 0)
        if not ok and f == 0:
            f = 1
        if f:
            print(f"FAILED: {rc.stem}")
        passed, failed, skipped = passed + p, failed + f, skipped + s
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
