"""K3's text architecture in PyTorch, for training: parameters carry the checkpoint's names.

Shapes: B sequences, T positions, h hidden_size, H heads, D head_dim, E experts. A `weight` is
[out][in] and y = x W^T. Everything is f32; no arithmetic depends on the batch.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT_CONFIG = dict(
    model_type="kimi_linear",
    vocab_size=1040,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=8,
    hidden_act="situ",
    activation_situ_beta=4.0,
    activation_situ_linear_beta=25.0,
    rms_norm_eps=1e-05,
    q_lora_rank=128,
    kv_lora_rank=128,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    mla_use_nope=True,
    mla_use_output_gate=True,
    linear_attn_config=dict(
        num_heads=8,
        head_dim=32,
        short_conv_kernel_size=4,
        kda_layers=[1, 2, 3, 5, 6],
        full_attn_layers=[4],
        use_full_rank_gate=True,
        gate_lower_bound=-5.0,
    ),
    num_experts=24,
    num_experts_per_token=4,
    num_shared_experts=2,
    moe_intermediate_size=160,
    routed_expert_hidden_size=128,
    latent_moe_use_norm=True,
    first_k_dense_replace=1,
    moe_layer_freq=1,
    moe_router_activation_func="sigmoid",
    moe_renormalize=True,
    routed_scaling_factor=1.0,
    num_expert_group=1,
    topk_group=1,
    attn_res_block_size=3,
    tie_word_embeddings=False,
    num_nextn_predict_layers=0,
    bos_token_id=1024,
    eos_token_id=1026,
    pad_token_id=1025,
    max_position_embeddings=4096,
)
MLA_NORM_EPS = 1e-6
"""Epsilon of the two low-rank norms of MLA: the published class default, not rms_norm_eps."""
CHUNK = 16
"""Positions per KDA chunk: exp(5 * 16) is the largest power that still fits f32."""
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def rms(x, weight, eps):
    """x_i weight_i / sqrt(mean(x^2) + eps) over the last axis."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def situ(gate, up, beta, linear_beta):
    """SiTU: beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta)."""
    bounded = linear_beta * torch.tanh(up / linear_beta)
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * bounded


def mxfp4_scale(w):
    """Exponents [..., n/32, 1] of MXFP4 blocks of `w` [..., n]: the largest magnitude goes to at
    most 6.5 (where E2M1's clamp to 6 costs no more than rounding), the smallest such power of two.
    """
    top = w.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True).clamp(min=1e-12)
    e = torch.floor(torch.log2(top / 6.0)).clamp(-126, 127)
    return torch.where(top / torch.exp2(e) > 6.0 * 1.0833, e + 1, e)


def mxfp4_value(w):
    """`w` [..., n] rounded to MXFP4, ties towards zero."""
    scale = torch.exp2(mxfp4_scale(w))
    y = w.unflatten(-1, (-1, 32)) / scale
    m = y.abs().clamp(max=6.0)
    step = 0.5 + 0.5 * (m >= 2) + (m >= 4)
    return (torch.ceil(m / step - 0.5) * step * y.sign() * scale).flatten(-2)


def mxfp4_encode(w):
    """(packed u8 [..., n/2], scale u8 [..., n/32]) of `w` [..., n]: even column in the low nibble,
    nibble = sign << 3 | index into E2M1; the scale byte e means 2^(e - 127)."""
    e = mxfp4_scale(w)
    y = w.unflatten(-1, (-1, 32)) / torch.exp2(e)
    value = mxfp4_value(w).unflatten(-1, (-1, 32)) / torch.exp2(e)
    nibble = (torch.searchsorted(E2M1, value.abs().contiguous()) + 8 * torch.signbit(y)).to(
        torch.uint8
    )
    nibble = nibble.flatten(-2)
    return nibble[..., 0::2] | nibble[..., 1::2] << 4, (e.squeeze(-1) + 127).to(torch.uint8)


def mxfp4_decode(packed, scale):
    """f32 [..., n] of packed u8 [..., n/2] and scale u8 [..., n/32]."""
    nibble = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    value = E2M1[nibble & 7] * (1 - 2 * (nibble >> 3)).float()
    return (value.unflatten(-1, (-1, 32)) * torch.exp2(scale.float() - 127).unsqueeze(-1)).flatten(
        -2
    )


