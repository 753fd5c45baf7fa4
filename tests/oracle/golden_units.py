"""Unit cases of single formulas -> units.safetensors (see tests/data/golden/README.md).

Inputs are f32; expected values are f64 computed from those f32 inputs, unless the name says bits.
"""

import numpy as np

import layers as nn
import numeric


class Cases:
    """Collects tensors named "<formula>.<n>/<field>" and parameters for the metadata."""

    def __init__(self):
        self.tensors, self.metadata, self._count = {}, {}, {}

    def add(self, formula, params=None, **fields):
        n = self._count.get(formula, 0)
        self._count[formula] = n + 1
        for key, value in fields.items():
            self.tensors[f"{formula}.{n}/{key}"] = np.ascontiguousarray(value)
        for key, value in (params or {}).items():
            self.metadata[f"{formula}.{n}/{key}"] = repr(value)

    def finish(self):
        self.metadata.update({f"{k}/count": v for k, v in self._count.items()})
        return self.tensors, self.metadata


def f32(x):
    return np.asarray(x, np.float32)


def f64(x):
    return np.asarray(x, np.float64)


def norms(cases, r):
    for n, eps, size in (
        (1, 1e-6, 1),
        (7, 1e-5, 1),
        (128, 1e-5, 30),
        (160, 1e-6, 1e-4),
        (2304, 1e-5, 1),
    ):
        x, w = f32(r.normal(2, n) * size), f32(1 + 0.3 * r.normal(n))
        cases.add("rms_norm", {"eps": eps}, x=x, w=w, y=nn.rms_norm(f64(x), f64(w), eps))
    for n, size in ((1, 1), (5, 1), (33, 1000), (300, 10)):
        x = f32(r.normal(3, n) * size)
        cases.add("softmax", x=x, y=nn.softmax(f64(x)))


def activations(cases, r):
    edges = [0.0, -0.0, 1e-30, -1e-30, 19.999998, 20.0, 20.000002, 88.0, -88.0, 100.0, -100.0]
    x = f32(np.concatenate([edges, 6 * r.normal(64)]))
    y = f64(x)
    cases.add("sigmoid", x=x, y=nn.sigmoid(y))
    cases.add("softplus", x=x, y=nn.softplus(y))
    u = f32(np.concatenate([30 * r.normal(len(edges)), 20 * r.normal(64)]))
    cases.add("silu_pair", g=x, u=u, y=nn.silu_pair(y, f64(u)))
    for beta, linear in ((4.0, 25.0), (1.0, 0.0), (4.0, 0.0), (0.5, 2.0)):
        params = {"beta": beta, "linear_beta": linear}
        cases.add("situ_pair", params, g=x, u=u, y=nn.situ_pair(y, f64(u), beta, linear))


def convolutions(cases, r):
    for steps, channels, taps in ((6, 12, 4), (1, 37, 4), (9, 8, 2), (2, 5, 7)):
        x, w = f32(r.normal(steps, channels)), f32(r.normal(channels, taps))
        ring = f32(r.normal(channels, taps - 1))
        y, after = nn.short_conv(f64(x), f64(w), f64(ring))
        cases.add("short_conv", x=x, w=w, ring=ring, y=y, silu=nn.silu(y), ring_after=f32(after))


def kda(cases, r):
    for heads, d, steps, bound, l2_eps in (
        (3, 40, 6, None, 1e-6),
        (2, 32, 8, -5.0, 1e-6),
        (1, 128, 4, -5.0, 1e-6),
        (1, 7, 3, None, 1e-12),
        (1, 16, 100, -5.0, 1e-6),  # long enough for a chunked form
    ):
        g = f32(2 * r.normal(steps, heads, d))
        dt_bias, a_log = f32(r.normal(heads, d)), f32(0.5 * r.normal(heads))
        g_log = nn.kda_decay(f64(g), f64(dt_bias), f64(a_log), bound)
        params = {} if bound is None else {"lower_bound": bound}
        cases.add("kda_decay", params, g=g, dt_bias=dt_bias, a_log=a_log, g_log=g_log)
        q, k, v = (f32(r.normal(steps, heads, d)) for _ in range(3))
        k[1] *= 1e-3  # the epsilon of the L2 norm shows here
        q[2, 0] = 0
        beta, state = f32(r.uniform(0.05, 1, steps, heads)), f32(0.5 * r.normal(heads, d, d))
        g_log = f32(g_log)
        o, after = nn.kda_sequence(*map(f64, (state, q, k, v, g_log, beta)), l2_eps)
        cases.add("kda_step", {"l2_eps": l2_eps}, q=q, k=k, v=v, g_log=g_log, beta=beta,
                  state=state, o=o, state_after=f32(after))  # fmt: skip


