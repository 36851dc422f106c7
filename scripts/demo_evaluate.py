"""Measures a saved demo checkpoint, from its files alone.

The forward pass below is written out in plain torch and shares no code with training or with
transformers, so a mistake in naming, splitting or casting on the way to the disk shows up here.
BF16 weights are computed with in FP32.

Shapes: B sequences, T positions, H hidden size, V vocabulary, N query heads, K KV heads,
D head size, E routed experts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from demo_text import take_documents

Config = Mapping[str, Any]
Weights = Mapping[str, Tensor]

HELD_OUT_SEED = 2
HELD_OUT_DOCUMENTS = 400
BATCH = 8


@dataclass(frozen=True)
class Scores:
    """Fractions over `positions` held-out positions."""

    positions: int
    main_accuracy: float  # main head at t+1 gives the true token t+2
    mtp_accuracy: float  # MTP head at t gives the true token t+2
    agreement: float  # MTP head at t gives the same token as the main head at t+1
    chance: float  # the agreement of two independent heads with these heads' token frequencies


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale the last axis to unit mean square, then by `weight`."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, config: Config) -> Tensor:
    """Apply rotary positions 0..T-1 to the leading part of each head, x [B, heads, T, D]."""
    width = int(x.shape[-1] * config["partial_rotary_factor"])
    rates = config["rope_theta"] ** (-torch.arange(0, width, 2).float() / width)
    angles = torch.arange(x.shape[2]).float()[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    first, second, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def attention(x: Tensor, w: Weights, prefix: str, config: Config) -> Tensor:
    """Causal grouped-query attention, [B, T, H] to [B, T, H]."""
    batch, length, _ = x.shape

    def heads(kind: str) -> Tensor:
        out = F.linear(x, w[f"{prefix}{kind}_proj.weight"], w[f"{prefix}{kind}_proj.bias"])
        return out.view(batch, length, -1, config["head_dim"])

    eps = config["rms_norm_eps"]
    q = rms_norm(heads("q"), w[prefix + "q_norm.weight"], eps).transpose(1, 2)
    k = rms_norm(heads("k"), w[prefix + "k_norm.weight"], eps).transpose(1, 2)
    v = heads("v").transpose(1, 2)
    q, k = rotate(q, config), rotate(k, config)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(2, 3) / config["head_dim"] ** 0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
    flat = mixed.transpose(1, 2).reshape(batch, length, -1)
    return F.linear(flat, w[prefix + "o_proj.weight"])


def feed_forward(x: Tensor, w: Weights, prefix: str) -> Tensor:
    """Gated MLP: a dense one, a shared expert or a routed expert."""
    gate = F.silu(F.linear(x, w[prefix + "gate_proj.weight"]))
    up = F.linear(x, w[prefix + "up_proj.weight"])
    return F.linear(gate * up, w[prefix + "down_proj.weight"])


def mixture(x: Tensor, w: Weights, prefix: str, config: Config) -> Tensor:
    """Shared expert plus the top routed experts; the router bias chooses but does not weigh."""
    affinity = F.linear(x, w[prefix + "gate.weight"]).sigmoid()
    ranked = affinity + w[prefix + "gate.e_score_correction_bias"]
    chosen = ranked.topk(config["num_experts_per_tok"], dim=-1).indices
    share = torch.zeros_like(affinity).scatter(-1, chosen, affinity.gather(-1, chosen))
    share = share / share.sum(-1, keepdim=True) * config["routed_scaling_factor"]
    out = feed_forward(x, w, prefix + "shared_experts.")
    # Every expert runs on every token: wasteful, but there is no dispatch to get wrong.
    for expert in range(config["n_routed_experts"]):
        out = out + share[..., expert, None] * feed_forward(x, w, f"{prefix}experts.{expert}.")
    return out


def decoder_layer(x: Tensor, w: Weights, layer: int, config: Config) -> Tensor:
    """One pre-norm decoder layer, [B, T, H] to [B, T, H]."""
    prefix, eps = f"model.layers.{layer}.", config["rms_norm_eps"]
    normed = rms_norm(x, w[prefix + "input_layernorm.weight"], eps)
    x = x + attention(normed, w, prefix + "self_attn.", config)
    normed = rms_norm(x, w[prefix + "post_attention_layernorm.weight"], eps)
    if layer < config["first_k_dense_replace"]:
        return x + feed_forward(normed, w, prefix + "mlp.")
    return x + mixture(normed, w, prefix + "mlp.", config)


def predict(ids: Tensor, w: Weights, config: Config) -> tuple[Tensor, Tensor]:
    """Top-1 tokens of both heads for ids [B, T].

    Returns main [B, T], where main[:, t] guesses token t+1, and MTP [B, T-1], where mtp[:, t]
    guesses token t+2 having seen the true token t+1.
    """
    layers, eps = config["num_hidden_layers"], config["rms_norm_eps"]
    hidden = F.embedding(ids, w["model.embed_tokens.weight"])
    for layer in range(layers):
        hidden = decoder_layer(hidden, w, layer, config)
    hidden = rms_norm(hidden, w["model.norm.weight"], eps)
    prefix = f"model.layers.{layers}."
    ahead = F.embedding(ids[:, 1:], w[prefix + "embed_tokens.weight"])
    halves = [
        rms_norm(ahead, w[prefix + "enorm.weight"], eps),
        rms_norm(hidden[:, :-1], w[prefix + "hnorm.weight"], eps),
    ]
    drafted = F.linear(torch.cat(halves, dim=-1), w[prefix + "eh_proj.weight"])
    drafted = decoder_layer(drafted, w, layers, config)
    drafted = rms_norm(drafted, w[prefix + "shared_head.norm.weight"], eps)
    main = F.linear(hidden, w["lm_head.weight"]).argmax(-1)
    return main, F.linear(drafted, w[prefix + "shared_head.head.weight"]).argmax(-1)


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Read every tensor the index names, as FP32."""
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    weights: dict[str, Tensor] = {}
    for shard in sorted(set(index["weight_map"].values())):
        weights |= load_file(folder / shard)
    if weights.keys() != index["weight_map"].keys():
        raise ValueError("the index and the shards name different tensors")
    return {name: tensor.float() for name, tensor in weights.items()}


