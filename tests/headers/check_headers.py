"""Compiles each header alone, as its user's first include. Usage: check_headers.py ROOT COMPILER...

Headers that a file of src/ includes before all else are left out: the build compiled them so.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"]


def compile_alone(root, compiler, header):
    name = header.relative_to(root / "include").as_posix()
    source = f'#include "{name}"\n#include "{name}"\n'
    command = [*compiler, *FLAGS, "-I", str(root / "include"), "-isystem", "/usr/include/eigen3", "-"]
    run = subprocess.run(command, input=source, capture_output=True, text=True)
    return name, run.returncode, run.stderr


def built_first(root):
    """The headers that are the first include of a source file of the library."""
    first = (re.search(r'#include "(waste/.*)"|#include <', p.read_text()) for p in (root / "src").glob("*.cpp"))
    return {match.group(1) for match in first if match}


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    compiler = sys.argv[2:] or ["g++"]
    # arch/detail is included by ops.hpp under each tier's flags only.
    include, built = root / "include", built_first(root)
    every = [h for h in sorted(include.rglob("*.hpp")) if "detail" not in h.parts]
    headers = [h for h in every if h.relative_to(include).as_posix() not in built]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, code, errors in pool.map(lambda h: compile_alone(root, compiler, h), headers):
            if code:
                failed += 1
                print(f"{name} does not compile alone:\n{errors[:2000]}")
    print(f"{len(headers)} headers, {failed} failed ({len(every) - len(headers)} more were compiled alone by the build)")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
