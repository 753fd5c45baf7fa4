"""OLMoE and Qwen3-MoE: grouped-query attention with RoPE and q/k norms, softmax router.

Written from the published formulas. A source is that of model.py: checkpoint.Checkpoint or
container.Container. Run as a script it prints nothing and writes or compares logits:

  python3 tests/oracle/gqa_model.py FOLDER --tokens 1,2,3 [--out FILE] [--compare FILE [--rtol X]]

FOLDER is a checkpoint or a container; FILE raw f32 logits [tokens][vocabulary].
"""

import argparse
import pathlib
import sys

import numpy as np

import layers as nn
from checkpoint import Checkpoint
from container import Container


def rope(x, theta):
    """x [T][heads][d], position t in row t. The pair (x_i, x_{i + d/2}) is a complex number, turned
    by the angle t theta^(-2i/d)."""
    steps, _, d = x.shape
    angle = np.arange(steps)[:, None] * theta ** (-np.arange(d // 2) * 2.0 / d)
    z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angle)[:, None, :]
    return np.concatenate([z.real, z.imag], axis=-1).astype(x.dtype)


def attend(q, k, v):
    """Causal softmax attention, q [T][H][d], k and v [T][G][d]; query head h reads head h G/H."""
    steps, heads, d = q.shape
    out = np.empty_like(q)
    later = np.triu(np.ones((steps, steps), bool), 1)
    for h in range(heads):
        g = h * k.shape[1] // heads
        scores = q[:, h] @ k[:, g].T * q.dtype.type(d) ** q.dtype.type(-0.5)
        out[:, h] = nn.softmax(np.where(later, -np.inf, scores)) @ v[:, g]
    return out


def route(logits, top_k, renormalize):
    """p = softmax(logits) over all experts; the K largest, largest first, the lower index at a tie;
    divided by their sum where renormalize. Returns (ids, weights, smallest gap to the rest)."""
    p = nn.softmax(logits)
    order = np.argsort(-p, axis=1, kind="stable")
    ids = order[:, :top_k]
    w = np.take_along_axis(p, ids, axis=1)
    rest = np.take_along_axis(p, order[:, top_k : top_k + 1], axis=1)
    gap = (w[:, -1:] - rest).min(initial=1.0)
    return ids, w / w.sum(axis=1, keepdims=True) if renormalize else w, float(gap)


class Model:
    def __init__(self, source, dtype=np.float64):
        self.source, self.c, self.dtype = source, source.config, np.dtype(dtype).type
        self.margin = 1.0  # how close a choice of experts came to another one

    def weight(self, name):
        return self.source.tensor(name).astype(self.dtype)

    def linear(self, x, stem):
        return x @ self.weight(stem + ".weight").T

    def norm(self, x, stem):
        """Over the last axis, of as many elements as the weight has."""
        w = self.weight(stem + ".weight")
        return nn.rms_norm(x.reshape(-1, len(w)), w, self.c["rms_norm_eps"]).reshape(x.shape)

    def attention(self, x, stem):
        heads = self.c["num_attention_heads"]
        d = self.c.get("head_dim") or self.c["hidden_size"] // heads
        # OLMoE norms q and k over all heads together, Qwen3-MoE each head: the weight's size tells.
        q = self.norm(self.linear(x, stem + "q_proj"), stem + "q_norm").reshape(len(x), heads, d)
        k = self.norm(self.linear(x, stem + "k_proj"), stem + "k_norm").reshape(len(x), -1, d)
        v = self.linear(x, stem + "v_proj").reshape(len(x), -1, d)
        theta = self.c["rope_theta"]
        o = attend(rope(q, theta), rope(k, theta), v)
        return self.linear(o.reshape(len(x), -1), stem + "o_proj")

    def moe(self, x, layer, trace):
        stem = f"model.layers.{layer}.mlp."
        ids, w, gap = route(self.linear(x, stem + "gate"), self.c["num_experts_per_tok"],
                            self.c["norm_topk_prob"])  # fmt: skip
        self.margin = min(self.margin, gap)
        trace[layer] = ids, w
        y = np.zeros_like(x)
        for e in np.unique(ids):
            gate, up, down = (m.astype(self.dtype) for m in self.source.expert(layer, int(e)))
            t, j = np.nonzero(ids == e)
            y[t] += w[t, j, None] * (nn.silu_pair(x[t] @ gate.T, x[t] @ up.T) @ down.T)
        return y

    def forward(self, tokens):
        """All positions of one sequence: {"layers": [L][T][hidden], "logits": [T][V], "router"}."""
        x, hidden, trace = self.weight("model.embed_tokens.weight")[np.asarray(tokens)], [], {}
        for layer in range(self.c["num_hidden_layers"]):
            stem = f"model.layers.{layer}."
            h = self.norm(x, stem + "input_layernorm")
            x = x + self.attention(h, stem + "self_attn.")
            x = x + self.moe(self.norm(x, stem + "post_attention_layernorm"), layer, trace)
            hidden.append(x)
        logits = self.linear(self.norm(x, "model.norm"), "lm_head")
        return {"layers": np.stack(hidden), "logits": logits, "router": trace}


def main():
    parser = argparse.ArgumentParser(description="Logits of an OLMoE or Qwen3-MoE model, in f64.")
    parser.add_argument("folder")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out")
    parser.add_argument("--compare", metavar="FILE")
    parser.add_argument("--rtol", type=float, default=1e-5, help="|difference| / |logits| allowed")
    args = parser.parse_args()
    folder = pathlib.Path(args.folder)
    source = (Container if (folder / "manifest.json").exists() else Checkpoint)(folder)
    logits = Model(source).forward([int(t) for t in args.tokens.split(",")])["logits"]
    if args.out:
        logits.astype(np.float32).tofile(args.out)
    if args.compare:
        got = np.fromfile(args.compare, np.float32).astype(np.float64).reshape(logits.shape)
        error = float(np.linalg.norm(got - logits) / np.linalg.norm(logits))
        print(f"relative error {error:.3g}, allowed {args.rtol:.3g}")
        if not error <= args.rtol:
            sys.exit(1)


if __name__ == "__main__":
    main()
