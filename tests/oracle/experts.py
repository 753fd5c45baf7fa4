"""Expert records, codebook records and residual VQ (docs/format.md)."""

import struct
import zlib

import numpy as np

import numeric

PAGE, HEADER = 4096, 48
KINDS = ("gate", "up", "down")
# name: (fmt byte, stages, entries, index_bits)
FORMATS = {"VQ3R": (4, 3, 256, 8), "VQ2R": (5, 2, 256, 8), "VQ4P": (8, 4, 64, 6)}
EXPERT_HEADER = "<IHHBBHHHIIIIIIII"


def run_bytes(stages, index_bits):
    """Bytes of one (row, position): one per stage, or 3 for the packed 4 x 6 bits."""
    return stages if index_bits == 8 else 3


def pack_run(index, index_bits):
    """u8 [..][run] of indices [..][stages]."""
    if index_bits == 8:
        return index.astype(np.uint8)
    word = (index.astype(np.int64) << (6 * np.arange(4))).sum(axis=-1)
    return np.stack([word & 255, word >> 8 & 255, word >> 16], axis=-1).astype(np.uint8)


def unpack_run(run, index_bits):
    """i64 [..][stages] of u8 [..][run]."""
    if index_bits == 8:
        return run.astype(np.int64)
    word = run.astype(np.int64) @ np.array([1, 1 << 8, 1 << 16])
    return word[..., None] >> (6 * np.arange(4)) & 63


def layout(index, index_bits, block):
    """u8 [bytes] of indices [M][nv][stages]: run of (r, v) at (((r/B)*nv + v)*B + r%B) * run, rows
    padded to a multiple of B with zero bytes; block 0: (r*nv + v) * run, no padding."""
    runs = pack_run(index, index_bits)
    if block == 0:
        return runs.reshape(-1)
    rows, nv, run = runs.shape
    padded = np.zeros((-(-rows // block) * block, nv, run), np.uint8)
    padded[:rows] = runs
    return padded.reshape(-1, block, nv, run).transpose(0, 2, 1, 3).reshape(-1)


def unlayout(data, rows, nv, run, index_bits, block):
    """Indices [rows][nv][stages], the inverse of layout()."""
    runs = np.frombuffer(data, np.uint8)
    if block == 0:
        return unpack_run(runs.reshape(rows, nv, run), index_bits)
    runs = runs.reshape(-1, nv, block, run).transpose(0, 2, 1, 3).reshape(-1, nv, run)[:rows]
    return unpack_run(runs, index_bits)


def index_bytes(rows, cols, run, block):
    padded = rows if block == 0 else -(-rows // block) * block
    return padded * (cols // 8) * run


def record_bytes(shapes, run, block):
    """Size of a record of three (rows, cols) shapes, a multiple of 4096."""
    size = HEADER + sum(index_bytes(m, n, run, block) + 2 * m for m, n in shapes)
    return -(-size // PAGE) * PAGE


def record(layer, expert, fmt, codebook_id, matrices, index_bits=8, block=64):
    """One whole expert record; matrices = (indices [M][nv][stages], f16 scale bits u16 [M]) of
    gate, up, down."""
    blobs = [layout(index, index_bits, block).tobytes() for index, _ in matrices]
    offsets = [HEADER + sum(map(len, blobs[:i])) for i in range(4)]
    payload = b"".join(blobs + [np.asarray(s, np.uint16).tobytes() for _, s in matrices])
    size = -(-(HEADER + len(payload)) // PAGE) * PAGE
    header = struct.pack(
        EXPERT_HEADER,
        *(0x50584557, layer, expert, fmt, 0, codebook_id, 0, 0, size // PAGE),
        *offsets,
        *(zlib.crc32(payload), 0, 0),
    )
    return (header + payload).ljust(size, b"\0")


def parse_record(data, layer, expert, codebook_id, shapes, stages, index_bits, block):
    """[(indices, scales f32)] of gate, up, down; requires every field to be as derived."""
    run = run_bytes(stages, index_bits)
    sizes = [index_bytes(m, n, run, block) for m, n in shapes]
    offsets = [HEADER + sum(sizes[:i]) for i in range(4)]
    end = offsets[3] + 2 * sum(m for m, _ in shapes)
    got = struct.unpack_from(EXPERT_HEADER, data)
    want = (0x50584557, layer, expert, got[3], 0, codebook_id, 0, 0, len(data) // PAGE, *offsets)
    want += (zlib.crc32(data[HEADER:end]), 0, 0)
    if got != want or got[3] not in ((4, 5) if index_bits == 8 else (8,)) or any(data[end:]):
        raise ValueError(f"record of expert {expert} of layer {layer}: got {got}, want {want}")
    out, at = [], offsets[3]
    for (rows, cols), off, size in zip(shapes, offsets, sizes):
        index = unlayout(data[off : off + size], rows, cols // 8, run, index_bits, block)
        out.append((index, numeric.f16_to_f32(np.frombuffer(data, np.uint16, rows, at))))
        at += 2 * rows
    return out


def codebook_record(book_id, fmt, entries):
    """16-byte header and f16 entries (u16 [n][8])."""
    header = struct.pack("<IHBBII", 0x4B424357, book_id & 0xFFFF, fmt, 8, len(entries), 0)
    return header + np.asarray(entries, np.uint16).tobytes()


def reconstruct(index, scale, books, dtype=np.float32):
    """W [M][N] = scale[r] * (sum over s in order of C_s[index(r, v, s)]), computed in dtype.

    index [M][nv][S], scale [M], books [S][entries][8].
    """
    total = np.zeros((*index.shape[:2], 8), dtype)
    for s, book in enumerate(books):
        total += book.astype(dtype)[index[:, :, s]]
    return scale.astype(dtype)[:, None] * total.reshape(len(index), -1)


def normalize(w):
    """(row scales f32 [M] = max(max|row|, 1e-8), vectors f32 [M][nv][8])."""
    scale = np.maximum(np.abs(w).max(axis=1), np.float32(1e-8))
    return scale, (w / scale[:, None]).reshape(len(w), -1, 8)


def nearest(vectors, book):
    """Index of the closest entry (lower one at a tie) for [n][8] against [entries][8]."""
    return np.argmin((book * book).sum(axis=1) - 2 * (vectors @ book.T), axis=1)


def fit_codebooks(vectors, stages, entries, random, rounds=2):
    """f32 [stages][entries][8]: residual k-means from random initial vectors, rounded to f16."""
    books, residual = [], vectors.astype(np.float64)
    for _ in range(stages):
        book = residual[random.integers(len(residual), entries)].copy()
        for _ in range(rounds):
            label = nearest(residual, book)
            count = np.bincount(label, minlength=entries)
            total = np.stack([np.bincount(label, residual[:, d], entries) for d in range(8)], 1)
            book = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], book)
        book = numeric.f16_to_f32(numeric.f32_to_f16(book))
        residual = residual - book[nearest(residual, book)]
        books.append(book)
    return np.stack(books)


def encode(w, books):
    """(indices [M][nv][S], f16 scale bits u16 [M]): greedy, stage after stage."""
    scale, vectors = normalize(w)
    residual, index = vectors.reshape(-1, 8).astype(np.float64), []
    for book in books:
        index.append(nearest(residual, book))
        residual = residual - book[index[-1]]
    return np.stack(index, axis=1).reshape(*vectors.shape[:2], -1), numeric.f32_to_f16(scale)
