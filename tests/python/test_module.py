"""The Python module against the definitions in NumPy. Usage: test_module.py MODULE_DIR WASTE SOURCE_ROOT

Decodes from the raw views with nothing but the layout of docs/format.md, multiplies, quantizes, and checks
errors and lifetimes. Says that it skipped where this interpreter has no NumPy.
"""
import contextlib
import gc
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("SKIPPED: this Python has no NumPy, so the module was not tried")
    sys.exit(0)

sys.path.insert(0, sys.argv[1])
import waste  # noqa: E402

checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"failed: {what}")


def refused(code, call):
    try:
        call()
    except waste.Error as e:
        check(e.code == code, f"{e}: code {e.code}, wanted {code}")
        return str(e)
    sys.exit(f"failed: nothing was refused, wanted {code}")


def decoded(m, stages, bits):
    """The matrix from its bytes, as docs/format.md says: rows in blocks of 64."""
    positions = m.cols // 8
    run = stages * bits // 8
    block = m.indices.reshape(-1, positions, 64, run).transpose(0, 2, 1, 3).reshape(-1, positions, run)[: m.rows]
    if bits == 8:
        index = block.astype(int)
    else:
        word = block[..., 0].astype(int) | block[..., 1].astype(int) << 8 | block[..., 2].astype(int) << 16
        index = np.stack([word >> 6 * s & 63 for s in range(4)], axis=-1)
    total = sum(m.codebooks[s].astype(np.float64)[index[..., s]] for s in range(stages))
    return (total * m.scales.astype(np.float64)[:, None, None]).reshape(m.rows, m.cols).astype(np.float32)


def check_matrix(m, stages, bits):
    w = m.decode()
    check(w.shape == (m.rows, m.cols) == m.shape and w.dtype == np.float32, f"decode gives {w.shape} {w.dtype}")
    check(np.array_equal(w, decoded(m, stages, bits)), "decode is what the bytes say")
    check(np.array_equal(w, m.decode(threads=3)), "decode does not depend on threads")
    x = np.sin(np.arange(m.cols, dtype=np.float64))  # not float32: converted
    y = m.matvec(x)
    want = w.astype(np.float64) @ x.astype(np.float32).astype(np.float64)
    bound = np.abs(w.astype(np.float64)) @ np.abs(x)
    check(np.all(np.abs(y - want) <= 1e-6 * bound), "matvec is the product")
    rough = m.matvec(x, precision="split8")
    off = np.linalg.norm(rough - want) / np.linalg.norm(want)
    check(1e-6 < off < 0.1, f"split8 is off by {off}")
    for view in (m.indices, m.scales, m.codebooks):
        check(not view.flags.writeable and view.base is not None, "views are read-only and own nothing")


def check_quantize():
    random = np.random.RandomState(1)
    w = random.standard_normal((96, 256)).astype(np.float32)
    for name, stages, bits, least, most in (("VQ3R", 3, 8, 0.05, 0.2), ("VQ2R", 2, 8, 0.15, 0.34), ("VQ4P", 4, 6, 0.05, 0.2)):
        m = waste.quantize(w, format=name, effort="fast")
        check((m.format, m.shape) == (name, w.shape), f"{name}: {m.format} {m.shape}")
        check_matrix(m, stages, bits)
        error = np.linalg.norm(w - m.decode()) / np.linalg.norm(w)
        check(abs(error - m.relative_error) < 1e-5 and least < error < most, f"{name}: error {error}, said {m.relative_error}")
        again = waste.quantize(w, format=name, effort="fast", threads=2)
        check(np.array_equal(m.indices, again.indices), "the same matrix gives the same bytes")
    view = waste.quantize(w, effort="fast").indices
    gc.collect()
    check(int(view.astype(int).sum()) == int(waste.quantize(w, effort="fast").indices.astype(int).sum()),
          "a view keeps its matrix alive")  # fmt: skip
    refused("shape", lambda: waste.quantize(w[:, :251]))
    refused("out_of_range", lambda: waste.quantize(np.full((96, 256), np.nan, np.float32)))
    refused("bad_argument", lambda: waste.quantize(w, format="VQ5"))
    refused("bad_argument", lambda: waste.quantize(w[0]))
    refused("bad_argument", lambda: waste.quantize(w[:4, :8]))


