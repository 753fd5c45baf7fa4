"""Prints what examples/quickstart.sh found. Usage: quickstart_report.py text|table OUTPUT_DIR"""
import json
import math
import pathlib
import sys

MODELS = ["float", "vq3r", "vq4p", "vq2r"]
TITLES = {"float": "float source", "vq3r": "VQ3R", "vq4p": "VQ4P", "vq2r": "VQ2R"}


def load(out, model, kind):
    return json.loads((out / f"{model}.{kind}.json").read_text(encoding="utf-8"))


def kind_error(verify, kind):
    """Relative weight error over all layers: every matrix of a kind has the same size."""
    squares = [e["relative_error"] ** 2 for e in verify["experts_error"] if e["kind"] == kind]
    return math.sqrt(sum(squares) / len(squares))


def trunk_error(verify):
    squares = [t["relative_error"] ** 2 for t in verify["trunk_error"] if t["format"] != "F32"]
    return math.sqrt(sum(squares) / len(squares))


def print_text(out):
    for model in MODELS:
        run = load(out, model, "run")
        text = " ".join(run["text"].split())
        print(f"\n{TITLES[model]} ({run['stop_reason']}):\n  {text}")


def print_table(out):
    runs = {m: load(out, m, "run") for m in MODELS}
    evals = {m: load(out, m, "eval") for m in MODELS}
    verifies = {m: load(out, m, "verify") for m in MODELS if m != "float"}

    def row(title, cell, skip_float=False):
        cells = ["-" if skip_float and m == "float" else cell(m) for m in MODELS]
        print(f"{title:<34}" + "".join(f"{c:>14}" for c in cells))

    print("\n" + " " * 34 + "".join(f"{TITLES[m]:>14}" for m in MODELS))
    row("expert bits/weight (with scales)", lambda m: f"{verifies[m]['expert_bits_per_weight']:.2f}", True)
    row("trunk bits/weight", lambda m: f"{verifies[m]['trunk_bits_per_weight']:.2f}", True)
    for kind in ("gate", "up", "down"):
        row(f"relative weight error, {kind}", lambda m, k=kind: f"{100 * kind_error(verifies[m], k):.1f} %", True)
    row("relative weight error, trunk", lambda m: f"{100 * trunk_error(verifies[m]):.1f} %", True)
    row("bits per byte, held-out text", lambda m: f"{evals[m]['bits_per_byte']:.4f}")
    row("  over the float source", lambda m: f"{evals[m]['bits_per_byte'] - evals['float']['bits_per_byte']:+.4f}", True)
    row("tokens/s, generation", lambda m: f"{runs[m]['tokens_per_second']:.0f}")
    row("expert cache hits", lambda m: f"{100 * runs[m]['cache']['hit_rate']:.0f} %", True)
    row("bytes read from banks", lambda m: f"{runs[m]['cache']['bytes_read'] / 1e6:.2f} MB", True)


def main():
    what, out = sys.argv[1], pathlib.Path(sys.argv[2])
    {"text": print_text, "table": print_table}[what](out)


if __name__ == "__main__":
    main()
