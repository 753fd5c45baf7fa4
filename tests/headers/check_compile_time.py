"""Whether the headers stay cheap to include. Usage: check_compile_time.py ROOT COMPILER...

The cost of a header is the processor time of compiling a file that holds nothing else, at -O2. It is
counted in that of <iostream>, half a second with g++ 12, compiled in turns with it, so the caps hold on
fast, slow and busy machines; the least of some rounds counts, and more rounds are taken before a header
is said to be over its cap.
"""
import pathlib
import resource
import subprocess
import sys
import tempfile

IOSTREAM_SECONDS = 0.5
# Header: seconds.
CAPS = {
    "waste/fwd.hpp": 0.1,
    "waste/format/record_layout.hpp": 0.5,
    "waste/format/usage_log.hpp": 0.5,
    "waste/format/manifest.hpp": 0.5,
    "waste/kernels/vq_matvec.hpp": 2.0,
    "waste/kernels/instantiate.hpp": 2.0,
    "waste/waste.hpp": 4.0,
}
SLACK = 1.5  # for other compilers and noise: manifest.hpp is at 0.45 to 0.65
ROUNDS, MOST_ROUNDS = 2, 16


def processor_seconds(command):
    """Of one compilation and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime


def main():
    root, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or ["g++"]
    flags = ["-std=c++20", "-O2", "-ffp-contract=off", "-I", root / "include", "-isystem", "/usr/include/eigen3"]
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch) / "one.cpp"

        def cost(header):
            source.write_text(f"#include <{header}>\n")
            return processor_seconds([*compiler, *flags, "-c", source, "-o", pathlib.Path(scratch) / "one.o"])

        unit = min(cost("iostream") for _ in range(ROUNDS))
        least = {h: min(cost(h) for _ in range(ROUNDS)) for h in CAPS}

        def seconds(header):
            return least[header] / unit * IOSTREAM_SECONDS

        over = []
        for header, cap in CAPS.items():
            for _ in range(MOST_ROUNDS - ROUNDS):
                if seconds(header) <= cap * SLACK:
                    break
                unit = min(unit, cost("iostream"))
                least[header] = min(least[header], cost(header))
            else:
                over.append(header)
    for header, cap in CAPS.items():
        print(f"{header}: {seconds(header):.2f} s of {cap:.1f}{'  OVER' if header in over else ''}")
    print(f"(<iostream> took {unit:.2f} s here and stands for {IOSTREAM_SECONDS} s)")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
