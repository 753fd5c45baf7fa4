"""Train tiny_k3 for a given wall-clock time, from nothing or from an exported checkpoint.

AdamW; the learning rate warms up, then follows a cosine of elapsed time, so that a run ends well
on a machine of any speed. The router's correction bias is moved towards equal load, and the
experts are rounded to MXFP4 in every forward pass from --qat on (a fraction of the run). A running
average of the weights is kept and saved beside them; it is what export.py writes.

A chapter is a document; half of them end in <|end_of_msg|>, and a few sequences in a hundred are
chats in K3's markup: the user gives a verse, the assistant answers with the next two.
"""

import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn.functional as F

import data
import export
import model as k3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="kjv.txt")
    parser.add_argument("out", help="file to save to, replaced atomically")
    parser.add_argument(
        "--minutes", type=float, required=True, help="length of the run, setting up included"
    )
    parser.add_argument("--init", help="exported checkpoint to start from")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--window", type=int, default=256, help="positions a sequence")
    parser.add_argument("--peak", type=float, default=3e-3, help="largest learning rate")
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument(
        "--dropout", type=float, default=0.1, help="of embeddings and what sublayers add"
    )
    parser.add_argument("--qat", type=float, default=0.4, help="fraction after which experts round")
    parser.add_argument(
        "--average", type=float, default=0.05, help="averaging span, of steps so far"
    )
    parser.add_argument("--chat", type=float, default=0.04, help="share of chat sequences")
    parser.add_argument("--balance", type=float, default=3e-3, help="first step of the router bias")
    parser.add_argument(
        "--evaluate", type=float, default=10, help="minutes between evaluations, 0: none"
    )
    parser.add_argument("--save", type=float, default=3, help="minutes between saves")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def epochs(chapters, encoder, length, rng):
    """Sequences of `length` tokens for ever; each epoch all text once, cut anew."""
    encoded = [encoder.encode(data.chapter_text(c)) for c in chapters]
    while True:
        rng.shuffle(encoded)
        stream = []
        for chapter in encoded:
            stream += chapter + ([data.END_OF_MSG] if rng.random() < 0.5 else [])
        begin = rng.randrange(length)
        windows = [stream[i : i + length] for i in range(begin, len(stream) - length, length - 1)]
        rng.shuffle(windows)
        yield from windows


def chats(chapters, encoder, length, rng):
    """Sequences of `length` tokens of two-message conversations for ever."""
    while True:
        ids = []
        while len(ids) < length:
            verses = rng.choice(chapters)
            i = rng.randrange(max(1, len(verses) - 2))
            ids += encoder.message("user", verses[i])
            ids += encoder.message("assistant", "\n".join(verses[i + 1 : i + 3]))
        yield ids[:length]


def log(*what, **how):
    print(*what, flush=True, **how)


def save(path, **what):
    torch.save(what, path + ".tmp")
    os.replace(path + ".tmp", path)


def main():
    args = arguments()
    start = saved = evaluated = logged = time.time()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    rng = random.Random(args.seed)
    train, held_out = data.split(args.text)
    if args.init:
        ranks = data.load_ranks(f"{args.init}/tiktoken.model")
    else:
        ranks = data.train_bpe("".join(map(data.chapter_text, train)))
    encoder = data.Encoder(ranks)
    held_out = "".join(map(data.chapter_text, held_out))
    held_out_ids = torch.tensor(encoder.encode(held_out))
    model = export.load(args.init) if args.init else k3.K3()
    model.model.dropout = args.dropout
    average = {n: t.clone() for n, t in model.state_dict().items()}
    judge = k3.K3(model.config).eval()
    judge.quantize_experts()

    def evaluate(state):
        judge.load_state_dict(state)
        return export.bits_per_byte(judge, held_out_ids, len(held_out), args.window, args.batch)

    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.97), eps=1e-9)
    prose = epochs(train, encoder, args.window + 1, rng)
    chat = chats(train, encoder, args.window + 1, rng)
    log(f"parameters {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M")
    step, running = 0, None
    model.train()
    while (part := (time.time() - start) / (60 * args.minutes)) < 1:
        step += 1
        rate = args.peak * min(1, step / args.warm_up) * (0.51 + 0.49 * math.cos(math.pi * part))
        for group in optimizer.param_groups:
            group["lr"] = rate
        model.quantize_experts(part >= args.qat)
        rows = [next(chat if rng.random() < args.chat else prose) for _ in range(args.batch)]
        ids = torch.tensor(rows)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for moe in model.moes():
                error = torch.sign(moe.load.float().mean() - moe.load)
                moe.gate.e_score_correction_bias += args.balance * (1 - part) * error
            keep = 1 - 1 / max(1, args.average * step)
            for name, t in model.state_dict().items():
                average[name].lerp_(t, 1 - keep)
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        now = time.time()
        if now - logged > 60:
            logged = now
            speed = step * args.batch * args.window / (now - start)
            log(f"{(now - start) / 60:.1f} min step {step} loss {running:.4f}", end=" ")
            log(f"rate {rate:.1e} {speed:.0f} tokens/s")
        if args.evaluate and now - evaluated > 60 * args.evaluate:
            evaluated = now
            log(f"  held-out bits per byte of the average {evaluate(average):.4f}")
        if now - saved > 60 * args.save:
            saved = now
            save(
                args.out, model=model.state_dict(), average=average, config=json.dumps(model.config)
            )
    save(args.out, model=model.state_dict(), average=average, config=json.dumps(model.config))
    log(f"end: step {step}, held-out bits per byte of the average {evaluate(average):.4f}")
    log(f"and of the last weights {evaluate(model.state_dict()):.4f}")


if __name__ == "__main__":
    main()