def check_container(program, root, scratch):
    path = scratch / "tiny.waste"
    source = root / "examples/tiny_k3/checkpoint"
    subprocess.run([program, "convert", source, path, "--effort", "fast", "-q"], check=True, capture_output=True)
    container = waste.Container(str(path), verify="always")
    manifest = json.loads((path / "manifest.json").read_text())
    check(container.manifest == manifest, "the manifest is the file's")
    check(container.layers == sorted(map(int, manifest["layers"])), f"layers {container.layers}")
    check(set(container.tensors) == {t["name"] for t in manifest["trunk"]}, "tensors are the manifest's")
    expert = container.expert(3, 5)
    gate, down = expert.gate, expert.down
    del expert, container
    gc.collect()
    check(gate.shape == (160, 128) and down.shape == (128, 160), f"shapes {gate.shape} {down.shape}")
    check_matrix(gate, 3, 8)
    check_matrix(down, 3, 8)

    container = waste.Container(str(path))
    entries = {t["name"]: t for t in manifest["trunk"]}
    f32 = next(t for t in entries.values() if t["fmt"] == 0 and len(t["shape"]) == 2)
    raw = np.fromfile(path / "trunk.bin", np.float32, f32["bytes"] // 4, offset=f32["off"]).reshape(f32["shape"])
    check(np.array_equal(container.tensor(f32["name"]).decode(), raw), f"{f32['name']} is what the file holds")
    q4 = next(t for t in entries.values() if t["fmt"] == 3)
    m = container.tensor(q4["name"])
    data = (path / "trunk.bin").read_bytes()[q4["off"] : q4["off"] + q4["bytes"]]
    rows, cols = m.shape
    groups = -(-cols // 128)
    code = np.frombuffer(data, np.uint8, rows * groups * 64).reshape(rows, -1)
    code = np.stack([code & 15, code >> 4], axis=-1).reshape(rows, -1).astype(np.float32) - 8
    scale = np.frombuffer(data, np.float16, rows * groups, offset=rows * groups * 64).reshape(rows, groups).astype(np.float32)
    check(np.array_equal(m.decode(), (code * np.repeat(scale, 128, axis=1))[:, :cols]), f"{q4['name']} decodes")
    x = np.cos(np.arange(cols, dtype=np.float32))
    check(np.allclose(m.matvec(x), m.decode().astype(np.float64) @ x, rtol=0, atol=1e-4), "a trunk matrix multiplies")
    refused("bad_argument", lambda: m.indices)
    refused("shape", lambda: m.matvec(np.zeros(cols + 1, np.float32)))
    refused("bad_argument", lambda: m.matvec(x, precision="rough"))
    refused("missing", lambda: container.tensor("nothing"))
    check("layer 3" in refused("out_of_range", lambda: container.expert(3, 999)), "the message names the layer")
    refused("out_of_range", lambda: container.expert(0, 0))
    refused("bad_argument", lambda: waste.Container(str(path), verify="maybe"))
    refused("not_found", lambda: waste.Container(str(scratch / "nowhere")))


def check_page(root):
    """The program of docs/python.md prints what the page shows."""
    page = (root / "docs/python.md").read_text()
    program, shown = re.search(r"^```python\n(.*?)^```\n\s*^```text\n(.*?)^```", page, re.M | re.S).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/python.md", "exec"), {})
    check(printed.getvalue() == shown, f"docs/python.md shows\n{shown}and the program prints\n{printed.getvalue()}")


def main():
    version = (pathlib.Path(sys.argv[3]) / "meson.build").read_text().split("version : '")[1].split("'")[0]
    check(waste.__version__ == version, f"version {waste.__version__}")
    check_quantize()
    check_page(pathlib.Path(sys.argv[3]))
    with tempfile.TemporaryDirectory() as scratch:
        check_container(sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(scratch))
    print(f"{checks} checks passed")


if __name__ == "__main__":
    main()
