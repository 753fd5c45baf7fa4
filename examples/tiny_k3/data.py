"""Text, held-out split and byte-level BPE of tiny_k3.

The text is the King James Version (public domain) as Debian's package bible-kjv prints it:

    bible -f "Gen1:1-Rev22:21" > kjv.txt

Run as a program, this file writes what belongs to the text beside a checkpoint:

    python3 data.py kjv.txt --out checkpoint     # tiktoken.model, heldout.txt, calibration.txt
"""

import argparse
import base64
import collections
import pathlib
import re

N_RANKS = 1024
SPECIALS = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"] + [
    f"<|reserved_{i}|>" for i in range(10)
]
"""Control tokens; number i has id N_RANKS + i."""
END_OF_MSG, OPEN, CLOSE, SEP = (
    N_RANKS + SPECIALS.index(s) for s in ("<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>")
)

# Kimi's pre-tokenization pattern with its Unicode classes narrowed to ASCII: \p{L} is [A-Za-z],
# \p{N} is [0-9], there is no Han, and \s is the six ASCII spaces.
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PIECE = re.compile(
    r"[^\r\nA-Za-z0-9]?[A-Z]*[a-z]+"
    + CONTRACTION
    + r"|[^\r\nA-Za-z0-9]?[A-Z]+[a-z]*"
    + CONTRACTION
    + r"|[0-9]{1,3}"
    + r"| ?[^\sA-Za-z0-9]+[\r\n]*"
    + r"|\s*[\r\n]+"
    + r"|\s+(?!\S)"
    + r"|\s+",
    re.ASCII,
)


def pieces(text):
    """Cut ASCII `text` into pre-tokens; joined they are `text` again."""
    if not text.isascii():
        raise ValueError("data.py cuts ASCII text only; the full pattern needs Unicode classes")
    return PIECE.findall(text)


def chapters(path):
    """The chapters of `path` in order, each a list of verses."""
    out = collections.OrderedDict()
    for line in open(path):
        m = re.match(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)", line.strip())
        if m:
            out.setdefault((m[1], int(m[2])), []).append(m[4].strip())
    return list(out.values())


def chapter_text(verses):
    """A verse a line, an empty line after the chapter."""
    return "\n".join(verses) + "\n\n"


def split(path):
    """(training chapters, held-out chapters): every 25th chapter is never trained on."""
    every = chapters(path)
    train = [c for i, c in enumerate(every) if i % 25 != 12]
    return train, [c for i, c in enumerate(every) if i % 25 == 12]


def train_bpe(text, n_ranks=N_RANKS):
    """Byte-pair ranks {bytes: rank} of `text`: 256 bytes, then the most frequent pair, repeatedly.

    Ties between pairs go to the greater pair of byte strings.
    """
    count = collections.Counter(pieces(text))
    tokens = {w: [bytes([b]) for b in w.encode()] for w in count}
    ranks = {bytes([i]): i for i in range(256)}
    pairs = collections.Counter()
    where = collections.defaultdict(set)
    for w, t in tokens.items():
        for p in zip(t, t[1:]):
            pairs[p] += count[w]
            where[p].add(w)
    while len(ranks) < n_ranks:
        best = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))[0]
        joined = best[0] + best[1]
        ranks.setdefault(joined, len(ranks))
        for w in list(where[best]):
            t = tokens[w]
            for p in zip(t, t[1:]):
                pairs[p] -= count[w]
            out, i = [], 0
            while i < len(t):
                if i + 1 < len(t) and (t[i], t[i + 1]) == best:
                    out.append(joined)
                    i += 2
                else:
                    out.append(t[i])
                    i += 1
            tokens[w] = out
            for p in zip(out, out[1:]):
                pairs[p] += count[w]
                where[p].add(w)
        pairs.pop(best, None)
    return ranks


def save_ranks(ranks, path):
    """tiktoken's file: a line `base64(bytes) SP rank` each, in rank order."""
    with open(path, "w") as f:
        for token, rank in sorted(ranks.items(), key=lambda kv: kv[1]):
            f.write(f"{base64.b64encode(token).decode()} {rank}\n")


def load_ranks(path):
    """Read what save_ranks wrote."""
    lines = (line.split() for line in open(path) if line.strip())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


class Encoder:
    """Text to ids by rank order: join the adjacent pair of lowest rank until none is left."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.bytes_of = {rank: token for token, rank in ranks.items()}
        self.cache = {}

    def piece(self, piece):
        if piece not in self.cache:
            t = [bytes([b]) for b in piece.encode()]
            none = len(self.ranks)
            while len(t) > 1:
                i = min(range(len(t) - 1), key=lambda i: self.ranks.get(t[i] + t[i + 1], none))
                if t[i] + t[i + 1] not in self.ranks:
                    break
                t[i : i + 2] = [t[i] + t[i + 1]]
            self.cache[piece] = [self.ranks[x] for x in t]
        return self.cache[piece]

    def encode(self, text):
        return [i for p in pieces(text) for i in self.piece(p)]

    def decode(self, ids):
        """Text of `ids`; control tokens appear by name."""
        named = {N_RANKS + i: s.encode() for i, s in enumerate(SPECIALS)}
        return b"".join(self.bytes_of.get(i) or named[i] for i in ids).decode("utf8", "replace")

    def message(self, role, text):
        """Ids of one finished chat message in K3's markup."""
        inner = self.encode(text)
        if role == "assistant":
            tag = self.encode("response")
            inner = [OPEN, *tag, SEP, *inner, CLOSE, *tag, SEP]
        head = self.encode(f'message role="{role}"')
        return [OPEN, *head, SEP, *inner, CLOSE, *self.encode("message"), SEP, END_OF_MSG]


def calibration(train, size=150_000):
    """An excerpt of about `size` bytes of evenly spaced training chapters."""
    texts = [chapter_text(c) for c in train]
    step = max(1, sum(map(len, texts)) // size)
    return "".join(texts[step // 2 :: step])


def write_text_files(train, held_out, ranks, out):
    """Put tiktoken.model, heldout.txt and calibration.txt into folder `out`."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    save_ranks(ranks, out / "tiktoken.model")
    (out / "heldout.txt").write_text("".join(map(chapter_text, held_out)))
    (out / "calibration.txt").write_text(calibration(train))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="kjv.txt")
    parser.add_argument("--out", required=True, help="folder to write to")
    args = parser.parse_args()
    train, held_out = split(args.text)
    write_text_files(train, held_out, train_bpe("".join(map(chapter_text, train))), args.out)


if __name__ == "__main__":
    main()
