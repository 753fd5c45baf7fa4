#!/usr/bin/env python3
"""Writes a small random-weight checkpoint of one of the two architectures.

  python3 tests/oracle/make_checkpoint.py kimi-linear|k3 OUTDIR [--seed N]

The shapes are awkward on purpose (hidden 160 = a group and a tail, expert rows 72 and 96, head_dim
40) and some tensors exceed 65,536 elements, so that a conversion quantizes them. The bytes depend
on the seed alone: numeric.Random uses no libm and no numpy distribution.
"""

import argparse
import base64
import json
import pathlib

import numpy as np

import numeric
from checkpoint import write_safetensors

VOCAB, RANKS, SHARDS = 520, 500, 3
SPECIALS = ("[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>",
            "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")  # fmt: skip

COMMON = {
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 160,
    "num_hidden_layers": 5,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "topk_group": 1,
    "mla_use_nope": True,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0,
    "bos_token_id": RANKS,
    "eos_token_id": RANKS + 2,
    "pad_token_id": RANKS + 1,
}
KIMI_LINEAR = {
    **COMMON,
    "intermediate_size": 416,
    "moe_intermediate_size": 72,
    "num_experts": 10,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "routed_scaling_factor": 2.446,
    "hidden_act": "silu",
    "num_attention_heads": 5,
    "q_lora_rank": None,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "linear_attn_config": {
        "num_heads": 12,
        "head_dim": 40,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3, 5],
        "full_attn_layers": [4],
    },
}
K3 = {
    **COMMON,
    "intermediate_size": 448,
    "moe_intermediate_size": 160,
    "num_experts": 12,
    "num_experts_per_token": 4,
    "num_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "routed_expert_hidden_size": 96,
    "latent_moe_use_norm": True,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "attn_res_block_size": 3,
    "num_attention_heads": 6,
    "q_lora_rank": 56,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "mla_use_output_gate": True,
    "linear_attn_config": {
        "num_heads": 11,
        "head_dim": 40,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3, 5],
        "full_attn_layers": [4],
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
    },
}
VISION = {
    "vt_hidden_size": 48,
    "vt_num_attention_heads": 4,
    "qkv_hidden_size": 96,
    "vt_intermediate_size": 1024,
    "vt_num_hidden_layers": 1,
    "init_pos_emb_height": 8,
    "init_pos_emb_width": 8,
    "text_hidden_size": 160,
    "patch_size": 14,
    "_attn_implementation": "eager",
}


class Writer:
    """Collects tensors by name, in order."""

    def __init__(self, seed, prefix):
        self.random, self.prefix, self.tensors = numeric.Random(seed), prefix, {}

    def put(self, name, x, kind="BF16"):
        raw = {"BF16": numeric.f32_to_bf16, "F16": np.float16, "F32": np.float32, "U8": np.uint8}
        self.tensors[self.prefix + name] = (kind, raw[kind](np.asarray(x)))

    def matrix(self, name, *shape, gain=1.0, kind="BF16"):
        """Normal, of variance gain^2 / (last dimension)."""
        x = self.random.normal(*shape) * (gain / shape[-1] ** 0.5)
        self.put(name, x.astype(np.float32), kind)

    def norm(self, name, n, kind="BF16"):
        self.put(name + ".weight", (1 + 0.1 * self.random.normal(n)).astype(np.float32), kind)

    def mxfp4(self, stem, rows, cols):
        w = (self.random.normal(rows, cols) / cols**0.5).astype(np.float32)
        packed, scale = numeric.mxfp4_encode(w)
        self.put(stem + ".weight_packed", packed, "U8")
        self.put(stem + ".weight_scale", scale, "U8")


def kda_layer(w, stem, c):
    cfg, h = c["linear_attn_config"], c["hidden_size"]
    heads, d, taps = cfg["num_heads"], cfg["head_dim"], cfg["short_conv_kernel_size"]
    full, width = cfg.get("use_full_rank_gate", False), heads * d
    for z in "qkv":
        w.matrix(f"{stem}{z}_proj.weight", width, h)
        w.matrix(f"{stem}{z}_conv1d.weight", width, 1, taps, gain=1.5)
    w.matrix(stem + "f_a_proj.weight", d, h)
    w.matrix(stem + "f_b_proj.weight", width, d)
    w.matrix(stem + "b_proj.weight", heads, h)
    shape = (d,) if full else (1, 1, heads, 1)  # K3 pads to head_dim
    w.put(stem + "A_log", w.random.uniform(-1, 1, *shape).astype(np.float32), "F32")
    w.put(stem + "dt_bias", w.random.uniform(-3, 0, width).astype(np.float32), "F32")
    w.norm(stem + "o_norm", d, "F16")
    if full:
        w.matrix(stem + "g_proj.weight", width, h)
    else:
        w.matrix(stem + "g_a_proj.weight", d, h)
        w.matrix(stem + "g_b_proj.weight", width, d)
    w.matrix(stem + "o_proj.weight", h, width)


def mla_layer(w, stem, c):
    h, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    if c["q_lora_rank"]:
        w.matrix(stem + "q_a_proj.weight", c["q_lora_rank"], h)
        w.norm(stem + "q_a_layernorm", c["q_lora_rank"])
        w.matrix(stem + "q_b_proj.weight", heads * (nope + rope), c["q_lora_rank"], gain=1.5)
    else:
        w.matrix(stem + "q_proj.weight", heads * (nope + rope), h, gain=1.5)
    w.matrix(stem + "kv_a_proj_with_mqa.weight", rank + rope, h)
    w.norm(stem + "kv_a_layernorm", rank)
    w.matrix(stem + "kv_b_proj.weight", heads * (nope + v), rank)
    if c.get("mla_use_output_gate"):
        w.matrix(stem + "g_proj.weight", heads * v, h)
    w.matrix(stem + "o_proj.weight", h, heads * v)


