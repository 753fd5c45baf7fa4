"""Reader and writer of WASTE containers, made from the description of the format alone."""

import json
import pathlib
import struct

import numpy as np

import experts
import groups
import numeric


def expert_shapes(config):
    """(rows, cols) of gate, up, down. OLMoE has no dense layers and calls its experts' rows
    intermediate_size."""
    mi = config.get("moe_intermediate_size") or config["intermediate_size"]
    width = config.get("routed_expert_hidden_size") or config["hidden_size"]
    return [(mi, width), (mi, width), (width, mi)]


class Container:
    """Weights of a container, dequantized: the same interface as checkpoint.Checkpoint.

    flush_subnormals reads subnormal codebook entries as zero, as the C engine does.
    """

    def __init__(self, folder, flush_subnormals=False):
        self.folder = pathlib.Path(folder)
        self.manifest = json.loads((self.folder / "manifest.json").read_text())
        if self.manifest.get("format_version") != 0:
            raise ValueError("format_version")
        self.config, self.prefix = self.manifest["config"], self.manifest["tensor_prefix"]
        q = self.manifest["expert_quant"]
        self.stages, self.index_bits = q["stages"], q.get("index_bits", 8)
        self.block, self.entries = q["index_block"], q["entries"]
        self.trunk = {t["name"]: t for t in self.manifest["trunk"]}
        self._check_trunk()
        self.books = self._codebooks(flush_subnormals)

    def _check_trunk(self):
        at = 0
        for t in sorted(self.trunk.values(), key=lambda t: t["name"].encode()):
            rows, cols = groups.shape_2d(t["shape"])
            payload = groups.payload_bytes(t["fmt"], rows, cols)
            size = payload
            if t["fmt"] in groups.CODES:
                size += 2 * rows * -(-cols // groups.GROUP)
                assert t["group"] == groups.GROUP and t["scale_off"] == at + payload, t
            assert t["off"] == at and t["bytes"] == size, t
            at += size
        assert (self.folder / "trunk.bin").stat().st_size == at

    def _codebooks(self, flush):
        data, size = (self.folder / "codebooks.bin").read_bytes(), 16 + 16 * self.entries
        books = []
        for i in range(len(data) // size):
            at = i * size
            magic, book_id, _, dim, n, zero = struct.unpack_from("<IHBBII", data, at)
            if magic:  # an all-zero filler record stands for an unused id
                want = (0x4B424357, i & 0xFFFF, 8, self.entries, 0)
                assert (magic, book_id, dim, n, zero) == want, f"codebook {i}"
            bits = np.frombuffer(data, np.uint16, 8 * self.entries, at + 16).reshape(-1, 8)
            if flush:
                bits = np.where(bits & 0x7C00, bits, 0).astype(np.uint16)
            books.append(numeric.f16_to_f32(bits))
        return books

    def has(self, name):
        return name in self.trunk

    def tensor(self, name):
        t = self.trunk[name]
        with open(self.folder / "trunk.bin", "rb") as f:
            f.seek(t["off"])
            return groups.dequantize(f.read(t["bytes"]), t["fmt"], t["shape"])

    def record(self, layer, e):
        """[(indices, scales)] of gate, up, down."""
        bank = self.manifest["layers"][str(layer)]
        size = bank["bytes"] // bank["experts"]
        with open(self.folder / bank["file"], "rb") as f:
            f.seek(e * size)
            data = f.read(size)
        shapes, base = expert_shapes(self.config), bank["codebook_base"]
        return experts.parse_record(
            data, layer, e, base, shapes, self.stages, self.index_bits, self.block
        )

    def books_of(self, layer, kind):
        base = self.manifest["layers"][str(layer)]["codebook_base"] + kind * self.stages
        return np.stack(self.books[base : base + self.stages])

    def expert(self, layer, e):
        """Reconstructed gate, up, down in f64 (products of f16 values; no rounding to f32)."""
        return tuple(
            experts.reconstruct(index, scale, self.books_of(layer, kind), np.float64)
            for kind, (index, scale) in enumerate(self.record(layer, e))
        )


def write_container(
    source, folder, fmt="VQ3R", trunk_bits=4, block=64, trunk_fmt=None, seed=0, entries=None
):
    """Converts a checkpoint.Checkpoint with a plain encoder (greedy residual k-means).

    trunk_fmt(name, shape) overrides the format of a trunk tensor by not returning None; entries
    those of a codebook.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    code, stages, most, index_bits = experts.FORMATS[fmt]
    entries = entries or most
    run, shapes = experts.run_bytes(stages, index_bits), expert_shapes(source.config)
    size = experts.record_bytes(shapes, run, block)
    count, random = source.config["num_experts"], numeric.Random(seed)
    layers, books = {}, []
    first = source.config.get("first_k_dense_replace", 0)
    for layer in range(first, source.config["num_hidden_layers"]):
        weights = [source.expert(layer, e) for e in range(count)]
        base, file = len(books), f"experts-L{layer}.bin"
        for kind in range(3):
            sample = np.concatenate([experts.normalize(w[kind])[1].reshape(-1, 8) for w in weights])
            books.extend(experts.fit_codebooks(sample[:4096], stages, entries, random))
        with open(folder / file, "wb") as f:
            for e, w in enumerate(weights):
                at = [books[base + k * stages : base + (k + 1) * stages] for k in range(3)]
                matrices = [experts.encode(w[k], at[k]) for k in range(3)]
                f.write(experts.record(layer, e, code, base, matrices, index_bits, block))
        layers[str(layer)] = {"file": file, "experts": count, "bytes": count * size,
                              "codebook_base": base}  # fmt: skip
    with open(folder / "codebooks.bin", "wb") as f:
        for i, book in enumerate(books):
            f.write(experts.codebook_record(i, code, numeric.f32_to_f16(book)))
    trunk = write_trunk(source, folder, trunk_bits, trunk_fmt or (lambda name, shape: None))
    manifest = {
        "format_version": 0,
        "arch": arch_of(source),
        "tensor_prefix": source.prefix,
        "config": container_config(source),
        "expert_quant": {"fmt": fmt, "stages": stages, "vec_dim": 8, "entries": entries,
                         "index_block": block, "index_bits": index_bits,
                         "bits_per_weight": stages * index_bits / 8},
        "layers": layers,
        "trunk": trunk,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def arch_of(source):
    if source.prefix:
        return "kimi-k3"
    name = source.config["architectures"][0]
    return "kimi-linear" if name.startswith("KimiLinear") else name


def container_config(source):
    outer = json.loads((source.folder / "config.json").read_text())
    if "text_config" not in outer:
        return outer
    text = outer.pop("text_config")
    return {**text, "_outer": outer}


def is_trunk(name):
    return ".experts." not in name and not name.endswith(("_packed", "_scale"))


def write_trunk(source, folder, bits, override):
    """trunk.bin in byte order of the names; returns the index."""
    index, at = [], 0
    with open(folder / "trunk.bin", "wb") as f:
        for name in sorted(filter(is_trunk, source.entries), key=str.encode):
            x = source.tensor(name)
            fmt = override(name, x.shape)
            fmt = groups.default_fmt(name, x.shape, bits) if fmt is None else fmt
            data = groups.quantize(x, fmt)
            entry = {"name": name, "fmt": fmt, "off": at, "shape": list(x.shape)}
            if fmt in groups.CODES:
                payload = groups.payload_bytes(fmt, *groups.shape_2d(x.shape))
                entry.update(group=groups.GROUP, scale_off=at + payload)
            entry["bytes"] = len(data)
            index.append(entry)
            f.write(data)
            at += len(data)
    return index
