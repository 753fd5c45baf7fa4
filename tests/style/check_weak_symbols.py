"""Weak symbols of per-tier objects must name their tier.

The linker keeps one copy of a weak symbol. A helper that two tiers emit under one name would
run on a machine that lacks the other tier's instructions, so every weak (or unique) symbol of a
tier's objects has to carry the tier in its mangled name, and no other tier's.

    check_weak_symbols.py BUILD_DIR

looks at BUILD_DIR/src/libwaste_kernels_TIER.a.p/*.o. Exit status 1 and a list where one does not.
"""

import pathlib
import re
import subprocess
import sys

TIERS = ("baseline", "avx2", "avx512bw", "icelake", "neon64")
TAG = re.compile("|".join(f"5waste4arch{len(t)}({t})E|NS_4arch{len(t)}({t})E|4arch{len(t)}({t})E"
                          for t in TIERS))
# A reference of the exception tables to the one personality routine of the C++ runtime.
HARMLESS = {"DW.ref.__gxx_personality_v0"}


def tiers_named(symbol):
    return {next(g for g in m.groups() if g) for m in TAG.finditer(symbol)}


def weak_symbols(obj):
    out = subprocess.run(["nm", "--no-demangle", str(obj)], check=True, capture_output=True,
                         text=True).stdout  # fmt: skip
    for line in out.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in "WVu" and fields[2] not in HARMLESS:
            yield fields[2]


def main(build):
    objects = {t: sorted(pathlib.Path(build, "src").glob(f"libwaste_kernels_{t}.a.p/*.o"))
               for t in TIERS}  # fmt: skip
    found = [t for t in TIERS if objects[t]]
    if "baseline" not in found:
        sys.exit(f"no objects of the baseline tier under {build}/src")
    bad = seen = 0
    for tier in found:
        for obj in objects[tier]:
            for symbol in weak_symbols(obj):
                seen += 1
                if tiers_named(symbol) != {tier}:
                    bad += 1
                    print(f"{obj.name} of {tier}: weak symbol {symbol} does not name its tier alone")
    print(f"{seen} weak symbols in the objects of {', '.join(found)}, {bad} without their tier")
    sys.exit(1 if bad or not seen else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
