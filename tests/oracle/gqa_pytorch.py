"""gqa_model.py once more with PyTorch's operations, as published model code writes them: rotate_half,
repeated key heads, torch.topk. Used by test_oracle.py where PyTorch is installed."""

import numpy as np
import torch
from torch.nn.functional import linear, silu


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rms_norm(x, w, eps):
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def forward(source, tokens):
    """Logits [T][V] of a checkpoint.Checkpoint or container.Container, f64."""
    c, steps = source.config, len(tokens)
    eps, theta = c["rms_norm_eps"], c["rope_theta"]
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim") or c["hidden_size"] // heads

    def weight(name):
        return torch.tensor(source.tensor(name + ".weight").astype(np.float64))

    inv_freq = 1.0 / theta ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.outer(torch.arange(steps, dtype=torch.float64), inv_freq)
    cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    mask = torch.triu(torch.full((steps, steps), -torch.inf, dtype=torch.float64), 1)

    def attention(x, stem):
        q, k, v = (linear(x, weight(f"{stem}{z}_proj")) for z in "qkv")
        norms = weight(stem + "q_norm"), weight(stem + "k_norm")
        if c["model_type"] == "olmoe":
            q, k = (rms_norm(z, w, eps) for z, w in zip((q, k), norms))
        q, k, v = (z.view(steps, -1, d).transpose(0, 1) for z in (q, k, v))
        if c["model_type"] == "qwen3_moe":
            q, k = (rms_norm(z, w, eps) for z, w in zip((q, k), norms))
        q, k = (z * cos + rotate_half(z) * sin for z in (q, k))
        k, v = (z.repeat_interleave(heads // groups, 0) for z in (k, v))
        p = torch.softmax(q @ k.transpose(1, 2) * d**-0.5 + mask, -1)
        return linear((p @ v).transpose(0, 1).reshape(steps, -1), weight(stem + "o_proj"))

    def moe(x, layer):
        p = torch.softmax(linear(x, weight(f"model.layers.{layer}.mlp.gate")), -1)
        w, ids = torch.topk(p, c["num_experts_per_tok"], -1)
        if c["norm_topk_prob"]:
            w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for t in range(steps):
            for j, e in enumerate(ids[t].tolist()):
                expert = source.expert(layer, e)
                gate, up, down = (torch.tensor(m.astype(np.float64)) for m in expert)
                out[t] += w[t, j] * (down @ (silu(gate @ x[t]) * (up @ x[t])))
        return out

    x = weight("model.embed_tokens")[torch.tensor(tokens)]
    for layer in range(c["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        x = x + attention(rms_norm(x, weight(stem + "input_layernorm"), eps), stem + "self_attn.")
        x = x + moe(rms_norm(x, weight(stem + "post_attention_layernorm"), eps), layer)
    return linear(rms_norm(x, weight("model.norm"), eps), weight("lm_head")).numpy()
