"""Compiles each header alone, as its user's first include. Usage: check_headers.py ROOT COMPILER..."""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]


def compile_alone(root, compiler, header):
    name = header.relative_to(root / "include").as_posix()
    source = f'#include "{name}"\n#include "{name}"\n'
    command = [*compiler, *FLAGS, "-I", str(root / "include"), "-isystem", "/usr/include/eigen3", "-"]
    run = subprocess.run(command, input=source, capture_output=True, text=True)
    return name, run.returncode, run.stderr


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    compiler = sys.argv[2:] or ["g++"]
    # arch/detail is included by ops.hpp under each tier's flags only.
    headers = [h for h in sorted((root / "include").rglob("*.hpp")) if "detail" not in h.parts]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, code, errors in pool.map(lambda h: compile_alone(root, compiler, h), headers):
            if code:
                failed += 1
                print(f"{name} does not compile alone:\n{errors[:2000]}")
    print(f"{len(headers)} headers, {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
