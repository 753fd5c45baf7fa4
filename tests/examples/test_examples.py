"""The examples as a reader would run them, their output checked against numbers made elsewhere.

Usage: test_examples.py WASTE SOURCE_ROOT BUILD_DIR

Each is built against an installed copy of the library, found by pkg-config, and must compile without a word.

The other family's container in tests/data/golden needs nothing but this interpreter. With NumPy (WASTE_PYTHON, or
the python3 on PATH) random OLMoE and Qwen3-MoE checkpoints are also converted, and their logits compared with the
reference's on the dequantized weights.
"""
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, print_passed, run  # noqa: E402
from installed import Installed  # noqa: E402

waste, root, build = sys.argv[1], *map(pathlib.Path, sys.argv[2:4])
example = {}  # name: program
golden = root / "tests/data/golden"


def output(*arguments, code=0, env=None):
    done = run(*arguments, code=code, env=env)
    return done.stdout if code == 0 else done.stderr


def read_golden(name):
    data = (golden / name).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    out = {}
    for key, t in header.items():
        if key != "__metadata__":
            begin, end = t["data_offsets"]
            kind = {"F64": "d", "F32": "f", "I32": "i"}[t["dtype"]]
            out[key] = struct.unpack(f"<{(end - begin) // struct.calcsize(kind)}{kind}", data[8 + size + begin : 8 + size + end])
    return out


def floats(path):
    data = pathlib.Path(path).read_bytes()
    return struct.unpack(f"<{len(data) // 4}f", data)


def relative(got, want):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want, strict=True)) / sum(b * b for b in want))


def build_all(scratch):
    installed = Installed(build, scratch)
    # matvec runs in tests/cli, on a container that is converted there; my_kernel is built with the benchmarks it joins.
    for source in sorted((root / "examples").glob("*.cpp")):
        if source.stem not in ("matvec", "my_kernel"):
            example[source.stem] = scratch / source.stem
            said = installed.compile(source, example[source.stem])
            check(not said, f"{source.name} against the installed library:\n{said}")


def numpy_python():
    for python in (os.environ.get("WASTE_PYTHON"), "python3", "/usr/bin/python3"):
        if python and subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
            return python
    return None


def only_public_headers():
    rows = dict(re.findall(r"^\| (public|study|detail) \| ([^|]+) \|", (root / "docs/api.md").read_text(), re.M))
    levels = {name: level for level, row in rows.items() for name in re.findall(r"`([^`]+)`", row)}
    for name in example:
        for header in re.findall(r"#include <waste/(.+)>", (root / f"examples/{name}.cpp").read_text()):
            found = [n for n in levels if header == n or (n.endswith("/") and header.startswith(n))]
            check(found and levels[max(found, key=len)] == "public", f"{name} includes {header}, not public")


def custom_forward(scratch):
    program, container = example["custom_forward"], golden / "olmoe.waste"
    lines = (root / "examples/custom_forward.cpp").read_text().count("\n")
    check(lines == 149, f"custom_forward.cpp has {lines} lines, README.md says 149")
    (excerpt,) = re.findall(r"```c\+\+\n(.*?)```", (root / "README.md").read_text(), re.S)
    check(excerpt in (root / "examples/custom_forward.cpp").read_text(), "README.md shows what the example says")
    want = read_golden("olmoe.safetensors")
    tokens = ",".join(map(str, want["tokens"]))
    shown = output(program, container, tokens, scratch / "logits").splitlines()
    got, logits = floats(scratch / "logits"), want["logits"]
    error = relative(got, logits)
    print(f"custom_forward: relative error {error:.2g} of {relative(want['logits_f32'], logits):.2g} in f32 NumPy")
    check(error < 1e-5, f"logits differ from the reference by {error}")
    width = len(logits) // len(want["tokens"])
    for t, line in enumerate(shown):
        row = logits[t * width : (t + 1) * width]
        check(line == f"{row.index(max(row))} ({max(row):.4f})", f"token {t}: {line!r}")
    check(len(shown) == len(want["tokens"]), "a line for each token")

    bits = {}
    for tier in ("baseline", "avx2", "avx512bw", "icelake", "neon64"):
        env = {**os.environ, "WASTE_ARCH": tier}
        done = subprocess.run([program, container, tokens, scratch / tier], capture_output=True, text=True, env=env)
        if done.returncode == 0:
            bits[tier] = (scratch / tier).read_bytes()
    fused = {b for tier, b in bits.items() if tier != "baseline"}
    check("baseline" in bits and len(fused) <= 1, "tiers with fused multiply-add agree bit for bit")
    check(relative(floats(scratch / "baseline"), logits) < 1e-5, "the baseline tier is as close")

    check("out of range, got 128" in output(program, container, "1,128", code=1), "a token past the vocabulary is refused")
    check("not found" in output(program, scratch / "nowhere", "1", code=1), "a folder that is no container is refused")


