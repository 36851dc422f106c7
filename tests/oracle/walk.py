"""HF tensors -> megatron's global tensors, by a plain walk over names with torch operations.

The second opinion on every mapping: no table, no inverse, nothing shared with the package. Also the
way back from a checkpoint on disk, through megatron's own loader and a real model.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tests.oracle import plain
from tests.oracle.model import entries, sharded_state
from tests.oracle.translate import DSA, LATENT, Config, mtp_layers

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel

Tensors = dict[str, Tensor]


def expected(
    config: Config, tensors: Tensors, *, padded_vocab: int | None = None, pad_value: float = 0.0
) -> Tensors:
    """Global megatron tensors under per-layer names, experts stacked `[E, ...]`.

    bfloat16 as in HF, `expert_bias` float32. With `padded_vocab` the embedding and the head get
    rows of `pad_value` at the end. A tied model has no `output_layer`.
    """
    hf = dict(tensors)
    out: Tensors = {}
    vocab = padded_vocab or int(config["vocab_size"])
    embedding = hf.pop("model.embed_tokens.weight")
    out["embedding.word_embeddings.weight"] = _pad_rows(embedding, vocab, pad_value)
    out["decoder.final_layernorm.weight"] = hf.pop("model.norm.weight")
    head = embedding
    if not config["tie_word_embeddings"]:
        head = hf.pop("lm_head.weight")
        out["output_layer.weight"] = _pad_rows(head, vocab, pad_value)
    layers = int(config["num_hidden_layers"])
    for layer in range(layers):
        out |= _layer(config, hf, f"model.layers.{layer}.", f"decoder.layers.{layer}.")
    for depth in range(mtp_layers(config)):
        p, q = f"model.layers.{layers + depth}.", f"mtp.layers.{depth}."
        out[f"{q}enorm.weight"] = hf.pop(f"{p}enorm.weight")
        out[f"{q}hnorm.weight"] = hf.pop(f"{p}hnorm.weight")
        out[f"{q}eh_proj.weight"] = hf.pop(f"{p}eh_proj.weight")
        out[f"{q}final_layernorm.weight"] = hf.pop(f"{p}shared_head.norm.weight")
        out |= _layer(config, hf, p, f"{q}transformer_layer.")
        _drop_copy(hf, f"{p}embed_tokens.weight", embedding)
        _drop_copy(hf, f"{p}shared_head.head.weight", head)
    if hf:
        raise ValueError(f"the walk left {len(hf)} tensors behind, first {min(hf)}")
    return out


def _layer(config: Config, hf: Tensors, p: str, q: str) -> Tensors:
    """One layer: HF prefix `p` to megatron prefix `q`; takes its tensors out of `hf`."""
    if config["model_type"] in plain.FAMILIES:
        return plain.layer(config, hf, p, q)
    if config["model_type"] in LATENT:
        out = _mla(hf, p, q)
        if config["model_type"] in DSA:
            out = _dsa(config, hf, p, q, out)
    else:
        out = _gqa(config, hf, p, q)
    if f"{p}mlp.gate.weight" in hf:
        return out | _moe(hf, p, q)
    out[f"{q}mlp.linear_fc1.layer_norm_weight"] = hf.pop(f"{p}post_attention_layernorm.weight")
    out[f"{q}mlp.linear_fc1.weight"] = _fc1(hf, f"{p}mlp.")
    out[f"{q}mlp.linear_fc2.weight"] = hf.pop(f"{p}mlp.down_proj.weight")
    return out


def _gqa(config: Config, hf: Tensors, p: str, q: str) -> Tensors:
    a, b = f"{p}self_attn.", f"{q}self_attention."
    out: Tensors = {
        f"{b}linear_qkv.layer_norm_weight": hf.pop(f"{p}input_layernorm.weight"),
        f"{b}linear_qkv.weight": _qkv(config, hf, a, "weight"),
        f"{b}linear_proj.weight": hf.pop(f"{a}o_proj.weight"),
    }
    if f"{a}q_proj.bias" in hf:
        out[f"{b}linear_qkv.bias"] = _qkv(config, hf, a, "bias")
    if f"{a}q_norm.weight" in hf:
        out[f"{b}q_layernorm.weight"] = hf.pop(f"{a}q_norm.weight")
        out[f"{b}k_layernorm.weight"] = hf.pop(f"{a}k_norm.weight")
    return out


def _qkv(config: Config, hf: Tensors, a: str, kind: str) -> Tensor:
    """q `[heads*d, ...]`, k and v `[groups*d, ...]` to rows `[q.., k, v]` per group."""
    groups = int(config["num_key_value_heads"])
    parts = [hf.pop(f"{a}{name}_proj.{kind}") for name in ("q", "k", "v")]
    rest = parts[0].shape[1:]
    by_group = [part.view(groups, -1, *rest) for part in parts]
    return torch.cat(by_group, dim=1).reshape(-1, *rest)


def _mla(hf: Tensors, p: str, q: str) -> Tensors:
    a, b = f"{p}self_attn.", f"{q}self_attention."
    out: Tensors = {f"{q}input_layernorm.weight": hf.pop(f"{p}input_layernorm.weight")}
    if f"{a}q_proj.weight" in hf:
        out[f"{b}linear_q_proj.weight"] = hf.pop(f"{a}q_proj.weight")
    else:
        out[f"{b}linear_q_down_proj.weight"] = hf.pop(f"{a}q_a_proj.weight")
        out[f"{b}linear_q_up_proj.layer_norm_weight"] = hf.pop(f"{a}q_a_layernorm.weight")
        out[f"{b}linear_q_up_proj.weight"] = hf.pop(f"{a}q_b_proj.weight")
    out[f"{b}linear_kv_down_proj.weight"] = hf.pop(f"{a}kv_a_proj_with_mqa.weight")
    out[f"{b}linear_kv_up_proj.layer_norm_weight"] = hf.pop(f"{a}kv_a_layernorm.weight")
    out[f"{b}linear_kv_up_proj.weight"] = hf.pop(f"{a}kv_b_proj.weight")
    out[f"{b}linear_proj.weight"] = hf.pop(f"{a}o_proj.weight")
    return out


def _dsa(config: Config, hf: Tensors, p: str, q: str, mla: Tensors) -> Tensors:
    """The indexer of a layer that has one, and the norms' names from megatron-core 0.19 on.

    0.16 to 0.18 keep the RoPE part of an indexer head at its end, HF and 0.19 at its beginning.
    """
    new = tuple(int(part) for part in version("megatron-core").split(".")[:2]) >= (0, 19)
    out = dict(mla)
    b = f"{q}self_attention."
    if new:
        for part in ("q", "kv"):
            norm = out.pop(f"{b}linear_{part}_up_proj.layer_norm_weight")
            out[f"{b}{part}_layernorm.weight"] = norm
    a, b = f"{p}self_attn.indexer.", f"{b}core_attention.indexer."
    if f"{a}wk.weight" not in hf:
        return out
    width, rope_dim = int(config["index_head_dim"]), int(config["qk_rope_head_dim"])
    names = {"wq_b.weight": "linear_wq_b.weight", "wk.weight": "linear_wk.weight"}
    names |= {"k_norm.weight": "k_norm.weight", "k_norm.bias": "k_norm.bias"}
    for theirs, ours in names.items():
        tensor = hf.pop(f"{a}{theirs}")
        heads = tensor.reshape(-1, width, *tensor.shape[1:])
        if not new:
            heads = heads.roll(-rope_dim, dims=1)
        out[f"{b}{ours}"] = heads.reshape(tensor.shape)
    out[f"{b}linear_weights_proj.weight"] = hf.pop(f"{a}weights_proj.weight")
    return out


def _moe(hf: Tensors, p: str, q: str) -> Tensors:
    router = hf.pop(f"{p}mlp.gate.weight")
    out: Tensors = {
        f"{q}pre_mlp_layernorm.weight": hf.pop(f"{p}post_attention_layernorm.weight"),
        f"{q}mlp.router.weight": router,
    }
    if f"{p}mlp.gate.e_score_correction_bias" in hf:
        out[f"{q}mlp.router.expert_bias"] = hf.pop(f"{p}mlp.gate.e_score_correction_bias").float()
    experts = [f"{p}mlp.experts.{expert}." for expert in range(router.shape[0])]
    fc1 = torch.stack([_fc1(hf, expert) for expert in experts])
    fc2 = torch.stack([hf.pop(f"{expert}down_proj.weight") for expert in experts])
    out[f"{q}mlp.experts.experts.linear_fc1.weight"] = fc1
    out[f"{q}mlp.experts.experts.linear_fc2.weight"] = fc2
    shared = f"{p}mlp.shared_experts."
    if f"{shared}down_proj.weight" in hf:
        out[f"{q}mlp.shared_experts.linear_fc1.weight"] = _fc1(hf, shared)
        out[f"{q}mlp.shared_experts.linear_fc2.weight"] = hf.pop(f"{shared}down_proj.weight")
    return out


def _fc1(hf: Tensors, p: str) -> Tensor:
    """gate `[F, H]` over up `[F, H]`: `[2F, H]`."""
    return torch.cat([hf.pop(f"{p}gate_proj.weight"), hf.pop(f"{p}up_proj.weight")])


def _pad_rows(tensor: Tensor, rows: int, value: float) -> Tensor:
    pad = tensor.new_full((rows - tensor.shape[0], *tensor.shape[1:]), value)
    return torch.cat([tensor, pad]) if len(pad) else tensor


def _drop_copy(hf: Tensors, name: str, original: Tensor) -> None:
    copy = hf.pop(name, original)
    if not torch.equal(copy, original):
        raise ValueError(f"{name} differs from the tensor it should copy")


def stacked(tensors: Tensors, num_layers: int) -> Tensors:
    """`decoder.layers.N.X` of all layers as one `decoder.layers.X [L, ...]`; the rest as it is.

    For homogeneous models; MTP layers stay one by one, as megatron keeps them.
    """
    out = {name: x for name, x in tensors.items() if not name.startswith("decoder.layers.")}
    for name in tensors:
        if name.startswith("decoder.layers.0."):
            suffix = name.removeprefix("decoder.layers.0.")
            layers = [tensors[f"decoder.layers.{layer}.{suffix}"] for layer in range(num_layers)]
            out[f"decoder.layers.{suffix}"] = torch.stack(layers)
    if sum(len(x) if name.startswith("decoder.layers.") else 1 for name, x in out.items()) != len(
        tensors
    ):
        raise ValueError("the decoder's layers do not all have the same tensors")
    return out


# --- the model's side ----------------------------------------------------------------------------


def fill_model(model: GPTModel, tensors: Tensors, *, per_layer: bool) -> None:
    """Copy each global tensor's slice into the shard of this rank's model that asks for it.

    `tensors` is what `expected` gives, or `stacked` of it where the model stacks its layers. A
    shard
    without a tensor is a KeyError; whether every tensor was asked for, `gather` tells.
    """
    with torch.no_grad():
        for entry in _tensor_entries(model, per_layer):
            entry.data.copy_(tensors[entry.key][entry.global_slice()])


def gather(model: GPTModel, *, per_layer: bool) -> Tensors:
    """Global tensors by key of a model on a single rank, put together from its shards."""
    out: Tensors = {}
    for entry in _tensor_entries(model, per_layer):
        if entry.key not in out:
            out[entry.key] = torch.empty(entry.global_shape, dtype=entry.dtype)
        out[entry.key][entry.global_slice()] = entry.data.detach()
    return out


def _tensor_entries(model: GPTModel, per_layer: bool) -> list:
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    state = sharded_state(model, per_layer=per_layer)
    return [entry for entry in entries(state) if isinstance(entry, ShardedTensor)]


def load_into_model(
    model: GPTModel,
    checkpoint: Path,
    per_layer: bool | None = None,
    *,
    strict: str = "assume_ok_unexpected",
) -> Tensors:
    """Load a torch_dist folder (`.../iter_0000001`) into a CPU model; return its global tensors by
    key.

    Through `megatron.core.dist_checkpointing.load` and `load_state_dict`, on a single rank.
    `per_layer=None` does as a job does: ask as the checkpoint's own `content_metadata` says. So
    does the default `strict`, which fails on what the model asks for and the checkpoint lacks;
    "raise_all" also fails on what the checkpoint has and the model does not ask for.
    """
    from megatron.core import dist_checkpointing

    if per_layer is None:
        metadata = dist_checkpointing.load_content_metadata(str(checkpoint)) or {}
        per_layer = bool(metadata.get("non_homogeneous_layers"))
    state = {"model": sharded_state(model, per_layer=per_layer)}
    loaded = dist_checkpointing.load(state, str(checkpoint), strict=strict)
    model.load_state_dict(loaded["model"], strict=True)
    return gather(model, per_layer=per_layer)
