"""Plain-mode tokenizer: the published pattern and rank-order BPE.

Classes come from unicodedata; Python lacks the Script property, so Han's ranges stand here.
"""

import base64
import re
import unicodedata

HAN = ("\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf"
       "\u4e00-\u9fff\uf900-\ufa6d\ufa70-\ufad9\U00016fe2\U00016fe3\U00016ff0\U00016ff1"
       "\U00020000-\U0002a6df\U0002a700-\U0002b739\U0002b740-\U0002b81d\U0002b820-\U0002cea1"
       "\U0002ceb0-\U0002ebe0\U0002ebf0-\U0002ee5d\U0002f800-\U0002fa1d\U00030000-\U0003134a"
       "\U00031350-\U000323af")  # fmt: skip
SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # White_Space


def _classes():
    """{general category: body of a character class}."""
    out, last = {}, {}
    for point in range(0x110000):
        kind = unicodedata.category(chr(point))
        if last.get(kind) == point - 1:
            out[kind][-1][1] = point
        else:
            out.setdefault(kind, []).append([point, point])
        last[kind] = point
    return {k: "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in v) for k, v in out.items()}


def pattern():
    """The compiled pre-tokenizer; [class&&[^Han]] becomes a lookahead."""
    c = _classes()
    letter = "".join(c[k] for k in ("Lu", "Ll", "Lt", "Lm", "Lo"))
    number = "".join(c[k] for k in ("Nd", "Nl", "No"))
    shared = "".join(c[k] for k in ("Lm", "Lo", "Mn", "Mc", "Me"))
    upper, lower = (f"(?:(?![{HAN}])[{c2}{shared}])" for c2 in (c["Lu"] + c["Lt"], c["Ll"]))
    suffix = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    lead = f"[^\\r\\n{letter}{number}]?"
    return re.compile(
        "|".join([
            f"[{HAN}]+",
            f"{lead}{upper}*{lower}+{suffix}",
            f"{lead}{upper}+{lower}*{suffix}",
            f"[{number}]{{1,3}}",
            f" ?[^{SPACE}{letter}{number}]+[\\r\\n]*",
            f"[{SPACE}]*[\\r\\n]+",
            f"[{SPACE}]+(?![^{SPACE}])",
            f"[{SPACE}]+",
        ])
    )  # fmt: skip


class Tokenizer:
    """path: lines `base64 SP rank`."""

    def __init__(self, path):
        with open(path, "rb") as f:
            pairs = (line.split() for line in f if line.strip())
            self.ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
        self.tokens = {rank: token for token, rank in self.ranks.items()}
        self.pattern, self._known = pattern(), {}

    def merge(self, piece):
        """Ids of one piece (bytes): joins the adjacent pair of lowest rank until none is left."""
        if piece in self.ranks:
            return [self.ranks[piece]]
        parts, far = [bytes([b]) for b in piece], len(self.ranks)
        while len(parts) > 1:
            pair = [self.ranks.get(a + b, far) for a, b in zip(parts, parts[1:])]
            best = min(pair)
            if best == far:
                break
            i = pair.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ranks[p] for p in parts]

    def encode(self, text):
        out = []
        for match in self.pattern.finditer(text):
            piece = match.group()
            if piece not in self._known:
                self._known[piece] = self.merge(piece.encode())
            out.extend(self._known[piece])
        return out

    def decode(self, ids):
        return b"".join(self.tokens[i] for i in ids)
