"""What checkpoint_logits.py and container_logits.py share: arguments, outputs, bits per byte."""

import argparse
import json
import math
import pathlib
import sys

import numpy as np

from checkpoint import write_safetensors
from model import Model
from tokenizer import Tokenizer


def parser(description, folder_help):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("folder", help=folder_help)
    p.add_argument("--tokens", help="ids, 1,2,3")
    p.add_argument(
        "--out", help="*.safetensors: everything below; else raw f32 logits of the last token"
    )
    p.add_argument(
        "--compare", metavar="FILE", help="raw f32 logits of the last token to check against"
    )
    p.add_argument(
        "--rtol", type=float, default=1e-5, help="of --compare: |difference| / |logits| allowed"
    )
    p.add_argument("--eps-compat", action="store_true", help="the C engine's two epsilons")
    p.add_argument("--f32", action="store_true", help="compute in f32 instead of f64")
    p.add_argument("--text-nll", metavar="TEXT", help="bits per byte of a text file")
    p.add_argument("--window", type=int, default=256, help="tokens per window of --text-nll")
    p.add_argument("--windows", type=int, default=None, help="score only the first N windows")
    return p


def tensors_of(result, tokens):
    """The result of Model.forward as named tensors (those of the golden files)."""
    out = {
        "tokens": np.asarray(tokens, np.int32),
        "layers": result["layers"],
        "logits": result["logits"],
    }
    for layer, (ids, weights) in result["router"].items():
        out[f"router_ids.{layer}"] = ids.astype(np.int32)
        out[f"router_weights.{layer}"] = weights
    return out


def bits_per_byte(model, tokenizer, text, window, windows):
    """Windows of `window` tokens, each from an empty state; every token of the text but the first
    is predicted once, and its bytes counted."""
    ids = tokenizer.encode(text)
    starts = range(0, len(ids) - 1, window)[:windows]
    nll, count = 0.0, 0
    for i in starts:
        target = np.array(ids[i + 1 : i + 1 + window])
        logits = model.forward(ids[i : i + len(target)])["logits"]
        top = logits.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
        nll += float((total - logits[np.arange(len(target)), target]).sum())
        count += len(target)
    size = len(tokenizer.decode(ids[1 : 1 + count]))
    return {"tokens": count, "bytes": size, "nll": nll, "bits_per_byte": nll / math.log(2) / size,
            "perplexity": math.exp(nll / count)}  # fmt: skip


def main(args, source, rank_file):
    compat = Model.compat(source.config) if args.eps_compat else {}
    model = Model(source, np.float32 if args.f32 else np.float64, **compat)
    if args.tokens:
        tokens = [int(t) for t in args.tokens.split(",")]
        result = model.forward(tokens)
        last = result["logits"][-1]
        if args.out and args.out.endswith(".safetensors"):
            write_safetensors(args.out, tensors_of(result, tokens))
        elif args.out:
            last.astype(np.float32).tofile(args.out)
        if args.compare:
            got = np.fromfile(args.compare, np.float32).astype(np.float64)
            error = float(np.linalg.norm(got - last) / np.linalg.norm(last))
            print(f"relative error {error:.3g}, allowed {args.rtol:.3g}")
            if not error <= args.rtol:
                sys.exit(1)
    if args.text_nll:
        text = pathlib.Path(args.text_nll).read_bytes().decode()
        tokenizer = Tokenizer(rank_file)
        print(json.dumps(bits_per_byte(model, tokenizer, text, args.window, args.windows)))
