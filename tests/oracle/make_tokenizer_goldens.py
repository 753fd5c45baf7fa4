"""Writes tests/data/tokenizer/: a small multi-script vocabulary and what tiktoken makes of many texts.

Needs tiktoken 0.14 (its pattern engine knows Unicode 16). Run from anywhere:

    python tests/oracle/make_tokenizer_goldens.py

tiktoken is the independent implementation: pieces come from its own pattern engine (the pattern anchored at
the start, applied again and again to the rest of the text), classes of code points from patterns of one class.
"""

import base64
import json
import zlib
from collections import Counter
from pathlib import Path

import tiktoken

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "tokenizer"
TINY = ROOT / "examples" / "tiny_k3" / "checkpoint" / "tiktoken.model"
MAX_MODEL_BYTES = 60_000

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LEAD, SUFFIX = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    LEAD + UPPER + "*" + LOWER + "+" + SUFFIX,
    LEAD + UPPER + "+" + LOWER + "*" + SUFFIX,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])  # fmt: skip
CLASSES = {"han": r"\p{Han}", "upper": UPPER, "lower": LOWER, "letter": r"\p{L}", "number": r"\p{N}", "space": r"\s"}
SPECIALS = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>", "<|média|>", "<|>"]
BYTES = {bytes([b]): b for b in range(256)}


def encoding(pattern, ranks, specials=()):
    return tiktoken.Encoding("golden", pat_str=pattern, mergeable_ranks=ranks,
                             special_tokens={s: len(ranks) + i for i, s in enumerate(specials)})  # fmt: skip


FIRST = encoding(r"\A(?:" + PATTERN + ")", BYTES)


def pieces(text):
    """Byte lengths of the pieces of text."""
    out, rest = [], text.encode()
    while rest:
        out.append(len(FIRST.encode_ordinary(rest.decode())))
        assert out[-1] > 0
        rest = rest[out[-1] :]
    return out


def read_ranks(path):
    return {base64.b64decode(a): int(b) for a, b in (line.split() for line in path.read_text().splitlines())}


def train(texts):
    """Ranks of a byte-pair vocabulary of the texts' pieces, as many as fit MAX_MODEL_BYTES."""
    words = Counter()
    for text in texts:
        raw, at = text.encode(), 0
        for n in pieces(text):
            words[raw[at : at + n]] += 1
            at += n
    ranks, split = dict(BYTES), {w: [bytes([b]) for b in w] for w in words}
    total = sum(len(base64.b64encode(t)) + 5 for t in ranks)
    while True:
        pairs = Counter()
        for word, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        if not pairs:
            return ranks
        a, b = min(pairs, key=lambda p: (-pairs[p], p))
        total += len(base64.b64encode(a + b)) + 6
        if total > MAX_MODEL_BYTES:
            return ranks
        ranks.setdefault(a + b, len(ranks))
        for parts in split.values():
            i = 0
            while i + 1 < len(parts):
                if parts[i] == a and parts[i + 1] == b:
                    parts[i : i + 2] = [a + b]
                i += 1


