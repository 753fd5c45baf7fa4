"""Write a trained model as a K3-style checkpoint, and read one back.

Two safetensors shards with an index, experts in MXFP4, the router's correction bias in f32, all
else in bf16; beside them config.json, the tokenizer, the texts, and an oracle: logits of the
stored weights, in f32, over the first 160 held-out tokens.
"""

import argparse
import json
import math
import pathlib
import re
import struct

import torch
import torch.nn.functional as F

import data
import model as k3

PREFIX = "language_model."
SHARDS = [f"model-{i:05d}-of-00002.safetensors" for i in (1, 2)]
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.uint8: "U8"}
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
KDA = (
    "q_proj q_conv1d k_proj k_conv1d v_proj v_conv1d f_a_proj f_b_proj b_proj dt_bias A_log"
    " g_proj o_norm o_proj"
)
MLA = "q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa kv_a_layernorm kv_b_proj g_proj o_proj"
MOE = (
    "gate gate.e_score_correction_bias routed_expert_down_proj routed_expert_up_proj"
    " routed_expert_norm shared_experts.gate_proj shared_experts.up_proj shared_experts.down_proj"
)
NORMS = (
    "input_layernorm post_attention_layernorm self_attention_res_norm self_attention_res_proj"
    " mlp_res_norm mlp_res_proj"
)
BARE = ("dt_bias", "A_log", "e_score_correction_bias")
"""Tensors whose name does not end in .weight."""


def tensor_names(config):
    """Names of the state dict in the order in which they are stored."""

    def under(path, names):
        return [path + n + ("" if n.endswith(BARE) else ".weight") for n in names.split()]

    names = under("", "model.embed_tokens lm_head model.norm")
    names += under("model.", "output_attn_res_norm output_attn_res_proj")
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        kda = n + 1 in config["linear_attn_config"]["kda_layers"]
        names += under(layer, NORMS) + under(layer + "self_attn.", KDA if kda else MLA)
        if n < config["first_k_dense_replace"]:
            names += under(layer + "mlp.", "gate_proj up_proj down_proj")
        else:
            moe = layer + "block_sparse_moe."
            names += under(moe, MOE) + [f"{moe}experts_{w}" for w in ("w1", "w3", "w2")]
    return names


def stored_tensors(state, config):
    """{checkpoint name: tensor as stored} of a state dict."""
    out = {}
    for name in tensor_names(config):
        t = state[name].float()
        if ".experts_" in name:
            path, matrix = name.rsplit("_", 1)
            packed, scale = k3.mxfp4_encode(t)
            for e in range(len(t)):
                out[f"{PREFIX}{path}.{e}.{matrix}.weight_packed"] = packed[e]
                out[f"{PREFIX}{path}.{e}.{matrix}.weight_scale"] = scale[e]
        else:
            out[PREFIX + name] = t if name.endswith("bias") and "gate." in name else t.bfloat16()
    return out


def write_safetensors(path, tensors):
    """Write {name: tensor} in order, data back to back; return the number of data bytes."""
    header, parts, offset = {}, [], 0
    for name, t in tensors.items():
        raw = (
            (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).contiguous().numpy().tobytes()
        )
        span = [offset, offset + len(raw)]
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": span}
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return offset


def read_safetensors(path):
    """{name: tensor} of a file of the three dtypes above."""
    raw = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    out = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        begin, end = (8 + size + o for o in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(raw[begin:end]), dtype=TORCH_DTYPES[entry["dtype"]])
        out[name] = flat.view(entry["shape"])
    return out


def load(folder):
    """The model stored in `folder`; its weights are those stored, widened and decoded."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())["text_config"]
    stored = {}
    for shard in SHARDS:
        stored.update(read_safetensors(folder / shard))
    state = {}
    for name in tensor_names(config):
        if ".experts_" in name:
            path, matrix = name.rsplit("_", 1)
            one = f"{PREFIX}{path}.%d.{matrix}.weight_%s"
            state[name] = torch.stack(
                [
                    k3.mxfp4_decode(stored[one % (e, "packed")], stored[one % (e, "scale")])
                    for e in range(config["num_experts"])
                ]
            )
        else:
            state[name] = stored[PREFIX + name].float()
    model = k3.K3(config)
    model.load_state_dict(state)
    return model.eval()


def bits_per_byte(model, ids, n_bytes, window=256, batch=16):
    """Mean bits per byte of the whole windows of `ids` [n], each begun from nothing."""
    rows = (len(ids) - 1) // window
    x, y = ids[: rows * window].view(rows, window), ids[1 : rows * window + 1].view(rows, window)
    total = 0.0
    with torch.no_grad():
        for a, b in zip(x.split(batch), y.split(batch)):
            total += F.cross_entropy(model(a).flatten(0, 1), b.flatten(), reduction="sum").item()
    return total / y.numel() / math.log(2) * len(ids) / n_bytes


def greedy(model, ids, count):
    """`ids` continued by `count` tokens, or up to end of message."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            padded = ids + [0] * (-len(ids) % k3.CHUNK)
            ids.append(int(model(torch.tensor([padded]))[0, len(ids) - 1].argmax()))
            if ids[-1] == data.END_OF_MSG:
                break
    return ids


