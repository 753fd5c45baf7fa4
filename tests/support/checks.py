"""Running programs and counting checks, for the tests of the command and of the examples.

Import it after putting this folder on sys.path; the first failure ends the test with its reason.
"""
import os
import subprocess
import sys

made = 0


def run(*arguments, code=0, env=None):
    """The finished program, its output as text; `env` is added to the environment. Another exit code is a failure."""
    command = [str(a) for a in arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode != code:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}, wanted {code}\n{done.stdout}{done.stderr}")
    return done


def check(condition, what):
    global made
    made += 1
    if not condition:
        sys.exit(f"failed: {what}")


def print_passed():
    print(f"{made} checks passed")
