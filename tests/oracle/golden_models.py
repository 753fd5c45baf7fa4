"""Whole-model goldens -> kimi_linear, k3 (random weights) and tiny_k3 (the trained checkpoint)."""

import pathlib
import tempfile

import numpy as np

import layers as nn
import make_checkpoint
import numeric
from checkpoint import Checkpoint
from model import Model
from run_model import tensors_of
from tokenizer import Tokenizer


class Margins:
    """Wraps layers.route to note how close the last chosen expert came to the first refused one."""

    def __init__(self):
        self.smallest, self._route = np.inf, nn.route

    def __call__(self, logits, bias, top_k, *rest):
        choice = -np.sort(-(nn.sigmoid(logits) + bias), axis=1)
        self.smallest = min(self.smallest, (choice[:, top_k - 1] - choice[:, top_k]).min())
        return self._route(logits, bias, top_k, *rest)

    def __enter__(self):
        nn.route = self
        return self

    def __exit__(self, *_):
        nn.route = self._route


def both(source, tokens):
    """(f64 result, f32 result, smallest router margin), or None where a choice of experts is so
    close that rounding could change it."""
    with Margins() as margins:
        exact = Model(source).forward(tokens)
    rounded = Model(source, np.float32).forward(tokens)
    same = all((ids == rounded["router"][n][0]).all() for n, (ids, _) in exact["router"].items())
    return (exact, rounded, margins.smallest) if same and margins.smallest > 5e-5 else None


def metadata(source, margin):
    return {"checkpoint_sha256": source.digest(), "eps_a": 1e-6, "l2_eps": 1e-6,
            "router_margin": f"{margin:.2e}"}  # fmt: skip


def random_weights(arch):
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint.make(arch, folder, seed=0)
        source = Checkpoint(folder)
        tokens = numeric.Random(3).integers(source.config["vocab_size"], 20)
        exact, rounded, margin = both(source, tokens)
        tensors = tensors_of(exact, tokens)
        tensors["layers_f32"], tensors["logits_f32"] = rounded["layers"], rounded["logits"]
        return tensors, {**metadata(source, margin), "arch": arch, "seed": 0}


def tiny_k3(folder):
    """The first 48 tokens of heldout.txt with clear choices of experts; f64 results rounded to F32
    to keep the file small."""
    source = Checkpoint(folder)
    text = (pathlib.Path(folder) / "heldout.txt").read_text()[:20000]
    ids = Tokenizer(pathlib.Path(folder) / "tiktoken.model").encode(text)
    pieces = (ids[i : i + 48] for i in range(0, len(ids) - 48, 48))
    tokens, results = next((p, r) for p in pieces if (r := both(source, p)))
    exact, _, margin = results
    tensors = tensors_of(exact, tokens)
    tensors = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in tensors.items()}
    return tensors, metadata(source, margin)
