"""Whether the headers stay cheap to include. Usage: check_compile_time.py ROOT COMPILER...

What including a header costs is processor time of compiling a file that holds nothing else, at -O2, and
is counted in units of a reference that is compiled in turns with it: headers of the standard library.
So the limits hold on fast, slow and busy machines alike; each is about half as much again as what the
header costs today, and the caps that they stand for are in seconds of g++ 12 on a machine of 2 GHz.
"""
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

REFERENCE = "".join(f"#include <{h}>\n" for h in ("algorithm", "functional", "regex", "string", "vector"))
# Header: the most units that it may cost.
LIMITS = {}
ROUNDS = 3


def processor_seconds(command):
    """Of one compilation and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime
