"""Whole-model goldens -> kimi_linear, k3 (random weights), tiny_k3 (the trained checkpoint) and
olmoe (a container of another family)."""

import hashlib
import pathlib
import tempfile

import numpy as np

import gqa_model
import groups
import layers as nn
import make_checkpoint
import make_gqa_checkpoint
import numeric
from checkpoint import Checkpoint
from container import Container, write_container
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


def write_olmoe(folder):
    """A container of every trunk format from the tiny random checkpoint: 64 entries a codebook to
    keep it small."""
    formats = {"k_proj": groups.Q3G, "v_proj": groups.F16, "embed_tokens": groups.Q8G,
               "lm_head": groups.Q8G, "q_proj": groups.Q4G, "o_proj": groups.Q4G}  # fmt: skip
    with tempfile.TemporaryDirectory() as source:
        make_gqa_checkpoint.make("olmoe", source, seed=0, tiny=True)
        write_container(Checkpoint(source), folder, "VQ2R", entries=64,
                        trunk_fmt=lambda name, shape: formats.get(name.split(".")[-2]))  # fmt: skip


def olmoe(folder):
    """Logits on the dequantized weights of the container in `folder`, which is written where there
    is none: its bytes rest on sums of k-means, so it is kept rather than made anew."""
    if not folder.exists():
        write_olmoe(folder)
    source = Container(folder)
    tokens = numeric.Random(4).integers(source.config["vocab_size"], 16)
    model = gqa_model.Model(source)
    tensors = tensors_of(model.forward(tokens), tokens)
    rounded = gqa_model.Model(source, np.float32).forward(tokens)
    tensors["logits_f32"] = rounded["logits"]
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(file.read_bytes())
    margin = f"{model.margin:.2e}"
    return tensors, {"container_sha256": digest.hexdigest(), "router_margin": margin}