def other_families(scratch):
    python = numpy_python()
    if python is None:
        print("SKIPPED: no NumPy here, so no random checkpoints of other families were converted")
        return
    oracle = root / "tests/oracle"
    tokens = "1,17,599,42,42,3,256,77,8,123,0,311"
    for arch, quant in (("olmoe", "vq3r"), ("qwen3_moe", "vq4p")):
        source, container = scratch / arch, scratch / f"{arch}.waste"
        output(python, "-B", oracle / "make_gqa_checkpoint.py", arch, source)
        output(waste, "convert", source, container, "--format", quant, "--effort", "fast", "-q")
        verify = json.loads(output(waste, "verify", container, "--source", source, "--json", "-q"))
        check(verify["ok"] and verify["records"] == 36, f"{arch}: {verify}")
        manifest = json.loads((container / "manifest.json").read_text())
        check(manifest["config"] == json.loads((source / "config.json").read_text()), f"{arch}: config verbatim")
        output(example["custom_forward"], container, tokens, scratch / "logits")
        compare = ("--tokens", tokens, "--compare", scratch / "logits", "--rtol", "1e-5")
        print(arch, output(python, "-B", oracle / "gqa_model.py", container, *compare).strip())

        info = json.loads(output(waste, "info", container, "--json"))
        check(info["family"] == arch and info["num_experts"] == 12, f"info: {info}")
        check("8 heads on 2" in output(waste, "info", container), "info shows the heads")
        for arguments in (["run", container, "hello"], ["run", source, "hello"], ["plan", container],
                          ["logits", container, "--tokens", "1", "--out", scratch / "x", "--cache", "1MB"]):
            refused = output(waste, *arguments, code=1)
            check(arch in refused and "Kimi-Linear and K3" in refused, f"{arguments[0]} is refused by name: {refused}")


def stream_experts():
    program, container = example["stream_experts"], golden / "olmoe.waste"
    layers, experts, top_k, record, tokens = 2, 8, 3, 4096, 50
    seed, seen = 1, set()
    for _ in range(tokens):
        for layer in range(layers):
            chosen = set()
            while len(chosen) < top_k:
                seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
                u = (seed >> 11) * 2.0**-53
                chosen.add((layer, int(experts * u * u * u)))
            seen |= chosen
    requests, sums = tokens * layers * top_k, set()
    for records in (2, 5, layers * experts):
        first, second, third = output(program, container, records, tokens).splitlines()
        count, asked, hits, reads, _ = map(float, re.findall(r"[\d.]+", first))
        check(count == tokens and asked == requests == hits + reads, first)
        check(second == f"cache: {records} records of {record} bytes", second)
        check(reads >= len(seen) and (records < 16 or reads == len(seen)), f"{records} records: {first}")
        check(records < 5 or hits > requests / 3, f"{records} records: {first}")
        sums.add(third)
    check(len(sums) == 1, f"the same sums with every cache: {sums}")
    check("over the memory budget" in output(program, container, 0, code=1), "a cache for no record is refused")