class StraightThrough(torch.autograd.Function):
    """MXFP4 forward, identity backward."""

    @staticmethod
    def forward(ctx, w):
        return mxfp4_value(w)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Weight(nn.Module):
    """One tensor under the name `weight`; a matrix multiplies when called."""

    def __init__(self, *shape, init=None, scale=1.0):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(*shape) * scale / math.sqrt(shape[-1]) if init is None else init
        )

    def forward(self, x):
        return F.linear(x, self.weight)


def ones(n):
    return Weight(n, init=torch.ones(n))


class Kda(nn.Module):
    """Kimi Delta Attention with full-rank gate and bounded decay.

    Per head and position, S [D][D] from zero, g the log decay of each key channel:
        S <- diag(exp g) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q
    computed here a chunk of CHUNK positions at a time (the UT transform of gated DeltaNet).
    """

    def __init__(self, config):
        super().__init__()
        linear = config["linear_attn_config"]
        h, self.heads, self.dim = config["hidden_size"], linear["num_heads"], linear["head_dim"]
        c, taps = self.heads * self.dim, linear["short_conv_kernel_size"]
        self.eps, self.lower = config["rms_norm_eps"], linear["gate_lower_bound"]
        for z in "qkv":
            last = torch.zeros(taps)
            last[-1] = 0.6
            setattr(self, f"{z}_proj", Weight(c, h))
            setattr(
                self, f"{z}_conv1d", Weight(c, 1, taps, init=torch.randn(c, 1, taps) * 0.3 + last)
            )
        self.f_a_proj, self.f_b_proj = Weight(self.dim, h), Weight(c, self.dim, scale=0.5)
        self.b_proj = Weight(self.heads, h)
        self.dt_bias = nn.Parameter(torch.linspace(-6, -1, c)[torch.randperm(c)])
        self.A_log = nn.Parameter(torch.zeros(self.dim))  # padded: the first `heads` are used
        self.g_proj, self.o_norm, self.o_proj = (
            Weight(c, h),
            ones(self.dim),
            Weight(h, c, scale=0.5),
        )

    def split_heads(self, x):
        """[B][T][H*D] -> [B*H][T/CHUNK][CHUNK][D]."""
        b, t, _ = x.shape
        x = x.view(b, t, self.heads, self.dim).transpose(1, 2)
        return x.reshape(b * self.heads, t // CHUNK, CHUNK, self.dim)

    def conv(self, x, weight):
        """Causal depthwise convolution over T, then SiLU."""
        x = F.pad(x.transpose(1, 2), (weight.shape[2] - 1, 0))
        return F.silu(F.conv1d(x, weight, groups=weight.shape[0]).transpose(1, 2))

    def unit(self, x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            self.split_heads(
                self.conv(getattr(self, f"{z}_proj")(x), getattr(self, f"{z}_conv1d").weight)
            )
            for z in "qkv"
        )
        q, k = self.unit(q) * self.dim**-0.5, self.unit(k)
        z = self.split_heads(self.f_b_proj(self.f_a_proj(x)) + self.dt_bias)
        rate = torch.exp(self.A_log[: self.heads]).repeat(b).view(-1, 1, 1, 1)
        decay = (self.lower * torch.sigmoid(rate * z)).cumsum(
            2
        )  # log of the decay since chunk start
        beta = torch.sigmoid(self.b_proj(x)).transpose(1, 2).reshape(-1, t // CHUNK, CHUNK, 1)

        grown, end = torch.exp(decay), decay[:, :, -1:]
        k_in, q_in, k_out = k * grown, q * grown, k * torch.exp(-decay)
        # (I + M)^-1 of the strictly lower M as a product, as M^CHUNK = 0
        power = -torch.tril((k_in * beta) @ k_out.transpose(-1, -2), -1)
        inverse = power + torch.eye(CHUNK)
        for _ in range(3):
            power = power @ power
            inverse = inverse + inverse @ power
        w, u = (inverse @ (beta * torch.cat([k_in, v], -1))).split(self.dim, -1)
        within = torch.tril(q_in @ k_out.transpose(-1, -2))
        wq = torch.cat([w, q_in], 2)
        k_end, shrink = (k * torch.exp(end - decay)).transpose(-1, -2), torch.exp(end).transpose(
            -1, -2
        )
        state, new, carried = x.new_zeros(b * self.heads, self.dim, self.dim), [], []
        for uc, wqc, kc, sc in zip(u.unbind(1), wq.unbind(1), k_end.unbind(1), shrink.unbind(1)):
            ws, qs = (wqc @ state).split(CHUNK, 1)
            delta = uc - ws
            state = torch.baddbmm(sc * state, kc, delta)
            new.append(delta)
            carried.append(qs)
        o = torch.stack(carried, 1) + within @ torch.stack(new, 1)

        o = o.view(b, self.heads, t, self.dim).transpose(1, 2)
        o = rms(o, self.o_norm.weight, self.eps).reshape(b, t, -1) * torch.sigmoid(self.g_proj(x))
        return self.o_proj(o)


class Mla(nn.Module):
    """Multi-head latent attention without rotary, expanded form, with output gate."""

    def __init__(self, config):
        super().__init__()
        h, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.nope, self.rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.value, self.rank = config["v_head_dim"], config["kv_lora_rank"]
        q_rank, n = config["q_lora_rank"], self.heads
        self.q_a_proj, self.q_a_layernorm = Weight(q_rank, h), ones(q_rank)
        self.q_b_proj = Weight(n * (self.nope + self.rope), q_rank)
        self.kv_a_proj_with_mqa = Weight(self.rank + self.rope, h)
        self.kv_a_layernorm = ones(self.rank)
        self.kv_b_proj = Weight(n * (self.nope + self.value), self.rank)
        self.g_proj, self.o_proj = Weight(n * self.value, h), Weight(h, n * self.value, scale=0.5)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_b_proj(rms(self.q_a_proj(x), self.q_a_layernorm.weight, MLA_NORM_EPS))
        q = q.view(b, t, self.heads, -1).transpose(1, 2)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        kv = self.kv_b_proj(rms(latent, self.kv_a_layernorm.weight, MLA_NORM_EPS))
        kv = kv.view(b, t, self.heads, -1).transpose(1, 2)
        k_rope = k_rope.unsqueeze(1).expand(b, self.heads, t, self.rope)
        k = torch.cat([kv[..., : self.nope], k_rope], -1)
        score = q @ k.transpose(-1, -2) * (self.nope + self.rope) ** -0.5
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        p = score.masked_fill(future, -math.inf).softmax(-1)
        o = (p @ kv[..., self.nope :]).transpose(1, 2).reshape(b, t, -1)
        return self.o_proj(o * torch.sigmoid(self.g_proj(x)))


class Mlp(nn.Module):
    """down(situ(gate x, up x)): the dense layer and the shared experts."""

    def __init__(self, config, inner):
        super().__init__()
        h = config["hidden_size"]
        self.betas = config["activation_situ_beta"], config["activation_situ_linear_beta"]
        self.gate_proj, self.up_proj = Weight(inner, h), Weight(inner, h)
        self.down_proj = Weight(h, inner, scale=0.5)

    def forward(self, x):
        return self.down_proj(situ(self.gate_proj(x), self.up_proj(x), *self.betas))


class Router(nn.Module):
    """Sigmoid scores [N][E]; the correction bias takes part in the choice only."""

    def __init__(self, config):
        super().__init__()
        self.top, self.scaling = config["num_experts_per_token"], config["routed_scaling_factor"]
        e, h = config["num_experts"], config["hidden_size"]
        self.weight = nn.Parameter(torch.randn(e, h) / math.sqrt(h))
        self.register_buffer("e_score_correction_bias", torch.zeros(e))

    def forward(self, x):
        score = torch.sigmoid(F.linear(x, self.weight))
        index = (score + self.e_score_correction_bias).topk(self.top, -1).indices
        w = score.gather(-1, index)
        return index, w / (w.sum(-1, keepdim=True) + 1e-20) * self.scaling


class Moe(nn.Module):
    """Latent mixture of experts: w1 gate and w3 up [E][m][latent], w2 down [E][latent][m]."""

    def __init__(self, config):
        super().__init__()
        h, latent = config["hidden_size"], config["routed_expert_hidden_size"]
        e, m = config["num_experts"], config["moe_intermediate_size"]
        self.betas = config["activation_situ_beta"], config["activation_situ_linear_beta"]
        self.eps, self.quantized, self.load = config["rms_norm_eps"], False, None
        self.gate = Router(config)
        self.routed_expert_down_proj = Weight(latent, h)
        self.routed_expert_up_proj = Weight(h, latent, scale=0.5)
        self.routed_expert_norm = ones(latent)
        self.shared_experts = Mlp(config, m * config["num_shared_experts"])
        for name, shape in (("w1", (e, m, latent)), ("w3", (e, m, latent)), ("w2", (e, latent, m))):
            setattr(
                self, f"experts_{name}", nn.Parameter(torch.randn(shape) / math.sqrt(shape[-1]))
            )

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        index, weight = self.gate(x)
        order = index.flatten().argsort(stable=True)
        load = index.flatten().bincount(minlength=len(self.experts_w1))
        self.load, counts = load, load.tolist()
        w13, w2 = torch.cat([self.experts_w1, self.experts_w3], 1), self.experts_w2
        if self.quantized:
            w13, w2 = StraightThrough.apply(w13), StraightThrough.apply(w2)
        top = index.shape[1]
        rows = self.routed_expert_down_proj(x).index_select(0, order // top)
        hidden = torch.cat([F.linear(r, w) for r, w in zip(rows.split(counts), w13.unbind(0))])
        hidden = situ(*hidden.chunk(2, -1), *self.betas)
        y = torch.cat([F.linear(r, w) for r, w in zip(hidden.split(counts), w2.unbind(0))])
        y = (y.index_select(0, order.argsort()).unflatten(0, (-1, top)) * weight.unsqueeze(-1)).sum(
            1
        )
        y = self.routed_expert_up_proj(rms(y, self.routed_expert_norm.weight, self.eps))
        return (y + self.shared_experts(x)).view(shape)


class Layer(nn.Module):
    """One attention and one feed-forward sublayer with their norms and residual queries."""

    def __init__(self, config, number):
        super().__init__()
        h = config["hidden_size"]
        self.input_layernorm, self.post_attention_layernorm = ones(h), ones(h)
        self.self_attention_res_norm, self.mlp_res_norm = ones(h), ones(h)
        self.self_attention_res_proj = Weight(1, h, init=torch.zeros(1, h))
        self.mlp_res_proj = Weight(1, h, init=torch.zeros(1, h))
        kda = number + 1 in config["linear_attn_config"]["kda_layers"]
        self.self_attn = Kda(config) if kda else Mla(config)
        if number < config["first_k_dense_replace"]:
            self.mlp = Mlp(config, config["intermediate_size"])
        else:
            self.block_sparse_moe = Moe(config)

    def ffn(self, x):
        return self.mlp(x) if hasattr(self, "mlp") else self.block_sparse_moe(x)


class Decoder(nn.Module):
    """Embedding, layers with attention residuals, final norm: ids [B][T] -> [B][T][h]."""

    def __init__(self, config):
        super().__init__()
        h = config["hidden_size"]
        self.eps, self.block = config["rms_norm_eps"], config["attn_res_block_size"]
        self.dropout = 0.0
        self.embed_tokens = Weight(1, init=torch.randn(config["vocab_size"], h) * 0.5)
        self.norm, self.output_attn_res_norm = ones(h), ones(h)
        self.output_attn_res_proj = Weight(1, h, init=torch.zeros(1, h))
        self.layers = nn.ModuleList(Layer(config, n) for n in range(config["num_hidden_layers"]))

    def attend_residuals(self, live, blocks, norm, proj):
        """softmax over the stored blocks and the live sum of their normed dot with one query."""
        v = torch.stack([*blocks, live], -2)
        score = rms(v, norm.weight, self.eps) @ proj.weight[0]
        return (score.softmax(-1).unsqueeze(-2) @ v).squeeze(-2)

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)

    def forward(self, ids):
        x, blocks = self.drop(self.embed_tokens.weight[ids]), []
        for n, layer in enumerate(self.layers):
            live = x
            if blocks:
                x = self.attend_residuals(
                    live, blocks, layer.self_attention_res_norm, layer.self_attention_res_proj
                )
            if n % self.block == 0:
                blocks, live = [*blocks, live], None
            a = self.drop(layer.self_attn(rms(x, layer.input_layernorm.weight, self.eps)))
            live = a if live is None else live + a
            x = self.attend_residuals(live, blocks, layer.mlp_res_norm, layer.mlp_res_proj)
            x = live + self.drop(
                layer.ffn(rms(x, layer.post_attention_layernorm.weight, self.eps))
            )
        x = self.attend_residuals(x, blocks, self.output_attn_res_norm, self.output_attn_res_proj)
        return rms(x, self.norm.weight, self.eps)


class K3(nn.Module):
    """ids [B][T] -> logits [B][T][vocab]; T a multiple of CHUNK."""

    def __init__(self, config=TEXT_CONFIG):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = Weight(config["vocab_size"], config["hidden_size"])

    def forward(self, ids):
        return self.lm_head(self.model(ids))

    def moes(self):
        return [m for m in self.modules() if isinstance(m, Moe)]

    def quantize_experts(self, on=True):
        """Let the experts round to MXFP4 in every forward pass, as they will be stored."""
        for moe in self.moes():
            moe.quantized = on
