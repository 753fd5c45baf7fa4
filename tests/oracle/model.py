"""The whole text path of Kimi-Linear and K3 over a source of weights (docs/kernels.md).

A source has .config (text part), .prefix, .tensor(name), .has(name) and .expert(layer, e):
checkpoint.Checkpoint or container.Container.
"""

import numpy as np

import layers as nn


class Model:
    """eps_a: epsilon of q_a_layernorm and kv_a_layernorm; l2_eps: of the KDA q/k normalisation.

    The published values are 1e-6 and 1e-6. The C engine has rms_norm_eps and 1e-12: see compat().
    """

    def __init__(self, source, dtype=np.float64, eps_a=1e-6, l2_eps=1e-6, absorbed=True):
        self.source, self.dtype, self.l2_eps = source, np.dtype(dtype).type, l2_eps
        self.c, self.eps_a = source.config, eps_a
        self.attend = nn.mla_absorbed if absorbed else nn.mla_expanded
        self.eps = self.c["rms_norm_eps"]
        self.kda_layers = {n - 1 for n in self.c["linear_attn_config"]["kda_layers"]}
        self._cache = {}
        c = self.c
        if c.get("moe_router_activation_func", "sigmoid") != "sigmoid":
            raise ValueError("only the sigmoid router is specified")
        if c.get("num_expert_group", 1) > 1 or c.get("tie_word_embeddings"):
            raise ValueError("grouped routing and tied embeddings are not covered")

    @staticmethod
    def compat(config):
        """The C engine's epsilons, as keyword arguments."""
        return {"eps_a": config["rms_norm_eps"], "l2_eps": 1e-12}

    def weight(self, name):
        """Weight `name` (without prefix) in the model's dtype; kept after the first use."""
        if name not in self._cache:
            self._cache[name] = self.source.tensor(self.source.prefix + name).astype(self.dtype)
        return self._cache[name]

    def expert(self, layer, e):
        if (layer, e) not in self._cache:
            self._cache[layer, e] = [w.astype(self.dtype) for w in self.source.expert(layer, e)]
        return self._cache[layer, e]

    def linear(self, x, name):
        return x @ self.weight(name + ".weight").T

    def norm(self, x, name, eps):
        return nn.rms_norm(x, self.weight(name + ".weight"), eps)

    def act(self, g, u):
        if self.c["hidden_act"] == "silu":
            return nn.silu_pair(g, u)
        if self.c["hidden_act"] != "situ":
            raise ValueError("hidden_act " + self.c["hidden_act"])
        linear_beta = self.c.get("activation_situ_linear_beta") or 0.0
        return nn.situ_pair(g, u, self.c.get("activation_situ_beta", 1.0), linear_beta)

    def mlp(self, x, stem):
        hidden = self.act(self.linear(x, stem + "gate_proj"), self.linear(x, stem + "up_proj"))
        return self.linear(hidden, stem + "down_proj")

    def kda(self, x, stem):
        """Section 3, from an empty state."""
        cfg = self.c["linear_attn_config"]
        heads, d, taps = cfg["num_heads"], cfg["head_dim"], cfg["short_conv_kernel_size"]
        shape = (len(x), heads, d)
        empty = np.zeros((heads * d, taps - 1), self.dtype)
        q, k, v = (
            nn.silu(
                nn.short_conv(
                    self.linear(x, f"{stem}{z}_proj"),
                    self.weight(f"{stem}{z}_conv1d.weight").reshape(heads * d, taps),
                    empty,
                )[0]
            ).reshape(shape)
            for z in "qkv"
        )
        g = self.linear(self.linear(x, stem + "f_a_proj"), stem + "f_b_proj").reshape(shape)
        g_log = nn.kda_decay(
            g,
            self.weight(stem + "dt_bias").reshape(heads, d),
            self.weight(stem + "A_log").reshape(-1)[:heads],
            cfg.get("gate_lower_bound"),
        )
        beta = nn.sigmoid(self.linear(x, stem + "b_proj"))
        state = np.zeros((heads, d, d), self.dtype)
        o, _ = nn.kda_sequence(state, q, k, v, g_log, beta, self.l2_eps)
        if cfg.get("use_full_rank_gate"):
            gate = self.linear(x, stem + "g_proj")
        else:
            gate = self.linear(self.linear(x, stem + "g_a_proj"), stem + "g_b_proj")
        o = self.norm(o, stem + "o_norm", self.eps) * nn.sigmoid(gate.reshape(shape))
        return self.linear(o.reshape(len(x), heads * d), stem + "o_proj")

    def mla(self, x, stem):
        """Section 4, from an empty cache."""
        heads, nope = self.c["num_attention_heads"], self.c["qk_nope_head_dim"]
        rank = self.c["kv_lora_rank"]
        if self.c.get("q_lora_rank"):
            qa = self.norm(self.linear(x, stem + "q_a_proj"), stem + "q_a_layernorm", self.eps_a)
            q = self.linear(qa, stem + "q_b_proj")
        else:
            q = self.linear(x, stem + "q_proj")
        ckv = self.linear(x, stem + "kv_a_proj_with_mqa")
        c, kr = self.norm(ckv[:, :rank], stem + "kv_a_layernorm", self.eps_a), ckv[:, rank:]
        kv_b = self.weight(stem + "kv_b_proj.weight")
        o = self.attend(q.reshape(len(x), heads, -1), c, kr, kv_b, nope, 0).reshape(len(x), -1)
        if self.c.get("mla_use_output_gate"):
            o = o * nn.sigmoid(self.linear(x, stem + "g_proj"))
        return self.linear(o, stem + "o_proj")

    def moe(self, x, layer, trace):
        """Section 5. trace[layer] becomes (ids, weights)."""
        c, stem = self.c, f"model.layers.{layer}.block_sparse_moe."
        ids, w = nn.route(
            self.linear(x, stem + "gate"),
            self.weight(stem + "gate.e_score_correction_bias"),
            c["num_experts_per_token"],
            c.get("moe_renormalize", False),
            c.get("routed_scaling_factor", 1.0),
        )
        trace[layer] = ids, w
        latent = c.get("routed_expert_hidden_size")
        xin = self.linear(x, stem + "routed_expert_down_proj") if latent else x
        parts = np.empty((*ids.shape, xin.shape[1]), self.dtype)  # [T][K][W]
        for e in np.unique(ids):
            gate, up, down = self.expert(layer, int(e))
            t, j = np.nonzero(ids == e)
            parts[t, j] = self.act(xin[t] @ gate.T, xin[t] @ up.T) @ down.T
        y = np.zeros_like(xin)
        for j in range(ids.shape[1]):  # selection order
            y += w[:, j, None] * parts[:, j]
        if latent:
            if c.get("latent_moe_use_norm"):
                y = self.norm(y, stem + "routed_expert_norm", self.eps)
            y = self.linear(y, stem + "routed_expert_up_proj")
        return y + self.mlp(x, stem + "shared_experts.") if c.get("num_shared_experts") else y

    def attention(self, x, layer):
        stem = f"model.layers.{layer}."
        h = self.norm(x, stem + "input_layernorm", self.eps)
        kind = self.kda if layer in self.kda_layers else self.mla
        return kind(h, stem + "self_attn.")

    def ffn(self, x, layer, trace):
        stem = f"model.layers.{layer}."
        h = self.norm(x, stem + "post_attention_layernorm", self.eps)
        if layer < self.c["first_k_dense_replace"]:
            return self.mlp(h, stem + "mlp.")
        return self.moe(h, layer, trace)

    def residual(self, live, blocks, stem):
        norm, proj = self.weight(stem + "_res_norm.weight"), self.weight(stem + "_res_proj.weight")
        return nn.attention_residual(live, blocks, norm, proj, self.eps)

    def forward(self, tokens):
        """All positions of one sequence from an empty state. Returns a dict:

        layers [L][T][hid] the residual stream after each layer (with attention residuals the
        running sum ps + f, before any mixing); final [T][hid] the input of the last norm; logits
        [T][V]; router {layer: (ids [T][K], weights [T][K])}.
        """
        table = self.weight("model.embed_tokens.weight")
        x, blocks, trace, hidden = table[np.asarray(tokens)], [], {}, []
        block = self.c.get("attn_res_block_size")
        for layer in range(self.c["num_hidden_layers"]):
            stem = f"model.layers.{layer}."
            if block:
                live = x
                if blocks:
                    x = self.residual(live, blocks, stem + "self_attention")
                if layer % block == 0:
                    blocks.append(live)
                    live = self.attention(x, layer)
                else:
                    live = live + self.attention(x, layer)
                x = self.residual(live, blocks, stem + "mlp")
                x = live + self.ffn(x, layer, trace)
            else:
                x = x + self.attention(x, layer)
                x = x + self.ffn(x, layer, trace)
            hidden.append(x)
        if block:
            x = self.residual(x, blocks, "model.output_attn")
        logits = self.linear(self.norm(x, "model.norm", self.eps), "lm_head")
        return {"layers": np.stack(hidden), "final": x, "logits": logits, "router": trace}
