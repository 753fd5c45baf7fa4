"""Number formats: bf16, f16 (numpy's), MXFP4, and a random source whose bytes never change.

Written from the formulas and the description of the format alone.
"""

import numpy as np

# Magnitudes of E2M1, indexed by the low three bits of a nibble; bit 3 is the sign.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def bf16_to_f32(bits):
    """f32 whose upper half is the bf16 pattern `bits` (u16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x):
    """u16 bf16 patterns of f32 `x`, rounded to nearest, ties to even; NaN stays a quiet NaN."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((u.astype(np.uint64) + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = ((u >> 16) | 0x40).astype(np.uint16)
    return np.where((u & 0x7FFFFFFF) > 0x7F800000, quiet, rounded)


def f16_to_f32(bits):
    """f32 values of the f16 patterns `bits` (u16), by the formula (not numpy's conversion).

    Exponent e = 0: (-1)^s m 2^-24; e = 31: infinity or NaN; else (-1)^s (1024 + m) 2^(e-25).
    """
    bits = bits.astype(np.int64)
    s, e, m = bits >> 15, (bits >> 10) & 31, bits & 1023
    value = np.where(e == 0, m * 2.0**-24, (1024 + m) * np.exp2(e - 25.0))
    value = np.where(e == 31, np.where(m == 0, np.inf, np.nan), value)
    return np.where(s == 1, -value, value).astype(np.float32)


def f32_to_f16(x):
    """u16 f16 patterns of f32 `x`: nearest, ties to even, overflow to infinity (numpy's cast)."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x, dtype=np.float32).astype(np.float16).view(np.uint16)


def mxfp4_decode(packed, scale):
    """f32 [rows][cols] of packed u8 [rows][cols/2] (even column in the low nibble) and the E8M0
    scales u8 [rows][cols/32]: value = sign * E2M1 * 2^(e-127); e = 0 gives 0, e = 255 is invalid.
    """
    if (scale == 255).any():
        raise ValueError("MXFP4 scale exponent 255")
    rows, half = packed.shape
    nibble = np.stack([packed & 15, packed >> 4], axis=2).reshape(rows, 2 * half)
    value = E2M1[nibble & 7].astype(np.float64) * np.where(nibble & 8, -1.0, 1.0)
    e = scale.astype(np.float64)
    factor = np.where(e == 0, 0.0, np.exp2(e - 127.0))
    return (value * np.repeat(factor, 32, axis=1)).astype(np.float32)


def mxfp4_encode(w):
    """(packed, scale) for f32 [rows][cols], cols a multiple of 32: the smallest power of two that
    keeps the block within 6, then the nearest magnitude (the lower one at a tie)."""
    rows, cols = w.shape
    block = w.reshape(rows, cols // 32, 32).astype(np.float64)
    top = np.abs(block).max(axis=2)
    _, exponent = np.frexp(top / 6.0)  # top/6 = f * 2^exponent, f in [0.5, 1)
    exponent = np.where(np.ldexp(6.0, exponent - 1) >= top, exponent - 1, exponent)
    e = np.where(top == 0, 0, np.clip(exponent + 127, 1, 254)).astype(np.int64)
    scaled = np.where(e[..., None] == 0, 0.0, block * np.ldexp(1.0, 127 - e)[..., None])
    middles = (E2M1[1:].astype(np.float64) + E2M1[:-1]) / 2
    code = np.searchsorted(middles, np.abs(scaled)) | np.where(scaled < 0, 8, 0)
    code = code.reshape(rows, cols).astype(np.uint8)
    return code[:, 0::2] | (code[:, 1::2] << 4), e.astype(np.uint8)


class Random:
    """Philox counter output turned into numbers by exact arithmetic only.

    numpy promises the raw stream of a bit generator for ever, but not standard_normal(); so a
    "normal" here is the sum of the four 16-bit quarters of a 64-bit word, centred and scaled to
    variance 1 (Irwin-Hall of order 4, |x| < 3.5). No libm, so the same bytes on every machine.
    """

    def __init__(self, seed):
        self._bits = np.random.Philox(key=seed)

    def words(self, count):
        """u64 [count]."""
        return self._bits.random_raw(count)

    def normal(self, *shape):
        """f64 of mean 0, variance 1."""
        count = int(np.prod(shape))
        quarters = self.words(count).view(np.uint16).reshape(count, 4)
        total = quarters.astype(np.float64).sum(axis=1)
        return ((total - 131070.0) / 37837.22799177317).reshape(shape)

    def uniform(self, low, high, *shape):
        """f64 in [low, high)."""
        unit = (self.words(int(np.prod(shape))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return (low + (high - low) * unit).reshape(shape)

    def integers(self, bound, *shape):
        """i64 in [0, bound)."""
        return (self.words(int(np.prod(shape))) % np.uint64(bound)).astype(np.int64).reshape(shape)
