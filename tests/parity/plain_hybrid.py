"""DeepSeek-V4's MTP layer of a Megatron checkpoint in plain torch, under HybridModel's layout.

Written from the layout that Megatron-Bridge documents and the published equations: attention and
experts are layers of their own (`mtp_model_layer.layers.0` and `.1`), each between residual streams
behind a `hyper_connection`, whose rows say what is read of the streams (pre), where the result goes
(post) and how the streams mix (res); `linear_fc1` holds gate over up. Everything is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, silu, softplus

from tests.parity.plain_mcore import attend

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Hybrid:
    """What the config says of the layer; `window` counts the query's own key.

    `limit` clamps gate and up, as transformers does it: the shared expert's too.
    """

    heads: int
    rope: int
    window: int
    top: int
    routed_scale: float
    limit: float = 10.0
    eps: float = 1e-6
    sinkhorn: int = 20
    base: float = 10000.0

    def __call__(self, w: Tensors, embedded: Tensor, previous: Tensor) -> Tensor:
        """States `[B, S, H]` behind the final norm, of an embedding `[B, S, H]` and N streams.

        `w` is without the prefix `mtp.layers.{k}.`, `previous` is `[B, S, N, H]`.
        """
        e = linear(self._norm(embedded) * w["enorm.weight"], w["e_proj.weight"])
        h = linear(self._norm(previous) * w["hnorm.weight"], w["h_proj.weight"])
        x = h + e[:, :, None]
        for number, inner in enumerate((self._attention, self._experts)):
            p = f"mtp_model_layer.layers.{number}."
            own = {n.removeprefix(p): t for n, t in w.items() if n.startswith(p)}
            read, written, mixed = self._connection(own, x)
            layer = {n.removeprefix("inner_layer."): t for n, t in own.items()}
            out = inner(layer, torch.einsum("bsn,bsnh->bsh", read, x))
            x = torch.einsum("bsij,bsih->bsjh", mixed, x) + torch.einsum(
                "bsn,bsh->bsnh", written, out
            )
        logits = linear(self._norm(x.flatten(2)), w["hc_head_fn"])
        read = (logits * w["hc_head_scale"] + w["hc_head_base"]).sigmoid() + self.eps
        return self._norm(torch.einsum("bsn,bsnh->bsh", read, x)) * w["final_layernorm.weight"]

    def _norm(self, x: Tensor) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()

    def _connection(self, w: Tensors, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each token what is read of the streams, written to them, and kept (from, to)."""
        p, n = "hyper_connection.", x.shape[2]
        logits = linear(self._norm(x.flatten(2)), w[f"{p}mapping_proj.weight"])
        parts = zip(
            logits.split([n, n, n * n], dim=-1),
            w[f"{p}bias"].split([n, n, n * n]),
            (w[f"{p}alpha_{part}"] for part in ("pre", "post", "res")),
            strict=True,
        )
        pre, post, res = (logit * alpha + bias for logit, bias, alpha in parts)
        kept = res.unflatten(-1, (n, n)).softmax(dim=-1) + self.eps
        # Sinkhorn: columns once, then rows and columns in turn.
        for dim in (-2, *[-1, -2] * (self.sinkhorn - 1)):
            kept = kept / (kept.sum(dim=dim, keepdim=True) + self.eps)
        return pre.sigmoid() + self.eps, 2 * post.sigmoid(), kept

    def _turned(self, x: Tensor, sign: int = 1) -> Tensor:
        """`x [B, S, heads, dim]`, neighbours among its last `rope` turned as complex numbers."""
        frequency = self.base ** -(torch.arange(0, self.rope, 2) / self.rope)
        angle = sign * torch.arange(x.shape[1])[:, None, None] * frequency
        pairs = torch.view_as_complex(x[..., -self.rope :].unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
        return torch.cat([x[..., : -self.rope], turned], dim=-1)

    def _attention(self, w: Tensors, x: Tensor) -> Tensor:
        """One key for all heads, its own value; what is summed is turned back where it is used."""
        p = "self_attention."
        x = self._norm(x) * w["input_layernorm.weight"]
        latent = self._norm(linear(x, w[f"{p}linear_q_down_proj.weight"]))
        q = linear(latent * w[f"{p}q_layernorm.weight"], w[f"{p}linear_q_up_proj.weight"])
        q = self._turned(self._norm(q.unflatten(-1, (self.heads, -1))))
        kv = self._norm(linear(x, w[f"{p}linear_kv_proj.weight"])) * w[f"{p}kv_layernorm.weight"]
        kv = self._turned(kv[:, :, None])
        sinks = w[f"{p}core_attention.attn_sink"]
        out = attend(q, kv, kv, q.shape[-1] ** -0.5, self.window, sinks)
        out = self._turned(out.unflatten(-1, (self.heads, -1)), -1).flatten(2)
        group = w[f"{p}linear_o_group_proj"]
        groups = out.shape[-1] // group.shape[-1]
        joined = torch.einsum(
            "bsgi,gri->bsgr", out.unflatten(-1, (groups, -1)), group.unflatten(0, (groups, -1))
        )
        return linear(joined.flatten(2), w[f"{p}linear_proj.weight"])

    def _experts(self, w: Tensors, x: Tensor) -> Tensor:
        """Every expert on every token, weighted by the router's choice, and the shared expert."""
        x = self._norm(x) * w["pre_mlp_layernorm.weight"]
        scores = softplus(linear(x, w["mlp.router.weight"])).sqrt()
        chosen = (scores + w["mlp.router.expert_bias"]).topk(self.top, dim=-1).indices
        weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        weights = self.routed_scale * weights / weights.sum(-1, keepdim=True)
        inner = self._gated(
            torch.einsum("bsh,eoh->bseo", x, w["mlp.experts.experts.linear_fc1.weight"])
        )
        down = w["mlp.experts.experts.linear_fc2.weight"]
        routed = torch.einsum("bse,bsei,ehi->bsh", weights, inner, down)
        shared = self._gated(linear(x, w["mlp.shared_experts.linear_fc1.weight"]))
        return routed + linear(shared, w["mlp.shared_experts.linear_fc2.weight"])

    def _gated(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return silu(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)
