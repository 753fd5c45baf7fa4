"""The mathematics of Kimi-Linear and K3, one function a formula (docs/kernels.md).

Every function computes in the dtype of its input (f32 or f64). Rows of a 2-D input are positions.
Weights are [out][in]; y = W x is written x @ W.T.
"""

import numpy as np


def rms_norm(v, w, eps):
    """v * w / sqrt(mean(v^2) + eps), over the last axis."""
    mean = np.mean(v * v, axis=-1, keepdims=True, dtype=v.dtype)
    return v * w / np.sqrt(mean + v.dtype.type(eps))


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def softplus(x):
    """x for x > 20, else log(1 + e^x)."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def softmax(s):
    """Over the last axis."""
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    return x * sigmoid(x)


def silu_pair(g, u):
    """silu(g) * u."""
    return silu(g) * u


def situ_pair(g, u, beta=1.0, linear_beta=0.0):
    """beta * tanh(g / beta) * sigmoid(g) * (lb > 0 ? lb * tanh(u / lb) : u), lb = linear_beta."""
    beta, lb = g.dtype.type(beta), g.dtype.type(linear_beta)
    return beta * np.tanh(g / beta) * sigmoid(g) * (lb * np.tanh(u / lb) if lb > 0 else u)


def short_conv(x, w, ring):
    """Causal depthwise convolution, no bias, no activation.

    x [T][C], w [C][K], ring [C][K-1] (the inputs before x, oldest first).
    y[t][c] = sum_j w[c][j] * input[t - (K-1) + j][c]. Returns (y [T][C], the new ring).
    """
    taps = w.shape[1]
    history = np.concatenate([ring.T, x])  # [K-1+T][C]
    y = np.zeros_like(x)
    for j in range(taps):
        y += history[j : j + len(x)] * w[:, j]
    return y, history[len(x) :].T.copy()


def kda_decay(g, dt_bias, a_log, lower_bound=None):
    """Logarithm of the decay per key channel, g [..][H][D], dt_bias [H][D], a_log [H].

    With z = g + dt_bias: no bound, -exp(A_log) softplus(z); else lower_bound sigmoid(exp(A_log) z).
    """
    z, a = g + dt_bias, np.exp(a_log)[:, None]
    if lower_bound is None:
        return -a * softplus(z)
    return g.dtype.type(lower_bound) * sigmoid(a * z)


def kda_step(state, q, k, v, g_log, beta, l2_eps):
    """One position of the gated delta rule for all heads; returns (o [H][V], new state).

    state [H][K][V]; q, k, g_log [H][K]; v [H][V]; beta [H].
    qn = q / sqrt(|q|^2 + e) / sqrt(K), kn = k / sqrt(|k|^2 + e); S = diag(exp g) S;
    S += kn (beta (v - kn S))^T; o = qn S.
    """
    e = q.dtype.type(l2_eps)
    scale = q.dtype.type(q.shape[-1]) ** q.dtype.type(-0.5)
    qn = q / np.sqrt((q * q).sum(axis=-1, keepdims=True) + e) * scale
    kn = k / np.sqrt((k * k).sum(axis=-1, keepdims=True) + e)
    state = state * np.exp(g_log)[:, :, None]
    seen = np.einsum("hkv,hk->hv", state, kn)
    state = state + kn[:, :, None] * (beta[:, None] * (v - seen))[:, None, :]
    return np.einsum("hkv,hk->hv", state, qn), state


def kda_sequence(state, q, k, v, g_log, beta, l2_eps):
    """kda_step over [T][H][..]; returns (o [T][H][V], final state)."""
    out = np.empty(v.shape, v.dtype)
    for t in range(len(q)):
        out[t], state = kda_step(state, q[t], k[t], v[t], g_log[t], beta[t], l2_eps)
    return out, state


def _causal(scores, first):
    """Scores [T][H][S] with -inf where position s comes after query first + t."""
    t, s = scores.shape[0], scores.shape[2]
    later = np.arange(s)[None, :] > first + np.arange(t)[:, None]
    return np.where(later[:, None, :], -np.inf, scores)


def mla_expanded(q, c, kr, kv_b, nope, first):
    """Attention with keys and values of every head written out.

    q [T][H][nope+rope], c [S][kvl], kr [S][rope], kv_b [H*(nope+v)][kvl] (per head nope rows, then
    v rows); query t stands at position first + t. Returns o [T][H][v].
    """
    heads, qd = q.shape[1:]
    w = kv_b.reshape(heads, -1, c.shape[1])
    k = np.einsum("hik,sk->shi", w[:, :nope], c)
    k = np.concatenate([k, np.broadcast_to(kr[:, None], (len(c), heads, kr.shape[1]))], axis=2)
    v = np.einsum("hik,sk->shi", w[:, nope:], c)
    scores = np.einsum("thi,shi->ths", q, k) * q.dtype.type(qd) ** q.dtype.type(-0.5)
    return np.einsum("ths,shi->thi", softmax(_causal(scores, first)), v)


def mla_absorbed(q, c, kr, kv_b, nope, first):
    """The same attention over the latent cache: qt_h = q_h[:nope] Wk_h, scores = qt_h . c_s +
    q_h[nope:] . kr_s, o_h = Wv_h (sum_s p_s c_s). Arguments as mla_expanded."""
    heads, qd = q.shape[1:]
    w = kv_b.reshape(heads, -1, c.shape[1])
    qt = np.einsum("thi,hik->thk", q[:, :, :nope], w[:, :nope])
    scores = np.einsum("thk,sk->ths", qt, c) + np.einsum("thi,si->ths", q[:, :, nope:], kr)
    p = softmax(_causal(scores * q.dtype.type(qd) ** q.dtype.type(-0.5), first))
    return np.einsum("thk,hik->thi", np.einsum("ths,sk->thk", p, c), w[:, nope:])


def route(logits, bias, top_k, renormalize, scaling):
    """(ids [T][K] i64, weights [T][K]) of router logits [T][E].

    score = sigmoid(logit); the K largest score + bias are chosen, largest first, the lower index at
    a tie; the weight is the score without bias, divided by (sum + 1e-20) if renormalize and K > 1,
    times scaling.
    """
    score = sigmoid(logits)
    ids = np.argsort(-(score + bias), axis=1, kind="stable")[:, :top_k]
    w = np.take_along_axis(score, ids, axis=1)
    if renormalize and top_k > 1:
        w = w / (w.sum(axis=1, keepdims=True) + w.dtype.type(1e-20))
    return ids, w * w.dtype.type(scaling)


def attention_residual(live, blocks, norm, proj, eps):
    """AR: softmax-weighted mix of the stored blocks and the live sum, [T][hid] each.

    v = [blocks..., live]; s_i = sum_j k_ij norm_j proj_j with k_i = v_i / sqrt(mean(v_i^2) + eps)
    (no 1/sqrt(d)); out = sum_i softmax(s)_i v_i.
    """
    v = np.stack([*blocks, live], axis=1)  # [T][n][hid]
    p = softmax(rms_norm(v, norm, eps) @ proj.reshape(-1))
    return np.einsum("tn,tnd->td", p, v)