def tricky():
    """(name, text) of cases that implementations get wrong."""
    def case(name, *texts):
        return [(name, t) for t in texts]

    return [
        *case("camel case", "CamelCase", "camelCase", "getHTTPResponseCode", "XMLHttpRequest", "HTMLElement", "iPhone", "McDonald",
              "ABCdefGHI", "aB", "Ab", "AB", "ABc", "aBC", "ÀÉÎõü", "ÄÖÜäöü", "ΑΒΓαβγ", "ЖЗИжзи", "ԱԲԳաբգ", "ᲐᲑაბ", "𐐀𐐁𐐨𐐩",
              "ǅungla", "aǅb", "ǄǅǆǇǈǉ", "ʰAʰbʰ", "AªBºc", "ªA", "AAAAªAAAA", "AªAªAªA", "ꟲA", "nˈA", "ˈhˌA", "ABCʼD"),
        *case("contractions", "I'm you're he's we've they'll I'd can't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D CAN'T", "It'S it'ſ", "'ſ", "aſ'ſx",
              "a's", "a'S", "a'sx", "A's", "Ça's", "中's", "中文'll", "1's", "'s", " 's", "''s", "a''s", "a'rexyz", "a'RE", "a'Re've", "a'l", "a'll'll",
              "a’s", "don’t", "x'D'd'T't", "é'm", "か's", "한글's", "l'l'll", "o'veS", "K's", "\u212a's", "s'\u212a", "'\u017f'\u017f"),
        *case("digits", "1", "12", "123", "1234", "1234567890", "3.14159", "1,000,000", "0x1F", "1e10", " 123", "  1", "a1b22c333d4444", "١٢٣٤٥٦٧", "۱۲۳۴۵",
              "१२३४५", "১২৩৪", "௧௨௩௰௱௲", "๑๒๓๔", "１２３４５", "²³¹⁴⁵", "½¾⅓⅔", "ⅠⅡⅢⅣⅤ", "①②③④⑤", "㊀㊁㊂", "〇〇〇〇", "〇1", "1〇", "〡〢〣〤", "𝟎𝟏𝟐𝟑𝟒",
              "𐄇𐄈𐄉", "1१٣๔", "٣a", "12٣٤5", "𞥐𞥑𞥒𞥓", "፩፪፫፬", "ↀↁↂ", "1²3", "4½", "౦౧౨౩", "〸〹〺1"),
        *case("ipa", "ˈhjuːmən", "həˈləʊ wɜːld", "[ˈtʰɛst]", "/t͡ʃɜːt͡ʃ/", "ʔ", "ˌɪntəˈnæʃənəl", "ǃxóõ", "ʘǀǁǂ", "ɬ͡ɮ", "a˥˩", "ə˞", "nʲ nʷ nˠ nˤ"),
        *case("full width", "ＡＢＣ", "ａｂｃ", "ＡｂＣｄ", "ｆｕｌｌ　ｗｉｄｔｈ", "！＂＃＄％", "（全角）", "ｱｲｳｴｵ", "ﾊﾟﾋﾟ", "￥１００", "＇ｓ", "Ａ's"),
        *case("emoji", "😀", "😀😀😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "🇫🇷🇯🇵🇩🇪", "1️⃣", "☺️", "a😀b", "A😀B", " 😀 ", "❤️‍🔥", "🧑🏿‍🚀", "😀\n\n😀", "👩🏽‍❤️‍💋‍👨🏻",
              "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "©®™", "😀123", "\u200d\u200d", "\ufe0f", "a\ufe0fb"),
        *case("combining marks", "e\u0301", "a\u0300\u0301\u0302\u0303\u0304b", "\u0301a", "\u0301", "1\u0301", "1\u0301a", " \u0301a", "A\u0301B\u0301", "A\u030aa\u030a",
              "!\u0301", "中\u0301", "か\u3099", "\u0301\u0301\u0301", "क्षि", "\u0e31\u0e32", "\u20d0\u20dd", "x\u20dd", "\n\u0301a", "\t\u0301a", "\u0301\u0301A", "'\u0301s",
              "Z\u0351\u036b\u0343a\u036c\u0343l\u0342\u0363g\u0311\u0357o\u0365\u0346", "a\u0301's"),
        *case("han mixes", "中文", "中文English", "English中文", "中English文", "中1文", "中，文", "漢字かな", "漢字カナ漢字", "お茶を飲む", "時々刻々", "々々", "〆切", "ヶ月", "〻", "大韓民國", "한漢글字",
              "ㄅㄆ中", "中ー文", "カー", "ー", "㍿", "㋿㌀", "⺀⺁⼀⼁", "豈更", "𠀀𠀁𠀂", "中\u3000文", "、。", "「漢字」", "・", "㐀㐁", "中a文A字", "A中a", "ａ中", "\U00016ff0\U00016ff1中",
              "中\U00016fe2文", "\U00016fe3a", "a\U00016ff0b", "〇一二", "\u3006a", "\u30fc\u4e00"),
        *case("whitespace", " ", "  ", "   ", "\t", "\t\t", " \t ", "a b", "a  b", "a   b", " a", "  a", "   a", "a ", "a  ", "\ta", "\t\ta", " \ta", "a\tb", "a\u00a0b", "a\u00a0\u00a0b",
              "\u3000\u3000a", "a\u2003b", "a\u2028b", "a\u2029\u2029b", "a\u0085b", "\u0085", "a\u0085\u0085b", "a\x0bb", "a\x0cb", "\x0b\x0c", "a\u180eb", "\u180e", " \u180e ", "a\u180e\u180eb",
              "a\u200bb", " \u200b ", "\ufeffa", "\u1680\u1680x", "\u205f \u202f", "a \u3000 b", "\x1c\x1d\x1e\x1f", "a\x1cb", "1 2  3   4", "!  !", ".   \n", "    return x", "\u2007\u2060a", "a     1"),
        *case("line ends", "\n", "\r", "\r\n", "\n\n", "\r\n\r\n", "a\n", "a\nb", "a\r\nb", "a \nb", "a \n b", "a\n b", "a\n  b", "\n a", " \n", " \n ", "  \n  \n  x", "\t\n\t", "a.\n", "a.\n\nb", "a!\r\n\r\nb",
              "\n\n\n   \n", "x\n\n\n\n   y", "\u2028\n", "\u0085\n", "\n\u0085a", "{\n    }\n", "a,\n\tb", "...\n\n\n...", " ...\r\r x", "a\r b", "\r\r\n\n\ra", "\u3000\n\u3000", "1\n2\r\n3", "中\n文\n"),
        *case("control", "\x00", "a\x00b", "\x00\x00\x00", "\x01\x02\x03", "\x7f", "\x1b[31mred\x1b[0m", "a\x08b", " \x00 ", "\x00\n\x00", "\x80\x81\x9f", "\u00ad", "co\u00adop", "\ufffe\uffff", "\ufdd0",
              "\U0010ffff", "\ue000\uf8ff", "\U000f0000a", "\u2066a\u2069", "\u200ea\u200f", "\u0000A's"),
        *case("punctuation", "!", "!!", "!!!", "...", "…", "--", "—", "a-b", "a--b", "(a)", "((a))", "[a]{b}", "\"a\"", "“a”", "«a»", "a/b", "a\\b", "@a", "#a", "$1", "%d", "^", "&a;", "*a*", "_a_", "__a__", "~", "`a`",
              "<a>", "a=b", "a==b", "a!=b", "a+=1", "->", "=>", "::", ":a", " !", " !a", "  !a", " (a", " _a", "!a", "!A", "!1", "! a", "a!b!c", "€100", "£a", "¥a", "°C", "§1", "¶a", "·", "a·b", "×", "$A'S", "_A", "_Ab", "_aB"),
        *case("long", "a" * 40, "A" * 40, "ab" * 200, "Ab" * 100, "1" * 50, "!" * 70, " " * 70, "\n" * 70, "中" * 70, "é" * 70, "e\u0301" * 50, "😀" * 30, "\t" * 33 + "x", " " * 65 + "x", "=" * 129, "pneumonoultramicroscopicsilicovolcanoconiosis",
              "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft", "aA" * 60, "ªA" * 60, "\u0301A" * 60, "the" * 50, "lordlordlord" * 9, "LORD" * 20, " the" * 40, "人人生而自由" * 12),
        *case("later unicode", "\U00010d50\U00010d70", "\U00010d40\U00010d41\U00010d42\U00010d43", "\U00031350\U00031351", "中\U0002ebf0文", "\U0002b739", "\u1c89\u1c8a", "\ua7cb\ua7cd", "\ua7da\ua7db\ua7dc",
              "\U000105c0\U000105d2", "a\u0897b", "\u0897", "\U00011f02\U00011f00", "\U00011f50\U00011f51\U00011f52\U00011f53", "\U0001e4d0\U0001e4ec", "\U0001e5f1a", "\U0001ccf0\U0001ccf1",
              "\U00016d40A\U00016d70", "\U00013441\U00013440", "\U0001fae8\U0001fae9", "\u0cf3A", "\U0001e030a", "\U0001df25A", "\u2ffc\u31ef", "\U0001e08fA", "\U000113c2\U00011380"),
        *case("specials as text", "<|open|>", "<|open|>message role=\"user\"<|sep|>", "a<|end_of_msg|>b", "[BOS]", "[EOS]x"),
    ]  # fmt: skip


ALPHABET = ("aAbBsStTdDmMlLrReEvVzZ  '’\n\r\t.,!-_(1290²½ªºʰˈ\u0301\u0300\u0e31\u20dd\u00a0\u3000\u0085\u180e\u200b\u200d\ufeff\x00\x1f\u2028"
            "éÉßſ\u212aǅαΑжЖაᲐאبابक्षกกาか゛カー々〇〆中文漢한ㅋ㊀①Ⅷ٣५１ａＡ，。、😀🏽🇫\ufe0f𐐀𐐨𝟏𠀀𒀀𓀀\U00010d50\U00010d70\U00010d40\U00031350\U00011f00\U0001e030\u0897\U00016ff0\ue000\U0010ffff")  # fmt: skip


class SplitMix64:
    def __init__(self, seed):
        self.state = seed

    def __call__(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)


def random_text(random):
    """1 to 24 characters of the alphabet; a character repeats with 1 chance in 4."""
    out = []
    for _ in range(1 + random() % 24):
        out.append(out[-1] if out and random() % 4 == 0 else ALPHABET[random() % len(ALPHABET)])
    return "".join(out)


def crc(numbers):
    return zlib.crc32(b"".join(n.to_bytes(4, "little") for n in numbers))


def random_blocks(tiny, multi, blocks=160, each=64):
    out = []
    for seed in range(blocks):
        random, cut, ids_tiny, ids_multi = SplitMix64(seed), [], [], []
        for _ in range(each):
            text = random_text(random)
            cut += pieces(text)
            ids_tiny += tiny.encode_ordinary(text)
            ids_multi += multi.encode_ordinary(text)
        out.append([crc(cut), crc(ids_tiny), crc(ids_multi)])
    return {"alphabet": ALPHABET, "each": each, "crc32_of_pieces_tiny_multi": out}


def long_texts(multi):
    """Texts beyond the cut at 400,000 characters, as unit and repetitions."""
    cases = [("a", 400_000), ("a", 400_001), ("a", 1_000_000), ("é", 900_001), ("ab ", 300_000), ("中", 500_000), ("😀x", 300_000),
             ("1", 800_002), (" ", 600_000), ("\n", 600_001), ("aª", 400_003), ("AªA", 300_000), ("!", 401_000), ("e\u0301", 350_000),
             ("the LORD ", 100_000), ("abcdefghi<|open|>", 60_000)]  # fmt: skip
    out = []
    for unit, times in cases:
        text, ids = unit * times, []
        for at in range(0, len(text), 400_000):
            ids += multi.encode(text[at : at + 400_000], allowed_special="all")
        out.append({"unit": unit, "times": times, "count": len(ids), "crc32": crc(ids)})
    return out


def markup(multi):
    texts = ["<|open|>", "<|open|><|close|>", "a<|open|>b", " <|open|> ", "<|open|>message role=\"user\"<|sep|>Hi there.<|close|>message<|sep|><|end_of_msg|>",
             "[BOS]In the beginning[EOS]", "[BOS][BOS]", "<|open", "|open|>", "<<|open|>>", "<|<|open|>", "<|média|>", "<|m\u00e9dia|>é", "<|>", "<|>|>", "<||>", "<|open|>  \n<|sep|>",
             "x  <|sep|>y", "x \n <|sep|> \n y", "it<|sep|>'s", "A<|sep|>b", "12<|sep|>34", "中<|sep|>文", "[BOS", "[EO<|>S]", "<|end_of_msg|", "e<|sep|>\u0301", "no specials at all"]  # fmt: skip
    return [{"text": t, "plain": multi.encode_ordinary(t), "markup": multi.encode(t, allowed_special="all")} for t in texts]


def ranges(text):
    """[first, last, first, last, ...] of the code points in an ascending text."""
    out = []
    for point in map(ord, text):
        if out and out[-1] == point - 1:
            out[-1] = point
        else:
            out += [point, point]
    return out


def write(name, value, rows=None):
    """One JSON file; the list under key `rows` gets a line per element."""
    compact = {"ensure_ascii": True, "separators": (",", ":")}
    if rows is None:
        text = json.dumps(value, **compact)
    else:
        head = {k: v for k, v in value.items() if k != rows}
        body = ",\n".join(json.dumps(v, **compact) for v in value[rows])
        text = json.dumps(head, **compact)[:-1] + f',"{rows}":[\n{body}\n]}}'
    (DATA / name).write_text(text + "\n")
    print(f"{name}: {len(text):,} bytes")


def main():
    corpus = [line.split("\t", 1) for line in (DATA / "corpus.txt").read_text().splitlines()]
    ranks = train([text for _, text in corpus])
    model = DATA / "multi.model"
    model.write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
    print(f"multi.model: {len(ranks)} ranks, {model.stat().st_size:,} bytes")
    tiny, multi = encoding(PATTERN, read_ranks(TINY)), encoding(PATTERN, read_ranks(model), SPECIALS)

    strings = []
    for name, text in [*map(tuple, corpus), *tricky()]:
        strings.append({"name": name, "text": text, "pieces": pieces(text),
                        "tiny": tiny.encode_ordinary(text), "multi": multi.encode_ordinary(text)})  # fmt: skip
        assert sum(strings[-1]["pieces"]) == len(text.encode())
        assert multi.decode(strings[-1]["multi"]) == text
    print(f"{len(strings)} strings, {len({n for n, _ in corpus})} names in the corpus")
    sums = {"tiny_crc32": zlib.crc32(TINY.read_bytes()), "multi_crc32": zlib.crc32(model.read_bytes())}
    write("strings.json", {**sums, "tiktoken": tiktoken.__version__, "strings": strings}, "strings")
    write("markup.json", {"specials": SPECIALS, "texts": markup(multi)}, "texts")
    write("long.json", {"specials": SPECIALS, "texts": long_texts(multi)}, "texts")
    write("random.json", random_blocks(tiny, multi), "crc32_of_pieces_tiny_multi")

    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    write("classes.json", {n: ranges(bytes(encoding(p, BYTES).encode_ordinary(every)).decode()) for n, p in CLASSES.items()})


if __name__ == "__main__":
    main()
