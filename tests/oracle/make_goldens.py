#!/usr/bin/env python3
"""Writes the golden files of tests/data/golden.

  python3 tests/oracle/make_goldens.py [units] [quantizers] [kimi_linear] [k3] [tiny_k3] [olmoe]
          [--tiny-k3 CHECKPOINT]

Without names: all of them.
"""

import argparse
import pathlib

import golden_models
import golden_quantizers
import golden_units
from checkpoint import write_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden"


def builders(tiny_k3):
    return {
        "units": golden_units.build,
        "quantizers": golden_quantizers.build,
        "kimi_linear": lambda: golden_models.random_weights("kimi-linear"),
        "k3": lambda: golden_models.random_weights("k3"),
        "tiny_k3": lambda: golden_models.tiny_k3(tiny_k3),
        "olmoe": lambda: golden_models.olmoe(GOLDEN / "olmoe.waste"),
    }


def main():
    parser = argparse.ArgumentParser(description="Write the golden files.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tiny-k3", default=ROOT / "examples" / "tiny_k3" / "checkpoint")
    args = parser.parse_args()
    table = builders(pathlib.Path(args.tiny_k3))
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in args.names or table:
        tensors, metadata = table[name]()
        path = GOLDEN / (name + ".safetensors")
        write_safetensors(path, tensors, metadata)
        print(f"{path.relative_to(ROOT)}: {len(tensors)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