def mla(cases, r):
    for heads, nope, rope, v, rank, first, steps in (
        (3, 16, 8, 20, 24, 5, 4),
        (2, 32, 16, 32, 40, 0, 1),
        (4, 9, 3, 7, 17, 30, 2),
    ):
        q = f32(2 * r.normal(steps, heads, nope + rope))
        kv_b = f32(r.normal(heads * (nope + v), rank) / rank**0.5)
        c, kr = f32(r.normal(first + steps, rank)), f32(r.normal(first + steps, rope))
        args = (*map(f64, (q, c, kr, kv_b)), nope, first)
        o = nn.mla_absorbed(*args)
        assert np.allclose(o, nn.mla_expanded(*args), rtol=1e-12, atol=1e-13)
        cases.add("mla", {"nope": nope, "first": first}, q=q, c=c, kr=kr, kv_b=kv_b, o=o)


def router(cases, r):
    def add(logits, bias, top_k, renormalize, scaling):
        ids, w = nn.route(f64(logits), f64(bias), top_k, renormalize, scaling)
        params = {"top_k": top_k, "renormalize": int(renormalize), "scaling": scaling}
        cases.add("router", params, logits=logits, bias=bias, ids=ids.astype(np.int32), weights=w)

    logits, bias = f32(r.normal(6, 24)), f32(0.1 * r.normal(24))
    add(logits, bias, 4, True, 2.446)
    add(logits, np.zeros(24, np.float32), 4, True, 2.446)
    add(logits, bias, 4, False, 1.0)
    add(logits, bias, 1, True, 3.0)  # one expert: never renormalized
    add(logits, bias, 24, True, 1.0)
    tied = f32([[1, 0, 1, 0, 1, 0, 1, 0], [0] * 8, [0, 0, 2, 0, 0, 2, 0, 2]])
    add(tied, np.zeros(8, np.float32), 3, True, 1.0)
    add(tied, f32([0, 0, 0, 0, 0, 0, 9, 9]), 3, True, 1.0)  # the bias outweighs every score
    add(f32(r.normal(3, 896)), f32(0.01 * r.normal(896)), 16, True, 1.0)


def residuals(cases, r):
    for count, hid in ((0, 40), (1, 40), (3, 160), (8, 33)):
        live, blocks = f32(r.normal(2, hid)), f32(3 * r.normal(count, 2, hid))
        norm, proj = f32(1 + 0.2 * r.normal(hid)), f32(r.normal(hid) / hid**0.5)
        y = nn.attention_residual(f64(live), list(f64(blocks)), f64(norm), f64(proj), 1e-5)
        cases.add("attn_res", {"eps": 1e-5}, live=live, blocks=blocks, norm=norm, proj=proj, y=y)


def conversions(cases, r):
    exponents = np.array([0, 1, 2, 100, 119, 126, 127, 128, 135, 252], np.uint8)
    every = (np.arange(16) | (np.arange(16)[::-1] << 4)).astype(np.uint8)
    packed = np.stack([np.concatenate([every, np.roll(every, i)]) for i in range(len(exponents))])
    scale = np.stack([exponents, exponents[::-1]], axis=1)
    cases.add("mxfp4", packed=packed, scale=scale, y=numeric.mxfp4_decode(packed, scale))

    mantissas = np.array([0, 1, 2, 511, 512, 513, 1022, 1023])
    bits = (np.arange(31)[:, None] << 10 | mantissas).reshape(-1)
    bits = np.concatenate([bits, [0x7C00]])
    bits = np.concatenate([bits, bits | 0x8000]).astype(np.uint16)
    values = numeric.f16_to_f32(bits)
    assert (values == bits.view(np.float16).astype(np.float32)).all()
    cases.add("f16_to_f32", bits=bits, y=values)

    # Midpoints between neighbouring f16 values, one f32 step to either side, and the extremes.
    positive = np.sort(values[(values >= 0) & np.isfinite(values)])
    step = numeric.f16_to_f32(numeric.f32_to_f16(positive) + np.uint16(1))
    step = np.where(np.isfinite(step), step, np.float32(65536))
    middle = f32((f64(positive) + f64(step)) / 2)
    x = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, step)])
    extremes = [0, 1e-45, 2.0**-25, 2.0**-24, 65519.996, 65520, 1e38, np.inf]
    x = f32(np.concatenate([x, extremes, 100 * r.normal(32)]))
    x = np.concatenate([x, -x])
    cases.add("f32_to_f16", x=x, bits=numeric.f32_to_f16(x))

    u = (r.words(64) >> np.uint64(34)).astype(np.uint32)  # 30 bits: moderate magnitudes
    u = np.concatenate(
        [u, u & 0xFFFF0000 | 0x8000, u & 0xFFFF0000 | 0x18000, [0x7F7FFFFF, 0x7F800000, 1]]
    )
    x = u.astype(np.uint32).view(np.float32)
    x = np.concatenate([x, -x])
    cases.add(
        "f32_to_bf16",
        x=x,
        bits=numeric.f32_to_bf16(x),
        y=numeric.bf16_to_f32(numeric.f32_to_bf16(x)),
    )


def build():
    cases, r = Cases(), numeric.Random(1)
    for part in (norms, activations, convolutions, kda, mla, router, residuals, conversions):
        part(cases, r)
    return cases.finish()
