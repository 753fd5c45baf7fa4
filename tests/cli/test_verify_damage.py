"""What `waste verify` says of each byte class of each file, in every format: exit code, error code and whole message.

Usage: test_verify_damage.py WASTE SOURCE_ROOT

Offsets come from the specification and the manifest, wanted and got values from the bytes, checksums from zlib.
"""
import json
import pathlib
import struct
import sys
import tempfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import check, print_passed, run  # noqa: E402

waste, root = sys.argv[1], pathlib.Path(sys.argv[2])
PHRASES = {
    "io": "input/output error", "not_found": "not found", "truncated": "truncated", "bad_magic": "wrong magic",
    "bad_version": "wrong version", "bad_json": "not valid JSON", "bad_field": "invalid value", "missing": "missing",
    "duplicate": "duplicate", "out_of_range": "out of range", "overflow": "size overflow", "mismatch": "mismatch",
    "checksum": "checksum mismatch", "unsupported": "unsupported", "shape": "shape mismatch"}
HEX = ("checksum", "bad_magic")
WIDTHS = {1: "<B", 2: "<H", 4: "<I"}
# Bytes 36 .. 39 are the crc32, which has its own row.
RECORD_HEADER = [
    # field, offset, bytes, bits flipped, error code
    ("magic", 0, 4, 0x01000000, "bad_magic"), ("layer", 4, 2, 0x100, "mismatch"), ("expert_id", 6, 2, 0x1, "mismatch"),
    ("fmt", 8, 1, 0x40, "mismatch"), ("flags", 9, 1, 0x80, "bad_field"), ("codebook_id", 10, 2, 0x8000, "mismatch"),
    ("lowrank_id", 12, 2, 0x1, "unsupported"), ("reserved0", 14, 2, 0x100, "bad_field"),
    ("rec_4k_blocks", 16, 4, 0x1, "mismatch"), ("gate_off", 20, 4, 0x40, "mismatch"),
    ("up_off", 24, 4, 0x80000000, "mismatch"), ("down_off", 28, 4, 0x1, "mismatch"),
    ("chan_corr_off", 32, 4, 0x10000, "mismatch"), ("reserved1", 40, 4, 0x1, "bad_field"),
    ("reserved1", 44, 4, 0x80000000, "bad_field")]
CODEBOOK_HEADER = [
    ("codebook magic", 0, 4, 0x80, "bad_magic"), ("codebook id", 4, 2, 0x100, "mismatch"),
    ("codebook fmt", 6, 1, 0x40, "mismatch"), ("codebook vec_dim", 7, 1, 0x8, "mismatch"),
    ("codebook entries", 8, 4, 0x10000, "mismatch"), ("codebook reserved", 12, 4, 0x1, "bad_field")]
INFINITY, NAN = 0x7c00, 0xfe01


def number(data, at, size):
    return struct.unpack_from(WIDTHS[size], data, at)[0]


def with_number(data, at, size, value):
    out = bytearray(data)
    struct.pack_into(WIDTHS[size], out, at, value)
    return bytes(out)


def flipped(data, at, bits=1):
    out = bytearray(data)
    out[at] ^= bits
    return bytes(out)


class Container:
    def __init__(self, folder):
        self.folder = folder
        self.files = {p.name: p.read_bytes() for p in folder.iterdir()}
        self.manifest = json.loads(self.files["manifest.json"])
        self.sums = json.loads(self.files["checksums.json"])

    def message(self, name, code, field, got=None, wanted=None, layer=None, expert=None, detail=""):
        where = f"expert {expert} of layer {layer}: " if expert is not None else f"layer {layer}: " if layer is not None else ""
        values = ""
        if got is not None:
            form = "#x" if code in HEX else "d"
            limit = "at most " if code == "out_of_range" and got > wanted else ""
            values = f", got {got:{form}}, wanted {limit}{wanted:{form}}"
        return f"{self.folder / name if name else self.folder}: {where}{field}: {PHRASES[code]}{values}{'; ' if detail else ''}{detail}"

    def verify(self, exit_code):
        return run(waste, "verify", self.folder, "-q", "--json", "-j", "1", code=exit_code)

    def findings(self, name, data):
        """Of the container with `data` as the file (None: without it, a function: what it makes)."""
        path = self.folder / name
        path.unlink()
        try:
            if callable(data):
                data(path)
            elif data is not None:
                path.write_bytes(data)
            report = json.loads(self.verify(2).stdout)
            check(not report["ok"] and report["findings_total"] == len(report["findings"]), f"all findings are listed: {name}")
            return [(f["code"], f["message"]) for f in report["findings"]]
        finally:
            if path.is_symlink():
                path.unlink()
            elif path.is_dir():
                path.rmdir()
            path.write_bytes(self.files[name])

    def expect(self, name, data, code, field, *args, **kwargs):
        got, wanted = self.findings(name, data), [(code, self.message(name, code, field, *args, **kwargs))]
        check(got == wanted, f"{name}: verify finds\n{got}\nwanted\n{wanted}")


