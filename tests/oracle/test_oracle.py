#!/usr/bin/env python3
"""Checks the reference itself: python3 tests/oracle/test_oracle.py

With WASTE_SHARED set also against containers written by another engine and logits computed by it.
"""

import json
import math
import os
import pathlib
import tempfile

import numpy as np

import experts
import golden_models
import gqa_model
import groups
import layers as nn
import make_checkpoint
import make_goldens
import make_gqa_checkpoint
import numeric
from checkpoint import Checkpoint, read_safetensors
from container import Container, expert_shapes, write_container
from model import Model

TINY = make_goldens.ROOT / "examples" / "tiny_k3" / "checkpoint"
SHARED = os.environ.get("WASTE_SHARED")


def relative(got, want):
    return float(np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want))


def test_kda_step_against_scalar_loops():
    r, d = numeric.Random(5), 6
    q, k, v, g = (r.normal(1, d) for _ in range(4))
    g, beta, s = -np.abs(g), np.array([0.7]), r.normal(1, d, d)
    o, after = nn.kda_step(s, q, k, v, g, beta, 1e-6)
    qn = [x / math.sqrt(sum(y * y for y in q[0]) + 1e-6) / math.sqrt(d) for x in q[0]]
    kn = [x / math.sqrt(sum(y * y for y in k[0]) + 1e-6) for x in k[0]]
    s = [[s[0, i, j] * math.exp(g[0, i]) for j in range(d)] for i in range(d)]
    for j in range(d):
        delta = 0.7 * (v[0, j] - sum(s[i][j] * kn[i] for i in range(d)))
        for i in range(d):
            s[i][j] += kn[i] * delta
        assert abs(o[0, j] - sum(s[i][j] * qn[i] for i in range(d))) < 1e-14
    assert np.allclose(after[0], s, atol=1e-14)


def test_short_conv_in_pieces():
    r = numeric.Random(6)
    x, w, ring = r.normal(9, 5), r.normal(5, 4), np.zeros((5, 3))
    whole, _ = nn.short_conv(x, w, ring)
    parts = []
    for cut in (x[:1], x[1:3], x[3:]):
        y, ring = nn.short_conv(cut, w, ring)
        parts.append(y)
    assert (np.concatenate(parts) == whole).all()
    assert np.isclose(whole[4, 2], sum(w[2, j] * x[1 + j, 2] for j in range(4)))


def test_number_formats():
    bits = np.arange(65536, dtype=np.uint16)
    mine, numpys = numeric.f16_to_f32(bits), bits.view(np.float16).astype(np.float32)
    assert ((mine == numpys) | (np.isnan(mine) & np.isnan(numpys))).all()
    back = numeric.f32_to_bf16(numeric.bf16_to_f32(bits))
    nan = np.isnan(numeric.bf16_to_f32(bits))
    assert (back[~nan] == bits[~nan]).all() and np.isnan(numeric.bf16_to_f32(back[nan])).all()
    w = (numeric.Random(7).normal(9, 96) / 3).astype(np.float32)
    w[4] = 0
    once = numeric.mxfp4_decode(*numeric.mxfp4_encode(w))
    assert (numeric.mxfp4_decode(*numeric.mxfp4_encode(once)) == once).all()
    assert relative(once, w) < 0.13 and (once[4] == 0).all()


def test_group_errors_are_half_a_step():
    x = numeric.Random(8).normal(5, 200).astype(np.float32)
    for fmt, (q, *_) in groups.CODES.items():
        y = groups.dequantize(groups.quantize(x, fmt), fmt, x.shape)
        assert np.abs(y - x).max() <= np.abs(x).max() / q * (0.5001 + q / 2048), fmt  # f16 scale


def test_absorbed_equals_expanded_and_f32_follows():
    tokens, source = list(range(32, 64)), Checkpoint(TINY)
    want = Model(source).forward(tokens)["logits"]
    assert relative(Model(source, absorbed=False).forward(tokens)["logits"], want) < 1e-12
    assert relative(Model(source, np.float32).forward(tokens)["logits"], want) < 1e-5