def inspect():
    program, container = example["inspect"], golden / "olmoe.waste"
    lines = output(program, container, 1, 5).splitlines()
    manifest = json.loads((container / "manifest.json").read_text())
    check(lines[0] == "OlmoeForCausalLM (olmoe): 2 layers of 8 experts, 3 a token", lines[0])
    check(lines[1] == "experts VQ2R: 2 stages of 64 entries, 2.00 bits a weight, records of 4096 bytes", lines[1])
    names = {0: "F32", 1: "F16", 2: "Q8G", 3: "Q4G", 7: "Q3G"}
    want = {}
    for t in manifest["trunk"]:
        total = want.setdefault(names[t["fmt"]], [0, 0, 0])
        for i, n in enumerate((1, math.prod(t["shape"]), t["bytes"])):
            total[i] += n
    got = {l.split()[1]: [int(n) for n in re.findall(r"(\d+) [twb]", l)] for l in lines if l.startswith("trunk")}
    check(got == want, f"trunk {got}, wanted {want}")
    check(lines[-4] == "expert 5 of layer 1", lines[-4])
    for line, shape in zip(lines[-3:], ("gate [40][64]", "up [40][64]", "down [64][40]")):
        check(re.sub(" +", " ", line).startswith(" " + shape), line)
    python = numpy_python()
    if python:
        code = ("import sys; sys.path.insert(0, sys.argv[1]); from container import Container; import numpy\n"
                "for w in Container(sys.argv[2]).expert(1, 5): print(f'{(w*w).mean()**.5:.6f} {abs(w).max():.6f}')")
        shown = output(python, "-B", "-c", code, root / "tests/oracle", container).split()
        printed = [n for l in lines[-3:] for n in re.findall(r"\d+\.\d+", l)]
        check(all(abs(float(a) - float(b)) < 3e-6 for a, b in zip(shown, printed, strict=True)), f"{shown} {printed}")
    for layer, expert in ((2, 0), (0, 8)):
        check("out of range" in output(program, container, layer, expert, code=1), f"no expert {expert} of layer {layer}")


def quantize_matrix(scratch):
    program = example["quantize_matrix"]
    pattern = r"(VQ\w+): (\d+) bytes, relative error ([\d.]+);"
    head, *lines = output(program).splitlines()
    check(head == "128 x 256, 131072 bytes as f32", head)
    found = {name: (int(size), float(error)) for name, size, error in re.findall(pattern, "\n".join(lines))}
    # Normal weights at R bits cannot be coded with less than 2^-R relative error (Shannon), but for what the
    # codebooks, trained on so small a matrix, know of it by heart.
    for name, bits in (("VQ3R", 3), ("VQ4P", 3), ("VQ2R", 2)):
        size, error = found[name]
        check(size == 128 * 256 * bits // 8 + 2 * 128, f"{name} has {size} bytes")
        check(0.7 * 2.0**-bits < error < 1.5 * 2.0**-bits, f"{name} has error {error}")
    check(found["VQ3R"][1] < found["VQ2R"][1], "a third stage helps")

    # 64 distinct vectors, times a scale for each row: codebooks can hold them all.
    vectors = [[math.sin(7 * i + 3 * d + i * d) for d in range(8)] for i in range(64)]
    rows = [[(r + 1) * x for v in range(16) for x in vectors[(5 * r + v) % 64]] for r in range(64)]
    flat = [x for row in rows for x in row]
    (scratch / "matrix.f32").write_bytes(struct.pack(f"<{len(flat)}f", *flat))
    shown = output(program, scratch / "matrix.f32", 64, 128)
    errors = [float(e) for _, _, e in re.findall(pattern, shown)]
    check(len(errors) == 3 and max(errors) < 0.05, shown)
    check(f"w[0][0] {flat[0]:.4f} ->" in shown, shown)
    check("fewer than" in output(program, scratch / "matrix.f32", 65, 128, code=1), "a short file is refused")
    check("shape" in output(program, scratch / "matrix.f32", 64, 100, code=1), "100 columns are no vectors of 8")


def main():
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="waste-examples-"))
    build_all(scratch)
    only_public_headers()
    custom_forward(scratch)
    stream_experts()
    inspect()
    quantize_matrix(scratch)
    other_families(scratch)
    for name, program in example.items():
        check("usage" in output(program, *["x"][: name == "quantize_matrix"], code=64), f"{name} says how it is used")
    print_passed()


if __name__ == "__main__":
    main()
