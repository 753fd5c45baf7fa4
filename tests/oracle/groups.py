"""Trunk formats: F32, F16 and the group formats Q8G, Q4G, Q3G (docs/format.md, trunk.bin)."""

import numpy as np

import numeric

F32, F16, Q8G, Q4G, Q3G = 0, 1, 2, 3, 7
GROUP = 128
# fmt: (q, lowest code, highest code, bits)
CODES = {Q8G: (127, -127, 127, 8), Q4G: (7, -8, 7, 4), Q3G: (3, -4, 3, 3)}


def shape_2d(shape):
    """(rows, cols): everything but the last dimension, the last dimension."""
    return int(np.prod(shape[:-1])), int(shape[-1])


def payload_bytes(fmt, rows, cols):
    """Bytes before the scales."""
    padded = -(-cols // GROUP) * GROUP
    if fmt == F32:
        return 4 * rows * cols
    if fmt == F16:
        return 2 * rows * cols
    return rows * {Q8G: padded, Q4G: padded // 2, Q3G: 3 * padded // 8 + 1}[fmt]


def group_codes(x, fmt):
    """(codes i64 [rows][padded], scales u16 f16 [rows][groups]) of f32 x [rows][cols].

    scale32 = max(max|x|, 1e-8) / q and code = clamp(rint_half_even(x / scale32)), both in f32; the
    stored scale is f16(scale32), but the codes are made with scale32 itself.
    """
    q, low, high, _ = CODES[fmt]
    rows, cols = x.shape
    ng = -(-cols // GROUP)
    padded = np.zeros((rows, ng * GROUP), np.float32)
    padded[:, :cols] = x
    g = padded.reshape(rows, ng, GROUP)
    scale = np.maximum(np.abs(g).max(axis=2), np.float32(1e-8)) / np.float32(q)
    codes = np.clip(np.rint(g / scale[:, :, None]), low, high).astype(np.int64)
    return codes.reshape(rows, ng * GROUP), numeric.f32_to_f16(scale)


def pack_codes(codes, fmt):
    """u8 [rows][payload per row] of codes [rows][padded]."""
    if fmt == Q8G:
        return codes.astype(np.int8).view(np.uint8)
    if fmt == Q4G:
        nibble = (codes + 8).astype(np.uint8)
        return nibble[:, 0::2] | (nibble[:, 1::2] << 4)
    bits = ((codes + 4)[:, :, None] >> np.arange(3)) & 1  # LSB first, element i at bit 3i
    packed = np.packbits(bits.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little")
    return np.concatenate([packed, np.zeros((len(codes), 1), np.uint8)], axis=1)


def unpack_codes(payload, fmt, rows, cols):
    """i64 [rows][padded], the inverse of pack_codes."""
    data = np.frombuffer(payload, np.uint8).reshape(rows, -1)
    padded = -(-cols // GROUP) * GROUP
    if fmt == Q8G:
        return data.view(np.int8).astype(np.int64)
    if fmt == Q4G:
        return np.stack([data & 15, data >> 4], axis=2).reshape(rows, padded).astype(np.int64) - 8
    bits = np.unpackbits(data[:, :-1], axis=1, bitorder="little").reshape(rows, padded, 3)
    return bits.astype(np.int64) @ np.array([1, 2, 4]) - 4


def quantize(x, fmt):
    """The bytes of one trunk tensor of any shape: payload of all rows, then f16 scales."""
    if fmt == F32:
        return np.asarray(x, np.float32).tobytes()
    if fmt == F16:
        return numeric.f32_to_f16(x).tobytes()
    codes, scales = group_codes(np.asarray(x, np.float32).reshape(shape_2d(x.shape)), fmt)
    return pack_codes(codes, fmt).tobytes() + scales.tobytes()


def dequantize(data, fmt, shape):
    """f32 of `shape`: f32(scale) * code."""
    if fmt == F32:
        return np.frombuffer(data, np.float32).reshape(shape)
    if fmt == F16:
        return numeric.f16_to_f32(np.frombuffer(data, np.uint16)).reshape(shape)
    rows, cols = shape_2d(shape)
    cut = payload_bytes(fmt, rows, cols)
    codes = unpack_codes(data[:cut], fmt, rows, cols)
    scales = numeric.f16_to_f32(np.frombuffer(data[cut:], np.uint16)).reshape(rows, -1)
    return (np.repeat(scales, GROUP, axis=1) * codes.astype(np.float32))[:, :cols].reshape(shape)


def default_fmt(name, shape, bits=4):
    """A conversion's rule: small or 1-D F32; embedding, head, vision tower Q8G; else `bits`."""
    if len(shape) == 1 or int(np.prod(shape)) < 65536:
        return F32
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return Q8G
    if name.startswith(("vision_tower.", "mm_projector.")):
        return Q8G
    return {8: Q8G, 4: Q4G, 3: Q3G}[bits]
