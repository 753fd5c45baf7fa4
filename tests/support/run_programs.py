"""Runs test programs, WASTE_JOBS (2) at a time, and prints the closing line.

Usage: run_programs.py FOLDER PROGRAM...
fuzz_TARGET gets its corpus and a few mutations, damage_inputs a few hundred damages; the rest run as they are, but for
the cases in which a thread ends by a system call, which the sanitizers do not see and then take for an error.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

import summarize

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 900  # 10,000 interleavings under ThreadSanitizer on a busy machine take seven minutes


def command(folder, name):
    program = [str(folder / name)]
    if name.startswith("fuzz_"):
        corpus = ROOT / "tests" / "fuzz" / "corpus" / name.removeprefix("fuzz_")
        return program + [str(corpus), "--mutations", "100"]
    if name == "damage_inputs":
        return program + ["--inputs", "200", "--seed", "2"]
    if name in ("faults", "late_experts"):
        return program + ["~[dies]"]
    return program


def run(folder, name):
    """(name, result, output, seconds) of one program."""
    start = time.monotonic()
    try:
        done = subprocess.run(command(folder, name), capture_output=True, text=True, errors="replace",
                              timeout=SECONDS, check=False)
        result, text = ("OK" if done.returncode == 0 else "FAIL"), done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        result, text = "FAIL", f"stopped after {SECONDS} s"
    return name, result, text, time.monotonic() - start


def main(folder, *names):
    folder = pathlib.Path(folder).resolve()
    log = folder / "log.json"
    with open(log, "w", encoding="utf-8") as out, \
            concurrent.futures.ThreadPoolExecutor(int(os.environ.get("WASTE_JOBS", "2"))) as pool:
        for name, result, text, seconds in pool.map(lambda name: run(folder, name), names):
            print(f"{name}: {result}, {seconds:.1f} s", flush=True)
            if result != "OK":
                print(text[-4000:], flush=True)
            out.write(json.dumps({"name": name, "result": result, "stdout": text}) + "\n")
    sys.argv[1:] = [str(log)]
    return summarize.main()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