def test_trained_checkpoint_against_pytorch():
    folders = [TINY] + ([pathlib.Path(SHARED) / "tiny_k3_seed" / "checkpoint"] if SHARED else [])
    for folder in folders:
        if not (folder / "oracle.json").exists():
            print(f"  {folder} has no oracle.json: skipped")
            continue
        expected = json.loads((folder / "oracle.json").read_text())
        want = np.fromfile(folder / expected["logits"], np.float32).reshape(expected["shape"])
        error = relative(Model(Checkpoint(folder)).forward(expected["tokens"])["logits"], want)
        print(f"  {folder.parent.name}: relative error {error:.2g}")
        assert error < 5e-6


def test_container_written_is_read_back():
    variants = (("kimi-linear", "VQ3R", 4, 64), ("k3", "VQ4P", 3, 0), ("k3", "VQ2R", 8, 64))
    for arch, fmt, bits, block in variants:
        with tempfile.TemporaryDirectory() as top:
            make_checkpoint.make(arch, top + "/src")
            source = Checkpoint(top + "/src")
            write_container(source, top + "/c", fmt, bits, block)
            c = Container(top + "/c")
            used = {t["fmt"] for t in c.trunk.values()}
            assert used == {
                groups.F32,
                groups.Q8G,
                {4: groups.Q4G, 3: groups.Q3G, 8: groups.Q8G}[bits],
            }
            for name, t in c.trunk.items():
                x = source.tensor(name)
                want = groups.dequantize(groups.quantize(x, t["fmt"]), t["fmt"], x.shape)
                assert (c.tensor(name) == want).all()
            size = c.manifest["layers"]["1"]["bytes"] // c.config["num_experts"]
            assert size > 16384 or fmt == "VQ2R"
            for e in (0, c.config["num_experts"] - 1):
                for kind, w in enumerate(source.expert(2, e)):
                    index, scale = experts.encode(w, c.books_of(2, kind))
                    got_index, got_scale = c.record(2, e)[kind]
                    assert (got_index == index).all()
                    assert (got_scale == numeric.f16_to_f32(scale)).all()
                    assert relative(c.expert(2, e)[kind], w) < {"VQ2R": 0.36}.get(fmt, 0.25)
            a, b = (
                Model(c, d).forward([1, 500, 33, 7])["logits"] for d in (np.float64, np.float32)
            )
            assert relative(b, a) < 1e-5


def test_rope_turns_pairs_by_the_position():
    x = numeric.Random(10).normal(5, 2, 6)
    y = gqa_model.rope(x, 100.0)
    for t, h, i in ((0, 0, 0), (3, 1, 0), (4, 0, 1), (2, 1, 2)):
        a = t / 100.0 ** (i / 3)
        want = x[t, h, i] * math.cos(a) - x[t, h, i + 3] * math.sin(a)
        assert abs(y[t, h, i] - want) < 1e-14
        want = x[t, h, i] * math.sin(a) + x[t, h, i + 3] * math.cos(a)
        assert abs(y[t, h, i + 3] - want) < 1e-14


def test_gqa_models_against_pytorch():
    try:
        import gqa_pytorch
    except ImportError:
        print("  skipped: no PyTorch here")
        return
    for arch in ("olmoe", "qwen3_moe"):
        with tempfile.TemporaryDirectory() as folder:
            make_gqa_checkpoint.make(arch, folder)
            source, tokens = Checkpoint(folder), [1, 2, 3, 500, 7, 9, 300]
            want = gqa_pytorch.forward(source, tokens)
            error = relative(gqa_model.Model(source).forward(tokens)["logits"], want)
            print(f"  {arch}: relative error {error:.2g}")
            assert error < 1e-13


