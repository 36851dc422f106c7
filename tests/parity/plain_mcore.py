"""An MTP layer of a Megatron checkpoint in plain torch, under the layout that Megatron documents.

For families that no megatron-core builds. Written from the layout alone: `linear_qkv` holds, KV
group by KV group, the rows of its q heads (and their gates), of k and of v; `linear_fc1` gate over
up; `eh_proj` takes `[embedding | hidden]`; a latent attention keeps DeepSeek's own projections.
Everything is float32; states are `[B, S, H]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Rope:
    """`dims` of a head are turned, as two halves or (`pairs`) as neighbours."""

    dims: int
    base: float = 10000.0
    pairs: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """`x [B, S, heads, dim]`, its first `dims` turned by their position."""
        turned, rest = x[..., : self.dims], x[..., self.dims :]
        frequency = self.base ** -(torch.arange(0, self.dims, 2) / self.dims)
        angle = torch.arange(x.shape[1])[:, None, None] * frequency
        sin, cos = angle.sin(), angle.cos()
        if self.pairs:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return torch.cat([turned, rest], dim=-1)


@dataclass(frozen=True)
class Grouped:
    """A grouped-query attention; `window` is how many keys a query sees, itself included."""

    heads: int
    groups: int
    qk_dim: int
    v_dim: int
    rope: Rope
    window: int | None = None
    gated: bool = False
    value_scale: float = 1.0


@dataclass(frozen=True)
class Latent:
    """A latent attention; both latents are scaled by sqrt(hidden / rank)."""

    heads: int
    nope: int
    rope: Rope
    value: int


@dataclass(frozen=True)
class Layer:
    """What an MTP layer is made of."""

    attention: Grouped | Latent
    eps: float
    centred: bool = False
    """Whether gammas count from zero."""

    def norm(self, x: Tensor, gamma: Tensor, eps: float | None = None) -> Tensor:
        """RMSNorm over the last axis."""
        size = x.pow(2).mean(-1, keepdim=True) + (self.eps if eps is None else eps)
        return x * size.rsqrt() * (gamma + self.centred)

    def __call__(self, w: Tensors, embedded: Tensor, previous: Tensor) -> Tensor:
        """States behind the final norm; `w` without the layer's prefix `mtp.layers.{k}.`."""
        halves = (self.norm(embedded, w["enorm.weight"]), self.norm(previous, w["hnorm.weight"]))
        x = linear(torch.cat(halves, dim=-1), w["eh_proj.weight"])
        inner = {n.partition(".")[2]: t for n, t in w.items() if n.startswith("transformer_layer.")}
        if isinstance(self.attention, Grouped):
            x = x + self._grouped(self.attention, inner, x)
            gamma = inner["mlp.linear_fc1.layer_norm_weight"]
        else:
            x = x + self._latent(self.attention, inner, x)
            gamma = inner["pre_mlp_layernorm.weight"]
        gate, up = linear(self.norm(x, gamma), inner["mlp.linear_fc1.weight"]).chunk(2, dim=-1)
        x = x + linear(silu(gate) * up, inner["mlp.linear_fc2.weight"])
        return self.norm(x, w["final_layernorm.weight"])

    def _grouped(self, a: Grouped, w: Tensors, x: Tensor) -> Tensor:
        p = "self_attention."
        x = self.norm(x, w[f"{p}linear_qkv.layer_norm_weight"])
        q_rows = a.heads // a.groups * a.qk_dim
        sizes = [q_rows, *[q_rows] * a.gated, a.qk_dim, a.v_dim]
        rows = linear(x, w[f"{p}linear_qkv.weight"]).unflatten(-1, (a.groups, sum(sizes)))
        q, *gate, k, v = rows.split(sizes, dim=-1)
        q = q.reshape(*x.shape[:2], a.heads, a.qk_dim)
        if f"{p}q_layernorm.weight" in w:
            q = self.norm(q, w[f"{p}q_layernorm.weight"])
            k = self.norm(k, w[f"{p}k_layernorm.weight"])
        sinks = w.get(f"{p}core_attention.softmax_offset")
        out = attend(a.rope(q), a.rope(k), v * a.value_scale, a.qk_dim**-0.5, a.window, sinks)
        if a.gated:
            out = out * gate[0].reshape(out.shape).sigmoid()
        return linear(out, w[f"{p}linear_proj.weight"])

    def _latent(self, a: Latent, w: Tensors, x: Tensor) -> Tensor:
        p, hidden = "self_attention.", x.shape[-1]
        x = self.norm(x, w["input_layernorm.weight"])
        q = linear(x, w[f"{p}linear_q_down_proj.weight"])
        scale = (hidden / q.shape[-1]) ** 0.5
        q = self.norm(q, w[f"{p}linear_q_up_proj.layer_norm_weight"], 1e-6) * scale
        q = linear(q, w[f"{p}linear_q_up_proj.weight"]).unflatten(-1, (a.heads, -1))
        kv, k_rope = linear(x, w[f"{p}linear_kv_down_proj.weight"]).tensor_split(
            [-a.rope.dims], dim=-1
        )
        scale = (hidden / kv.shape[-1]) ** 0.5
        kv = self.norm(kv, w[f"{p}kv_layernorm.weight"], 1e-6) * scale
        kv = linear(kv, w[f"{p}linear_kv_up_proj.weight"]).unflatten(-1, (a.heads, -1))
        k, v = kv.split([a.nope, a.value], dim=-1)
        k_rope = a.rope(k_rope.unsqueeze(2)).expand(-1, -1, a.heads, -1)
        q = torch.cat([q[..., : a.nope], a.rope(q[..., a.nope :])], dim=-1)
        k = torch.cat([k, k_rope], dim=-1)
        out = attend(q, k, v, q.shape[-1] ** -0.5, None, None)
        return linear(out, w[f"{p}linear_proj.weight"])


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, sinks: Tensor | None
) -> Tensor:
    """Causal softmax attention, `[B, S, heads or groups, dim]` each, to `[B, S, heads * dim]`."""
    repeats = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(repeats, dim=2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(q.shape[1])[None]
    unseen = j > i if window is None else (j > i) | (j <= i - window)
    scores = scores.masked_fill(unseen, float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.view(1, -1, 1, 1) - largest).exp()
    return torch.einsum("bhij,bjhd->bihd", weights / total, v).flatten(2)
