"""Runs test programs one after another and prints the closing line.

Usage: run_programs.py FOLDER PROGRAM...
fuzz_TARGET gets its corpus and a few mutations, damage_inputs a few hundred damages; the rest run as they are.
"""
import json
import pathlib
import subprocess
import sys
import time

import summarize

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 600


def command(folder, name):
    program = [str(folder / name)]
    if name.startswith("fuzz_"):
        corpus = ROOT / "tests" / "fuzz" / "corpus" / name.removeprefix("fuzz_")
        return program + [str(corpus), "--mutations", "100"]
    if name == "damage_inputs":
        return program + ["--inputs", "200", "--seed", "2"]
    return program


def main(folder, *names):
    folder = pathlib.Path(folder).resolve()
    log = folder / "log.json"
    with open(log, "w", encoding="utf-8") as out:
        for name in names:
            start = time.monotonic()
            try:
                run = subprocess.run(command(folder, name), capture_output=True, text=True, errors="replace",
                                     timeout=SECONDS, check=False)
                result, text = ("OK" if run.returncode == 0 else "FAIL"), run.stdout + run.stderr
            except subprocess.TimeoutExpired:
                result, text = "FAIL", f"stopped after {SECONDS} s"
            print(f"{name}: {result}, {time.monotonic() - start:.1f} s", flush=True)
            if result != "OK":
                print(text[-4000:], flush=True)
            out.write(json.dumps({"name": name, "result": result, "stdout": text}) + "\n")
    sys.argv[1:] = [str(log)]
    return summarize.main()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
