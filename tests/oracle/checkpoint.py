"""Safetensors files and source checkpoints (config.json, shards, index)."""

import hashlib
import json
import pathlib
import struct

import numpy as np

import numeric

DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I8": np.int8, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "BF16": np.uint16,
}  # fmt: skip


def dtype_name(array):
    """Safetensors' name of a numpy dtype."""
    return next(k for k, v in DTYPES.items() if np.dtype(v) == array.dtype)


def write_safetensors(path, tensors, metadata=None):
    """Writes {name: array or (dtype name, array)}: u64 header length, JSON header padded with
    spaces to 8 bytes, then the data back to back, wide elements first (so each is aligned)."""
    header, blobs, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = {k: str(v) for k, v in metadata.items()}
    typed = {n: v if isinstance(v, tuple) else (dtype_name(v), v) for n, v in tensors.items()}
    for name, (kind, array) in sorted(
        typed.items(), key=lambda t: -np.dtype(DTYPES[t[1][0]]).itemsize
    ):
        blob = np.asarray(array, dtype=DTYPES[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(blob)]}  # fmt: skip
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(blobs)


def read_header(path):
    """({name: entry}, metadata, offset of the data)."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
    metadata = header.pop("__metadata__", {})
    return header, metadata, 8 + size


def read_tensor(path, entry, base):
    """The raw array of one header entry (BF16 as u16)."""
    begin, end = entry["data_offsets"]
    with open(path, "rb") as f:
        f.seek(base + begin)
        data = np.frombuffer(f.read(end - begin), dtype=DTYPES[entry["dtype"]])
    return data.reshape(entry["shape"])


def read_safetensors(path):
    """({name: raw array}, metadata)."""
    header, metadata, base = read_header(path)
    return {n: read_tensor(path, e, base) for n, e in header.items()}, metadata


class Checkpoint:
    """A model's source of weights: config (text part), tensor(name), expert(layer, e)."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        outer = json.loads((self.folder / "config.json").read_text())
        self.config = outer.get("text_config", outer)
        self.prefix = "language_model." if "text_config" in outer else ""
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        self.entries = {}
        for file in files:
            header, _, base = read_header(self.folder / file)
            for name, entry in header.items():
                self.entries[name] = (self.folder / file, entry, base)

    def raw(self, name):
        return read_tensor(*self.entries[name])

    def tensor(self, name):
        """f32 of `name` (with its prefix already in it)."""
        kind = self.entries[name][1]["dtype"]
        raw = self.raw(name)
        return numeric.bf16_to_f32(raw) if kind == "BF16" else raw.astype(np.float32)

    def has(self, name):
        return name in self.entries

    def expert(self, layer, e):
        """f32 gate [mi][W], up [mi][W], down [W][mi]: w1, w3, w2 of the source, or gate_proj, ..."""
        block, names = "block_sparse_moe", ("w1", "w3", "w2")
        if self.config.get("model_type") in ("olmoe", "qwen3_moe"):
            block, names = "mlp", ("gate_proj", "up_proj", "down_proj")
        stem = f"{self.prefix}model.layers.{layer}.{block}.experts.{e}."
        return tuple(self._matrix(stem + w) for w in names)

    def _matrix(self, stem):
        if self.has(stem + ".weight"):
            return self.tensor(stem + ".weight")
        packed, scale = self.raw(stem + ".weight_packed"), self.raw(stem + ".weight_scale")
        return numeric.mxfp4_decode(packed, scale)

    def digest(self):
        """sha256 over config.json and the shards in name order."""
        h = hashlib.sha256((self.folder / "config.json").read_bytes())
        for file in sorted({p for p, _, _ in self.entries.values()}):
            h.update(file.read_bytes())
        return h.hexdigest()
