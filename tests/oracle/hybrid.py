"""The oracle's view of Qwen3-Next and Qwen3.5: settings, layer specs, a walk over HF names.

Written from transformers' code without looking at the package under test. Configs come in flat:
the language model's own keys, `model_type` of the family, `num_nextn_predict_layers` for MTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mtpconv.parity import fla

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

Config = dict[str, object]
Settings = dict[str, object]
Tensors = dict[str, Tensor]

FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def flat(config: Config, mtp: int) -> Config:
    """A released config as the oracle takes it."""
    text = config.get("text_config", config)
    assert isinstance(text, dict)
    keys = ("model_type", "tie_word_embeddings")
    own = {key: config[key] for key in keys} | {"num_nextn_predict_layers": mtp}
    return {"intermediate_size": text.get("moe_intermediate_size")} | text | own


def is_linear(config: Config, layer: int) -> bool:
    """Whether a decoder layer is a gated delta net: all but every n-th."""
    return (layer + 1) % int(config["full_attention_interval"]) != 0


def settings(config: Config) -> Settings:
    """What these families add to the common TransformerConfig."""
    layers = range(int(config["num_hidden_layers"]))
    found: Settings = {
        "num_query_groups": config["num_key_value_heads"],
        "kv_channels": config["head_dim"],
        "qk_layernorm": True,
        "layernorm_zero_centered_gamma": True,
        "attention_output_gate": True,
        "mtp_num_layers": config["num_nextn_predict_layers"] or None,
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": [int(is_linear(config, layer)) for layer in layers],
        "linear_conv_kernel_dim": config["linear_conv_kernel_dim"],
        "linear_key_head_dim": config["linear_key_head_dim"],
        "linear_value_head_dim": config["linear_value_head_dim"],
        "linear_num_key_heads": config["linear_num_key_heads"],
        "linear_num_value_heads": config["linear_num_value_heads"],
    }
    if not config.get("num_experts"):
        return found
    dense = config["mlp_only_layers"]
    assert isinstance(dense, list)
    return found | {
        "num_moe_experts": config["num_experts"],
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        "moe_layer_freq": [int(layer not in dense) for layer in layers],
        "moe_shared_expert_intermediate_size": config["shared_expert_intermediate_size"],
        "moe_shared_expert_gate": True,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "allgather",
        "moe_router_load_balancing_type": "none",
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,
        "moe_router_dtype": "fp32",
        "moe_permute_fusion": False,
    }


def block_spec(config: TransformerConfig) -> object:
    """The block spec of a model with gated delta nets, over stand-ins for the FLA package."""
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as specs

    fla.install()
    return specs.get_transformer_block_with_experimental_attention_variant_spec(config)


# --- HF tensors to megatron's ---------------------------------------------------------------------


def expected(config: Config, tensors: Tensors) -> Tensors:
    """Global megatron tensors under per-layer names, experts stacked; the vision tower left out."""
    hf = {name: x for name, x in tensors.items() if ".visual." not in name}
    prefix = "model." if config["model_type"] == "qwen3_next" else "model.language_model."
    out: Tensors = {"embedding.word_embeddings.weight": hf.pop(f"{prefix}embed_tokens.weight")}
    out["decoder.final_layernorm.weight"] = hf.pop(f"{prefix}norm.weight")
    if not config["tie_word_embeddings"]:
        out["output_layer.weight"] = hf.pop("lm_head.weight")
    for layer in range(int(config["num_hidden_layers"])):
        p, q = f"{prefix}layers.{layer}.", f"decoder.layers.{layer}."
        out |= _delta(config, hf, p, q) if is_linear(config, layer) else _full(config, hf, p, q)
        out |= _mlp(hf, p, q)
    if config["num_nextn_predict_layers"]:
        q = "mtp.layers.0."
        out[f"{q}enorm.weight"] = hf.pop("mtp.pre_fc_norm_embedding.weight")
        out[f"{q}hnorm.weight"] = hf.pop("mtp.pre_fc_norm_hidden.weight")
        out[f"{q}eh_proj.weight"] = hf.pop("mtp.fc.weight")
        out[f"{q}final_layernorm.weight"] = hf.pop("mtp.norm.weight")
        out |= _full(config, hf, "mtp.layers.0.", f"{q}transformer_layer.")
        out |= _mlp(hf, "mtp.layers.0.", f"{q}transformer_layer.")
    if hf:
        raise ValueError(f"the walk left {len(hf)} tensors behind, first {min(hf)}")
    return out


def _full(config: Config, hf: Tensors, p: str, q: str) -> Tensors:
    a, b = f"{p}self_attn.", f"{q}self_attention."
    groups, dim = int(config["num_key_value_heads"]), int(config["head_dim"])
    hidden = int(config["hidden_size"])
    # by group, head in the group, q or gate, dimension
    both = hf.pop(f"{a}q_proj.weight").view(groups, -1, 2, dim, hidden)
    k, v = (hf.pop(f"{a}{part}_proj.weight").view(groups, dim, hidden) for part in "kv")
    query, gate = both[:, :, 0].flatten(1, 2), both[:, :, 1].flatten(1, 2)
    return {
        f"{b}linear_qkv.layer_norm_weight": hf.pop(f"{p}input_layernorm.weight"),
        f"{b}linear_qkv.weight": torch.cat([query, gate, k, v], 1).reshape(-1, hidden),
        f"{b}linear_proj.weight": hf.pop(f"{a}o_proj.weight"),
        f"{b}q_layernorm.weight": hf.pop(f"{a}q_norm.weight"),
        f"{b}k_layernorm.weight": hf.pop(f"{a}k_norm.weight"),
    }


def _delta(config: Config, hf: Tensors, p: str, q: str) -> Tensors:
    a, b = f"{p}linear_attn.", f"{q}self_attention."
    heads, hidden = int(config["linear_num_key_heads"]), int(config["hidden_size"])
    each = int(config["linear_num_value_heads"]) // heads
    key, value = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
    if f"{a}in_proj_qkvz.weight" in hf:
        qkvz = hf.pop(f"{a}in_proj_qkvz.weight").view(heads, -1, hidden)
        parts = list(qkvz.split([key, key, each * value, each * value], 1))
        parts += hf.pop(f"{a}in_proj_ba.weight").view(heads, -1, hidden).split([each, each], 1)
        parts = [part.reshape(-1, hidden) for part in parts]
    else:
        sizes = [heads * key, heads * key, heads * each * value]
        parts = list(hf.pop(f"{a}in_proj_qkv.weight").split(sizes))
        parts += [hf.pop(f"{a}in_proj_{part}.weight") for part in "zba"]
    names = ("query", "key", "value", "z", "beta", "alpha")
    out = {f"{b}in_proj.weight.{n}": x for n, x in zip(names, parts, strict=True)}
    conv = hf.pop(f"{a}conv1d.weight")
    conv_parts = conv.split([heads * key, heads * key, heads * each * value])
    out |= {f"{b}conv1d.weight.{n}": x for n, x in zip(names[:3], conv_parts, strict=True)}
    gamma = hf.pop(f"{a}norm.weight")
    wide = torch.float64 if gamma.dtype == torch.float32 else torch.float32
    return out | {
        f"{b}in_proj.layer_norm_weight": hf.pop(f"{p}input_layernorm.weight"),
        f"{b}A_log": hf.pop(f"{a}A_log"),
        f"{b}dt_bias": hf.pop(f"{a}dt_bias"),
        f"{b}out_norm.weight": gamma.to(wide) - 1,
        f"{b}out_proj.weight": hf.pop(f"{a}out_proj.weight"),
    }


def _mlp(hf: Tensors, p: str, q: str) -> Tensors:
    norm = hf.pop(f"{p}post_attention_layernorm.weight")
    if f"{p}mlp.gate.weight" not in hf:
        return {
            f"{q}mlp.linear_fc1.layer_norm_weight": norm,
            f"{q}mlp.linear_fc1.weight": _fc1(hf, f"{p}mlp."),
            f"{q}mlp.linear_fc2.weight": hf.pop(f"{p}mlp.down_proj.weight"),
        }
    router = hf.pop(f"{p}mlp.gate.weight")
    if f"{p}mlp.experts.gate_up_proj" in hf:
        fc1, fc2 = hf.pop(f"{p}mlp.experts.gate_up_proj"), hf.pop(f"{p}mlp.experts.down_proj")
    else:
        experts = [f"{p}mlp.experts.{expert}." for expert in range(len(router))]
        fc1 = torch.stack([_fc1(hf, expert) for expert in experts])
        fc2 = torch.stack([hf.pop(f"{expert}down_proj.weight") for expert in experts])
    shared = f"{p}mlp.shared_expert."
    return {
        f"{q}pre_mlp_layernorm.weight": norm,
        f"{q}mlp.router.weight": router,
        f"{q}mlp.experts.experts.linear_fc1.weight": fc1,
        f"{q}mlp.experts.experts.linear_fc2.weight": fc2,
        f"{q}mlp.shared_experts.linear_fc1.weight": _fc1(hf, shared),
        f"{q}mlp.shared_experts.linear_fc2.weight": hf.pop(f"{shared}down_proj.weight"),
        f"{q}mlp.shared_experts.gate_weight": hf.pop(f"{p}mlp.shared_expert_gate.weight"),
    }


def _fc1(hf: Tensors, p: str) -> Tensor:
    return torch.cat([hf.pop(f"{p}gate_proj.weight"), hf.pop(f"{p}up_proj.weight")])