def test_damaged_records_are_refused():
    shapes, r = [(72, 40), (72, 40), (40, 72)], numeric.Random(9)
    matrices = [(r.integers(256, m, n // 8, 3), r.words(m).astype(np.uint16)) for m, n in shapes]
    data = bytearray(experts.record(1, 2, 4, 9, matrices))
    arguments = (1, 2, 9, shapes, 3, 8, 64)
    experts.parse_record(bytes(data), *arguments)
    for at in [*range(36), 36, 40, 48, 2000, len(data) - 1]:
        broken = data.copy()
        broken[at] ^= 0x40
        try:
            experts.parse_record(bytes(broken), *arguments)
        except ValueError:
            continue
        raise AssertionError(f"byte {at} may be anything")


def test_committed_goldens_are_current():
    for name, build in make_goldens.builders(TINY).items():
        committed, told = read_safetensors(make_goldens.GOLDEN / (name + ".safetensors"))
        tensors, metadata = build()
        assert {k: str(v) for k, v in metadata.items()} == told, name
        assert committed.keys() == tensors.keys(), name
        for key, want in tensors.items():
            got = committed[key]
            assert got.shape == want.shape and got.dtype == want.dtype, (name, key)
            if want.dtype in (np.float64, np.float32) and name != "quantizers":
                tolerance = 1e-11 if want.dtype == np.float64 else 1e-5
                scale = max(np.abs(want[np.isfinite(want)]).max(initial=0), 1e-30)
                with np.errstate(invalid="ignore"):  # infinities are compared by ==
                    close = (got == want) | (np.abs(got - want) <= tolerance * scale)
                assert close.all(), (name, key)
            else:
                assert (got == want).all(), (name, key)


def test_margins_are_measured():
    with golden_models.Margins() as margins:
        nn.route(np.array([[0.0, 2.0, 1.0]]), np.zeros(3), 1, True, 1.0)
    assert np.isclose(margins.smallest, nn.sigmoid(2.0) - nn.sigmoid(1.0))


def interop_logits(folder):
    """The C engine's logits: its epsilons, subnormal codebook entries read as 0. VQ4P within the
    error of its int8 table."""
    for name, allowed in (("vq3r", 1e-5), ("vq2r", 1e-5), ("k3", 1e-4), ("vq4p", 0.15)):
        expected = json.loads((folder / "expected" / f"{name}.json").read_text())
        want = np.fromfile(folder / "expected" / expected["logits"], np.float32)
        c = Container(folder / f"{name}.waste", flush_subnormals=True)
        got = Model(c, **Model.compat(c.config)).forward(expected["tokens"])["logits"][-1]
        print(f"  {name}: relative error {relative(got, want):.2g}")
        assert relative(got, want) < allowed and got.argmax() == expected["argmax"]


def interop_bytes(folder):
    """Quantizing the sources gives the trunk's bytes; re-packing a parsed record its own."""
    sources = {"k3": "source-k3"}
    for name in ("vq3r", "vq2r", "vq4p", "k3"):
        c = Container(folder / f"{name}.waste")
        source = Checkpoint(folder / sources.get(name, "source-kimi-linear"))
        trunk = (folder / f"{name}.waste" / "trunk.bin").read_bytes()
        for tensor, t in c.trunk.items():
            want = trunk[t["off"] : t["off"] + t["bytes"]]
            assert groups.quantize(source.tensor(tensor), t["fmt"]) == want, tensor
        for layer, bank in c.manifest["layers"].items():
            data = (folder / f"{name}.waste" / bank["file"]).read_bytes()
            size = experts.record_bytes(
                expert_shapes(c.config), experts.run_bytes(c.stages, c.index_bits), c.block
            )
            assert len(data) == bank["bytes"] == size * bank["experts"]
            for e in range(bank["experts"]):
                want, parsed = data[e * size : (e + 1) * size], c.record(int(layer), e)
                bits = [(index, numeric.f32_to_f16(scale)) for index, scale in parsed]
                base, fmt = bank["codebook_base"], want[8]
                got = experts.record(int(layer), e, fmt, base, bits, c.index_bits, c.block)
                assert got == want
                for kind, w in enumerate(source.expert(int(layer), e)):
                    assert relative(c.expert(int(layer), e)[kind], w) < 0.4


def main():
    tests = {k: v for k, v in globals().items() if k.startswith("test_")}
    if SHARED:
        folder = pathlib.Path(SHARED) / "interop"
        tests["interop_logits"] = lambda: interop_logits(folder)
        tests["interop_bytes"] = lambda: interop_bytes(folder)
    for name, test in tests.items():
        print(name, flush=True)
        test()
    if not SHARED:
        print("skipped interop_logits and interop_bytes: WASTE_SHARED is not set")
    print(f"{len(tests)} passed")


if __name__ == "__main__":
    main()