def swap_halves(w: Weights, config: Config) -> dict[str, Tensor]:
    """The same weights with the two column halves of eh_proj exchanged: a broken conversion."""
    name = f"model.layers.{config['num_hidden_layers']}.eh_proj.weight"
    embedding_half, hidden_half = w[name].chunk(2, dim=1)
    return {**w, name: torch.cat([hidden_half, embedding_half], dim=1)}


def held_out_ids(folder: Path, length: int) -> Tensor:
    """Held-out documents, none of them in the training text, packed into ids [B, length]."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = take_documents(HELD_OUT_SEED, HELD_OUT_DOCUMENTS, held_out=True)
    ids = [i for text in texts for i in tokenizer.encode(text, add_special_tokens=False).ids]
    rows = len(ids) // length
    return torch.tensor(ids[: rows * length]).view(rows, length)


@torch.no_grad()
def score(ids: Tensor, w: Weights, config: Config) -> Scores:
    """Compare both heads' guesses for the same tokens t+2, over all positions that have one."""
    pairs = [predict(batch, w, config) for batch in torch.split(ids, BATCH)]
    # The main head's guess for token t+2 stands at t+1; the last position's guess has no truth.
    main = torch.cat([m[:, 1:-1].flatten() for m, _ in pairs])
    mtp = torch.cat([d[:, :-1].flatten() for _, d in pairs])
    truth = ids[:, 2:].flatten()
    vocab, count = config["vocab_size"], truth.numel()
    frequency = [torch.bincount(x, minlength=vocab).double() / count for x in (main, mtp)]
    return Scores(
        positions=count,
        main_accuracy=(main == truth).double().mean().item(),
        mtp_accuracy=(mtp == truth).double().mean().item(),
        agreement=(mtp == main).double().mean().item(),
        chance=(frequency[0] * frequency[1]).sum().item(),
    )


def evaluate(folder: Path) -> tuple[Scores, Scores]:
    """Score a checkpoint folder, as it is and with the halves of eh_proj swapped."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_weights(folder)
    ids = held_out_ids(folder, config["max_position_embeddings"])
    return score(ids, weights, config), score(ids, swap_halves(weights, config), config)
