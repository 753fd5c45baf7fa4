#!/usr/bin/env python3
"""Writes a small random-weight checkpoint of OLMoE's or Qwen3-MoE's architecture.

  python3 tests/oracle/make_gqa_checkpoint.py olmoe|qwen3_moe OUTDIR [--seed N] [--tiny]

Four query heads share a key head (OLMoE as published shares none: its config may say so too). With
--tiny everything is below 65,536 elements. The bytes depend on the seed alone.
"""

import argparse
import json
import pathlib

from checkpoint import write_safetensors
from make_checkpoint import Writer, write_shards

COMMON = {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": 1,
}
OLMOE = {
    **COMMON,
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "clip_qkv": None,
    "norm_topk_prob": False,
    "rope_theta": 10000.0,
    "rope_scaling": None,
}
QWEN3 = {
    **COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "head_dim": 24,
}
SIZES = {"vocab_size": 600, "hidden_size": 160, "num_hidden_layers": 3, "num_attention_heads": 8,
         "num_key_value_heads": 2, "num_experts": 12, "num_experts_per_tok": 4}  # fmt: skip
TINY = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 3}  # fmt: skip


def config_of(arch, tiny):
    """OLMoE's experts have intermediate_size rows, Qwen3-MoE's moe_intermediate_size."""
    c = {**(OLMOE if arch == "olmoe" else QWEN3), **(TINY if tiny else SIZES)}
    rows = 40 if tiny else 72
    if arch == "olmoe":
        return {**c, "intermediate_size": rows}
    return {**c, "intermediate_size": 4 * rows, "moe_intermediate_size": rows}


def text_model(w, c):
    h, heads, groups = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim") or h // heads
    rows = c.get("moe_intermediate_size") or c["intermediate_size"]
    per_head = c["model_type"] == "qwen3_moe"
    w.matrix("model.embed_tokens.weight", c["vocab_size"], h, gain=h**0.5)
    for layer in range(c["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        w.norm(stem + "input_layernorm", h)
        w.norm(stem + "post_attention_layernorm", h)
        w.matrix(stem + "self_attn.q_proj.weight", heads * d, h)
        w.matrix(stem + "self_attn.k_proj.weight", groups * d, h)
        w.matrix(stem + "self_attn.v_proj.weight", groups * d, h)
        w.matrix(stem + "self_attn.o_proj.weight", h, heads * d)
        w.norm(stem + "self_attn.q_norm", d if per_head else heads * d)
        w.norm(stem + "self_attn.k_norm", d if per_head else groups * d)
        w.matrix(stem + "mlp.gate.weight", c["num_experts"], h, gain=1.5)
        for e in range(c["num_experts"]):
            for name in ("gate_proj", "up_proj"):
                w.matrix(f"{stem}mlp.experts.{e}.{name}.weight", rows, h)
            w.matrix(f"{stem}mlp.experts.{e}.down_proj.weight", h, rows)
    w.norm("model.norm", h)
    w.matrix("lm_head.weight", c["vocab_size"], h, gain=3.0)


def make(arch, folder, seed=0, tiny=False):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    w, config = Writer(seed, ""), config_of(arch, tiny)
    text_model(w, config)
    if tiny:
        write_safetensors(folder / "model.safetensors", w.tensors, {"format": "pt"})
    else:
        write_shards(w.tensors, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main():
    parser = argparse.ArgumentParser(description="Write a random-weight test checkpoint.")
    parser.add_argument("arch", choices=("olmoe", "qwen3_moe"))
    parser.add_argument("outdir")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    make(args.arch, args.outdir, args.seed, args.tiny)


if __name__ == "__main__":
    main()