def write_checkpoint(state, config, out):
    """Shards, index and the JSON files of the model, its tokenizer and its chat markup."""
    tensors = stored_tensors(state, config)
    half = config["num_hidden_layers"] // 2
    shard_of = {}
    for name in tensors:
        layer = re.search(r"\.layers\.(\d+)\.", name)
        shard_of[name] = SHARDS[bool(layer) and int(layer[1]) >= half]
    size = 0
    for shard in SHARDS:
        part = {n: t for n, t in tensors.items() if shard_of[n] == shard}
        size += write_safetensors(out / shard, part)
    ordered = {n: s for shard in SHARDS for n, s in shard_of.items() if s == shard}
    index = {"metadata": {"total_size": size}, "weight_map": ordered}
    outer = dict(
        architectures=["KimiK3ForConditionalGeneration"],
        model_type="kimi_k3",
        text_config=config,
        torch_dtype="bfloat16",
        quantization_config=dict(quant_method="compressed-tensors", format="mxfp4-pack-quantized"),
    )
    special = {
        str(data.N_RANKS + i): {"content": s, "special": True} for i, s in enumerate(data.SPECIALS)
    }
    tokenizer = {"added_tokens_decoder": special, "tokenizer_class": "TikTokenTokenizer"}
    message, end = '<|open|>message role="%s"<|sep|>', "<|close|>message<|sep|><|end_of_msg|>"
    answer = message % "assistant" + "<|open|>response<|sep|>"
    chat = {role: [message % role, end] for role in ("system", "user")}
    chat |= {"assistant": [answer, "<|close|>response<|sep|>" + end], "open": answer}
    generation = {f"{k}_token_id": config[f"{k}_token_id"] for k in ("bos", "eos", "pad")}
    for name, value, indent in (
        ("model.safetensors.index.json", index, 1),
        ("config.json", outer, 2),
        ("tokenizer_config.json", tokenizer, 1),
        ("generation_config.json", generation, 2),
        ("chat.json", chat, 1),
    ):
        (out / name).write_text(json.dumps(value, indent=indent))


def write_oracle(model, ids, out):
    """oracle.json and the f32 logits [len(ids)][vocab] of the stored weights."""
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0]
    name = f"oracle_logits_{len(ids)}.f32"
    logits.numpy().astype("<f4").tofile(out / name)
    what = "as exported (bf16, MXFP4), all arithmetic f32, no container quantization"
    oracle = {"tokens": ids, "logits": name, "shape": list(logits.shape), "weights": what}
    (out / "oracle.json").write_text(json.dumps(oracle))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("state", help="what train.py saved")
    parser.add_argument("text", help="kjv.txt")
    parser.add_argument("out", type=pathlib.Path, help="folder to write to")
    parser.add_argument("--raw", action="store_true", help="the last weights, not their average")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    saved = torch.load(args.state, weights_only=True)
    state, config = saved["model" if args.raw else "average"], json.loads(saved["config"])
    train, held_out = data.split(args.text)
    ranks = data.train_bpe("".join(map(data.chapter_text, train)))
    data.write_text_files(train, held_out, ranks, args.out)
    write_checkpoint(state, config, args.out)

    model, encoder = load(args.out), data.Encoder(ranks)
    text = "".join(map(data.chapter_text, held_out))
    write_oracle(model, encoder.encode(text[:700])[:160], args.out)
    ids = torch.tensor(encoder.encode(text))
    print(f"held-out bits per byte {bits_per_byte(model, ids, len(text)):.4f}")
    for prompt in pathlib.Path(__file__).with_name("prompts.txt").read_text().splitlines():
        print("---", encoder.decode(greedy(model, encoder.encode(prompt), 60)), flush=True)
    chat = [*encoder.message("user", train[0][0]), data.OPEN]
    chat += [*encoder.encode('message role="assistant"'), data.SEP]
    chat += [data.OPEN, *encoder.encode("response"), data.SEP]
    print("---", encoder.decode(greedy(model, chat, 120)))


if __name__ == "__main__":
    main()