def moe_layer(w, stem, c, packed):
    h, mi, count = c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    latent, shared = c.get("routed_expert_hidden_size"), mi * c["num_shared_experts"]
    w.matrix(stem + "gate.weight", count, h, gain=1.5)
    bias = (0.05 * w.random.normal(count)).astype(np.float32)
    w.put(stem + "gate.e_score_correction_bias", bias, "F32")
    w.matrix(stem + "shared_experts.gate_proj.weight", shared, h)
    w.matrix(stem + "shared_experts.up_proj.weight", shared, h)
    w.matrix(stem + "shared_experts.down_proj.weight", h, shared)
    if latent:
        w.matrix(stem + "routed_expert_down_proj.weight", latent, h)
        w.matrix(stem + "routed_expert_up_proj.weight", h, latent)
        w.norm(stem + "routed_expert_norm", latent)
    width = latent or h
    for e in range(count):
        for kind, rows, cols in (("w1", mi, width), ("w3", mi, width), ("w2", width, mi)):
            if packed:
                w.mxfp4(f"{stem}experts.{e}.{kind}", rows, cols)
            else:
                w.matrix(f"{stem}experts.{e}.{kind}.weight", rows, cols)


def residual_pair(w, stem, h):
    w.norm(stem + "_res_norm", h)
    w.matrix(stem + "_res_proj.weight", 1, h)


def text_model(w, c, packed):
    h, kda = c["hidden_size"], c["linear_attn_config"]["kda_layers"]
    w.matrix("model.embed_tokens.weight", c["vocab_size"], h, gain=h**0.5)
    for layer in range(c["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        w.norm(stem + "input_layernorm", h)
        w.norm(stem + "post_attention_layernorm", h)
        (kda_layer if layer + 1 in kda else mla_layer)(w, stem + "self_attn.", c)
        if c.get("attn_res_block_size"):
            residual_pair(w, stem + "self_attention", h)
            residual_pair(w, stem + "mlp", h)
        if layer < c["first_k_dense_replace"]:
            inner = c["intermediate_size"]
            w.matrix(stem + "mlp.gate_proj.weight", inner, h)
            w.matrix(stem + "mlp.up_proj.weight", inner, h)
            w.matrix(stem + "mlp.down_proj.weight", h, inner)
        else:
            moe_layer(w, stem + "block_sparse_moe.", c, packed)
    if c.get("attn_res_block_size"):
        residual_pair(w, "model.output_attn", h)
    w.norm("model.norm", h)
    w.matrix("lm_head.weight", c["vocab_size"], h, gain=3.0)


def vision_tower(w):
    w.matrix("vision_tower.patch_embed.proj.weight", 48, 3, 14, 14)
    w.matrix("vision_tower.encoder.blocks.0.mlp.fc0.weight", 1024, 96)  # large enough for Q8G
    w.norm("vision_tower.encoder.final_layernorm", 48)
    w.matrix("mm_projector.proj.0.weight", 160, 192)


def write_shards(tensors, folder):
    """Three shards cut by size, wherever that falls, and the index."""
    total = sum(x.nbytes for _, x in tensors.values())
    shards, size = [{} for _ in range(SHARDS)], 0
    for name, value in tensors.items():
        shards[min(size * SHARDS // total, SHARDS - 1)][name] = value
        size += value[1].nbytes
    where = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{SHARDS:05}.safetensors"
        write_safetensors(folder / file, shard, {"format": "pt"})
        where.update(dict.fromkeys(shard, file))
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def ranks():
    """500 byte strings in rank order: all bytes, then joins of two earlier ones."""
    vowels, consonants = "aeiou", "bcdfghjklmnpqrstvwxyz"
    syllables = [c + v for c in consonants for v in vowels]
    joined = [" " + c for c in consonants + vowels] + syllables + [" " + s for s in syllables]
    joined += ["th", "the", " the", "in", "ing", ", ", "\n\n", ".\n"]
    out = [bytes([b]) for b in range(256)] + [s.encode() for s in joined]
    assert len(out) == len(set(out)) == RANKS
    return out


def write_tokenizer(folder):
    lines = [base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(ranks())]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    added = {str(RANKS + i): {"content": s, "special": True} for i, s in enumerate(SPECIALS)}
    config = {"added_tokens_decoder": added, "tokenizer_class": "TikTokenTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def make(arch, folder, seed=0):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if arch == "k3":
        w, text = Writer(seed, "language_model."), K3
        config = {
            "architectures": ["KimiK3ForConditionalGeneration"],
            "model_type": "kimi_k3",
            "media_placeholder_token_id": RANKS + SPECIALS.index("<|media_pad|>"),
            "text_config": text,
            "vision_config": VISION,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
            },
        }
        half = [0.5, 0.5, 0.5]
        media = {"image_mean": half, "image_std": half, "patch_size": 14, "in_patch_limit": 4096,
                 "patch_limit_on_one_side": 512}  # fmt: skip
        (folder / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": media}))
    else:
        w, text = Writer(seed, ""), KIMI_LINEAR
        config = text
    text_model(w, text, packed=arch == "k3")
    if arch == "k3":
        w.prefix = ""
        vision_tower(w)
    write_shards(w.tensors, folder)
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main():
    parser = argparse.ArgumentParser(description="Write a random-weight test checkpoint.")
    parser.add_argument("arch", choices=("kimi-linear", "k3"))
    parser.add_argument("outdir")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make(args.arch, args.outdir, args.seed)


if __name__ == "__main__":
    main()