def header_cases(c, name, at, table, where):
    """Each field of a header, its bits flipped; fields that must be zero are wanted so."""
    for field, offset, size, bits, code in table:
        was = number(c.files[name], at + offset, size)
        wanted = was if code in ("bad_magic", "mismatch") else 0
        data = with_number(c.files[name], at + offset, size, was ^ bits)
        c.expect(name, data, code, field, was ^ bits, wanted, **where)


def record_cases(c, name, layer, expert, substitute=False):
    data = c.files[name]
    where = {"layer": layer, "expert": expert}
    size = len(data) // 24
    at = expert * size
    gate, up, down, scales = struct.unpack_from("<4I", data, at + 20)
    inter, width = 160, 128
    end = scales + 2 * (2 * inter + width)
    stored = number(data, at + 36, 4)
    check(zlib.crc32(data[at + 48 : at + end]) == stored, "the crc32 covers indices and scales")
    header_cases(c, name, at, RECORD_HEADER, where)
    c.expect(name, with_number(data, at + 36, 4, stored ^ 1), "checksum", "crc32", stored, stored ^ 1, **where)
    # Any byte of the payload: the first and last of each section.
    for offset in (48, gate, up - 1, up, down - 1, down, scales - 1, scales, end - 1):
        bad = flipped(data, at + offset, 0x10)
        c.expect(name, bad, "checksum", "crc32", zlib.crc32(bad[at + 48 : at + end]), stored, **where)

    def mended(bad):
        return with_number(bad, at + 36, 4, zlib.crc32(bad[at + 48 : at + end]))

    for kind, first, last in (("gate", 0, inter - 1), ("up", inter, 2 * inter - 1), ("down", 2 * inter, 2 * inter + width - 1)):
        for row, bits in ((first, INFINITY), (last, NAN)):
            bad = mended(with_number(data, at + scales + 2 * row, 2, bits))
            c.expect(name, bad, "bad_field", f"{kind} scale is not finite", **where)
    # Rows 160 .. 191 of the last block of 64 are padding in gate and up; down has 128 rows.
    for kind, section_end in (("gate", up), ("up", down)):
        c.expect(name, mended(flipped(data, at + section_end - 1)), "bad_field", f"{kind} index padding", **where)
    for offset in (end, size - 1):
        c.expect(name, flipped(data, at + offset), "bad_field", "record padding", **where)
    if substitute:
        c.expect(name, flipped(data, at + 9, 4), "bad_field", "flags", 4, 0, **where)
        return
    c.expect(name, flipped(data, at + 9, 1), "unsupported", "flags (bf16 payload)", 1 | data[at + 9], 0, **where)
    (c.folder / name).write_bytes(flipped(data, at + 9, 4))
    check(json.loads(c.verify(0).stdout)["ok"], "the hot hint is no damage")
    (c.folder / name).write_bytes(data)


def size_cases(c, name, **where):  # where: layer, of a bank
    data = c.files[name]
    c.expect(name, data[:-1], "truncated", "file size", len(data) - 1, len(data), **where)
    c.expect(name, b"", "truncated", "file size", 0, len(data), **where)
    c.expect(name, data + b"\0", "mismatch", "file size", len(data) + 1, len(data), **where)


