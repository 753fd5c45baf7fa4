"""Exact bytes of quantizers, index layouts and records -> quantizers.safetensors."""

import numpy as np

import experts
import groups
import numeric
from golden_units import Cases, f32

NAMES = {groups.Q8G: "q8g", groups.Q4G: "q4g", groups.Q3G: "q3g"}


def awkward_rows(q, cols, r):
    """f32 [9][cols]: the cases a group quantizer can get wrong."""
    x = f32(r.normal(9, cols))
    x[1] = 0  # scale 1e-8/q: rounds to f16 zero
    x[2] *= 1e-4  # subnormal f16 scale
    x[3] = f32(r.uniform(-1, 1, cols)) * 3e-7 * q  # scale of a few units of the last place
    ties = np.arange(cols) % (2 * q) - q + 0.5
    x[4] = np.where(np.arange(cols) % 7 == 0, q, ties)  # scale exactly 1 in every group
    x[5] = f32(r.uniform(-1, 1, cols)) * q * 60000
    x[5, 0] = q * 65519.0  # scale rounds down to 65504, the largest f16
    x[6] = -np.abs(x[6])
    x[7] = 0
    x[7, -1] = -1e-3  # only the last column
    x[8] = np.where(np.arange(cols) % 128 == 5, 100, 1e-3) * r.normal(cols)
    return x


def group_formats(cases, r):
    for fmt, name in NAMES.items():
        for cols in (160, 128, 96, 7):
            x = awkward_rows(groups.CODES[fmt][0], cols, r)
            codes, scales = groups.group_codes(x, fmt)
            payload = groups.pack_codes(codes, fmt)
            data = groups.quantize(x, fmt)
            assert data == payload.tobytes() + scales.tobytes()
            y = groups.dequantize(data, fmt, x.shape)
            assert np.isfinite(y).all() and (scales == 0x7BFF).any()
            cases.add(name, x=x, payload=payload, scales=scales, y=y)


def layouts(cases, r):
    every = np.stack(
        [np.arange(64), 63 - np.arange(64), np.arange(64) * 5 % 64, np.full(64, 63)], 1
    )
    index = np.concatenate([every, r.integers(64, 64, 4), np.zeros((1, 4), np.int64)])
    cases.add("pack6", index=index.astype(np.uint8), packed=experts.pack_run(index, 6))
    for stages, entries, bits in ((1, 256, 8), (2, 256, 8), (3, 256, 8), (4, 64, 6)):
        for rows in (1, 63, 64, 65, 96):
            index = r.integers(entries, rows, 3, stages)
            for block in (0, 64):
                params = {"index_bits": bits, "index_block": block}
                data = experts.layout(index, bits, block)
                back = experts.unlayout(data, rows, 3, experts.run_bytes(stages, bits), bits, block)
                assert (back == index).all()
                cases.add("layout", params, index=index.astype(np.uint8), bytes=data)


def records(cases, r):
    shapes = [(72, 40), (72, 40), (40, 72)]
    for name, block in (("VQ3R", 64), ("VQ2R", 64), ("VQ4P", 64), ("VQ3R", 0), ("VQ4P", 0)):
        fmt, stages, entries, bits = experts.FORMATS[name]
        layer, expert, base = 37, 412, 18
        fields, matrices = {}, []
        for kind, (rows, cols) in zip(experts.KINDS, shapes):
            index = r.integers(entries, rows, cols // 8, stages)
            scale = numeric.f32_to_f16(r.uniform(0.01, 0.2, rows))
            matrices.append((index, scale))
            fields[kind + "_index"] = index.astype(np.uint8)
            fields[kind + "_scale"] = scale
        data = experts.record(layer, expert, fmt, base, matrices, bits, block)
        back = experts.parse_record(data, layer, expert, base, shapes, stages, bits, block)
        assert all((a[0] == b[0]).all() for a, b in zip(back, matrices))
        params = {"fmt": fmt, "layer": layer, "expert": expert, "codebook_id": base}
        params.update(index_bits=bits, index_block=block, stages=stages)
        cases.add("record", params, record=np.frombuffer(data, np.uint8), **fields)


def random_books(r, stages, entries):
    """f16 bits [stages][entries][8]; later stages smaller, some entries subnormal or zero."""
    size = 0.5 * 0.4 ** np.arange(stages)
    book = r.normal(stages, entries, 8) * size[:, None, None]
    book[:, 3] = r.normal(stages, 8) * 2e-5  # subnormal f16: real values
    book[:, 5] = 0
    return numeric.f32_to_f16(book)


def codebooks(cases, r):
    for book_id, entries, fmt in ((70000, 256, 4), (11, 64, 8)):
        bits = random_books(r, 1, entries)[0]
        data = experts.codebook_record(book_id, fmt, bits)
        params = {"id": book_id, "fmt": fmt}
        cases.add("codebook", params, entries=bits, record=np.frombuffer(data, np.uint8))


def products(cases, r):
    """W and y = W x in f64 for stage counts 1, 2, 3, 8 (256 entries) and 4 (64 entries)."""
    for stages, entries, bits, rows, cols in (
        (1, 256, 8, 1, 8),
        (2, 256, 8, 65, 40),
        (3, 256, 8, 96, 72),
        (4, 64, 6, 72, 160),
        (8, 256, 8, 63, 24),
    ):
        index = r.integers(entries, rows, cols // 8, stages)
        index[0] = 3  # a row of subnormal entries
        books = random_books(r, stages, entries)
        scale = numeric.f32_to_f16(r.uniform(0.01, 0.2, rows))
        scale[rows // 2] = 37  # a subnormal scale
        x = f32(r.normal(cols))
        w = experts.reconstruct(
            index, numeric.f16_to_f32(scale), numeric.f16_to_f32(books), np.float64
        )
        cases.add("vq", {"index_bits": bits}, index=index.astype(np.uint8), books=books,
                  scale=scale, w=w.astype(np.float32), x=x, y=w @ x.astype(np.float64),
                  magnitude=np.abs(w) @ np.abs(x.astype(np.float64)))  # fmt: skip


def build():
    cases, r = Cases(), numeric.Random(2)
    for part in (group_formats, layouts, records, codebooks, products):
        part(cases, r)
    return cases.finish()