def codebook_cases(c, name, crcs, ident):
    data = c.files[name]
    size = len(data) // len(crcs)
    at = ident * size
    where = {"detail": f"codebook {ident}"}
    header_cases(c, name, at, CODEBOOK_HEADER, where)
    for offset, bits in ((16, INFINITY), (size - 2, NAN)):
        c.expect(name, with_number(data, at + offset, 2, bits), "bad_field", "codebook entry is not finite", **where)
    for offset in (16, size - 2):
        bad = flipped(data, at + offset)
        c.expect(name, bad, "checksum", "crc32", zlib.crc32(bad[at : at + size]), crcs[ident], **where)


def trunk_cases(c):
    name, data = "trunk.bin", c.files["trunk.bin"]
    formats = set()
    for t in c.manifest["trunk"]:
        cols = t["shape"][-1]
        key = (t["fmt"], cols % 128 != 0)
        if key in formats:
            continue
        formats.add(key)
        begin, end, where = t["off"], t["off"] + t["bytes"], {"detail": t["name"]}
        if t["fmt"] == 0:
            for at, bits in ((begin, 0x7f800000), (end - 4, 0xffc00001)):
                c.expect(name, with_number(data, at, 4, bits), "bad_field", "trunk element is not finite", **where)
        else:
            for at, bits in ((t["scale_off"], INFINITY), (end - 2, NAN)):
                c.expect(name, with_number(data, at, 2, bits), "bad_field", "trunk scale is not finite", **where)
        # The lowest bit of the first element and of the last, or of its scale, stays finite.
        for at in (begin, end - 4 if t["fmt"] == 0 else end - 2):
            bad = flipped(data, at)
            c.expect(name, bad, "checksum", "crc32", zlib.crc32(bad[begin:end]), c.sums["trunk"][t["name"]], **where)
        if key[1] and t["fmt"] in (2, 3):
            row_end = begin + (-(-cols // 128) * 128) * (1 if t["fmt"] == 2 else 0.5)
            c.expect(name, flipped(data, int(row_end) - 1), "bad_field", "trunk padding code", **where)
    check({f for f, _ in formats} >= {0, 2, 3}, f"F32, Q8G and Q4G are there: {formats}")
    size_cases(c, name)


def absent_cases(c, name):
    c.expect(name, None, "not_found", "open", detail="No such file or directory")
    c.expect(name, lambda path: path.mkdir(), "bad_field", "file type", detail="wanted a regular file")
    c.expect(name, lambda path: path.symlink_to(name), "io", "open", detail="Too many levels of symbolic links")


def without(tree, *path):
    at = tree
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]


def with_value(tree, value, *path):
    at = tree
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value


def manifest_cases(c):
    name, text = "manifest.json", c.files["manifest.json"].decode()
    config, quant, trunk = c.manifest["config"], c.manifest["expert_quant"], c.manifest["trunk"]
    first, norm = trunk[0], trunk[2]
    check(first["name"].endswith("lm_head.weight") and norm["fmt"] == 0, "the first tensors are those expected")

    def changed(value, *path):
        tree = json.loads(text)
        with_value(tree, value, *path)
        return json.dumps(tree).encode()

    def expect(value, path, code, field, *args, **kwargs):
        c.expect(name, changed(value, *path), code, field, *args, **kwargs)

    # A member that is gone, or of another type: every one of the format.
    members = [("format_version",), ("arch",), ("tensor_prefix",), ("config",), ("expert_quant",), ("layers",), ("trunk",)]
    for path in members[1:]:
        tree = json.loads(text)
        without(tree, *path)
        c.expect(name, json.dumps(tree).encode(), "missing", path[0])
        wanted = {"arch": "a string", "tensor_prefix": "a string", "trunk": "an array"}.get(path[0], "an object")
        expect(1, path, "bad_field", path[0], detail=f"wanted {wanted}, got an integer")
    expect(1, ("format_version",), "bad_version", "format_version", 1, 0)
    for value, said in (("0", "a string"), (None, "null"), (0.5, "a number with fraction or exponent")):
        expect(value, ("format_version",), "bad_version", "format_version", detail=f"wanted 0, got {said}")
    for key in ("fmt", "stages", "vec_dim", "entries", "index_block"):
        tree = json.loads(text)
        without(tree, "expert_quant", key)
        c.expect(name, json.dumps(tree).encode(), "missing", f"expert_quant.{key}")
    for key in ("file", "experts", "bytes", "codebook_base"):
        tree = json.loads(text)
        without(tree, "layers", "3", key)
        c.expect(name, json.dumps(tree).encode(), "missing", f"layers.{key}", layer=3)
    for key in ("fmt", "off", "shape", "group", "scale_off", "bytes"):
        tree = json.loads(text)
        without(tree, "trunk", 0, key)
        c.expect(name, json.dumps(tree).encode(), "missing", f"trunk.{key}", detail=first["name"])

    # Values.
    eq, sizes = {"detail": "expert_quant"}, c.manifest["layers"]["3"]
    expect(9, ("expert_quant", "vec_dim"), "unsupported", "vec_dim", 9, 8, **eq)
    most = 1 << quant["index_bits"]
    expect(most + 1, ("expert_quant", "entries"), "out_of_range", "entries", most + 1, most, **eq)
    expect(32, ("expert_quant", "index_block"), "unsupported", "index_block", 32, 64, **eq)
    expect("VQ5", ("expert_quant", "fmt"), "unsupported", "expert_quant.fmt", detail='"VQ5", wanted VQ3R, VQ2R or VQ4P')
    at3 = {"layer": 3}
    expect("../x", ("layers", "3", "file"), "bad_field", "layers.file", **at3,
           detail='"../x", wanted a file name inside the container')
    expect(25, ("layers", "3", "experts"), "mismatch", "layers.experts", 25, 24, **at3)
    expect(sizes["bytes"] + 1, ("layers", "3", "bytes"), "mismatch", "layers.bytes", sizes["bytes"] + 1, sizes["bytes"], **at3,
           detail=f"24 records of {sizes['bytes'] // 24} bytes")
    of_first, of_norm = {"detail": first["name"]}, {"detail": norm["name"]}
    expect(64, ("trunk", 0, "group"), "unsupported", "trunk.group", 64, 128, **of_first)
    for key in ("scale_off", "bytes"):
        expect(first[key] + 1, ("trunk", 0, key), "mismatch", f"trunk.{key}", first[key] + 1, first[key], **of_first)
    expect([norm["shape"][0] - 1], ("trunk", 2, "shape"), "mismatch", "trunk.bytes", norm["bytes"], norm["bytes"] - 4, **of_norm)
    expect(9, ("trunk", 2, "fmt"), "unsupported", "trunk.fmt",
           detail=f"{norm['name']}: 9, wanted 0 (F32), 1 (F16), 2 (Q8G), 3 (Q4G) or 7 (Q3G)")
    after = trunk[3]
    expect(norm["off"] + 1, ("trunk", 2, "off"), "mismatch", "trunk.off", after["off"], after["off"] + 1,
           detail=f"{after['name']} overlaps the tensor before it")
    expect("x", ("trunk", 0, "name"), "missing", "trunk", **of_first)

    # The config: numbers, booleans by value, what is not implemented by name.
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    expect(vocab + 1, ("config", "vocab_size"), "shape", "trunk.shape", vocab * hidden, (vocab + 1) * hidden,
           detail=trunk[1]["name"])
    expect(-1, ("config", "hidden_size"), "bad_field", "hidden_size",
           detail="wanted a non-negative integer, got a negative integer")
    expect(161, ("config", "moe_intermediate_size"), "bad_field", "moe_intermediate_size", 161, 168)
    expect(25, ("config", "num_experts"), "mismatch", "layers.experts", 24, 25, layer=1)
    expect(1, ("config", "moe_renormalize"), "bad_field", "moe_renormalize", detail="wanted true or false, got an integer")
    expect(False, ("config", "mla_use_nope"), "unsupported", "mla_use_nope",
           detail="false or absent means rotary attention, wanted true")
    expect(True, ("config", "tie_word_embeddings"), "unsupported", "tie_word_embeddings", detail="true, wanted false")
    expect(2, ("config", "num_expert_group"), "unsupported", "num_expert_group", 2, 1)
    expect("softmax", ("config", "moe_router_activation_func"), "unsupported", "moe_router_activation_func",
           detail='"softmax", wanted sigmoid')
    expect("gelu", ("config", "hidden_act"), "unsupported", "hidden_act", detail='"gelu", wanted silu or situ')
    expect("1", ("config", "rms_norm_eps"), "bad_field", "rms_norm_eps", detail="wanted a number, got a string")

    # The text.
    lines = text.count("\n") + 1
    column = len(text.rsplit("\n", 1)[-1])
    for bad, field, detail in (
        (text + "x", "trailing bytes", f"line {lines}, column {column + 1}"),
        ("\ufeff" + text, "byte-order mark", "line 1, column 1"),
        ('{"z":' + 70 * "[" + 70 * "]" + "," + text[1:], "depth", "line 1, column 69: deeper than 64"),
    ):
        c.expect(name, bad.encode(), "bad_json", field, detail=detail)
    # What a parser cannot tell from right: the sum.
    for key, value in (("num_experts_per_token", 3), ("moe_renormalize", False), ("attn_res_block_size", 2)):
        bad = changed(value, "config", key)
        c.expect(name, bad, "checksum", "crc32", zlib.crc32(bad), c.sums["files"][name], detail="checksums.json")
    # Without a manifest there is nothing to check.
    (c.folder / name).unlink()
    said = c.verify(1).stderr
    check(said == f"waste: {c.message(name, 'not_found', 'open', detail='No such file or directory')}\n", f"no manifest: {said}")
    (c.folder / name).write_bytes(c.files[name])


def sum_cases(c):
    name = "checksums.json"
    for path, of, where in (
        (("trunk", "language_model.lm_head.weight"), "trunk.bin", {"detail": "language_model.lm_head.weight"}),
        (("codebooks", 3), "codebooks.bin", {"detail": "codebook 3"}),
        (("files", "tokenizer.model"), "tokenizer.model", {"detail": name}),
        (("files", "specials.json"), "specials.json", {"detail": name}),
    ):
        tree = json.loads(c.files[name])
        was = tree[path[0]][path[1]]
        with_value(tree, was ^ 1, *path)
        got, wanted = c.findings(name, json.dumps(tree).encode()), c.message(of, "checksum", "crc32", was, was ^ 1, **where)
        check(got == [("checksum", wanted)], f"{path}: {got}, wanted {wanted}")
    for side in ("tokenizer.model", "specials.json"):
        bad = flipped(c.files[side], 5)
        c.expect(side, bad, "checksum", "crc32", zlib.crc32(bad), c.sums["files"][side], detail=name)
        c.expect(side, None, "not_found", "open", detail="No such file or directory")


def main():
    with tempfile.TemporaryDirectory(prefix="waste-verify-") as scratch:
        all_formats(pathlib.Path(scratch))
    print_passed()


def all_formats(scratch):
    for form, more in (("vq2r", ["--substitutes"]), ("vq3r", []), ("vq4p", [])):
        folder = scratch / form
        run(waste, "convert", root / "examples/tiny_k3/checkpoint", folder, "--format", form, "--effort", "fast", "-q", *more)
        c = Container(folder)
        check(json.loads(c.verify(0).stdout)["ok"], f"{form} is whole")
        record_cases(c, "experts-L3.bin", 3, 7)
        size_cases(c, "experts-L3.bin", layer=3)
        absent_cases(c, "experts-L3.bin")
        codebook_cases(c, "codebooks.bin", c.sums["codebooks"], 5)
        absent_cases(c, "codebooks.bin")
        trunk_cases(c)
        absent_cases(c, "trunk.bin")
        manifest_cases(c)
        sum_cases(c)
        if more:
            record_cases(c, "subs-L3.bin", 3, 7, substitute=True)
            size_cases(c, "subs-L3.bin", layer=3)
            codebook_cases(c, "subs-codebooks.bin", c.sums["substitute_codebooks"], 4)
        else:
            bad = flipped(c.files["experts-L3.bin"], 9, 2)
            wanted = c.message("", "missing", "substitutes", layer=3, detail="records say that there are some")
            check(c.findings("experts-L3.bin", bad) == [("missing", wanted)], "a promise of substitutes that are not there")


if __name__ == "__main__":
    main()
