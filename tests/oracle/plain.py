"""The oracle's view of the families without MTP: settings, a walk over names, layer specs.

Written from transformers' code without looking at the package under test, like `translate.py` and
`walk.py`, which call this module for the families in `FAMILIES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

Config = dict[str, object]
Settings = dict[str, object]
Tensors = dict[str, Tensor]

FAMILIES = (
    "mistral", "mixtral", "qwen2_moe", "deepseek_v2", "olmoe", "minimax_m2", "phi3",
)  # fmt: skip
LATENT = ("deepseek_v2",)
WIDE_NORMS = ("olmoe", "minimax_m2")


# --- settings ------------------------------------------------------------------------------------


def settings(config: Config) -> Settings:
    """What a family adds to the common TransformerConfig; latent attention excluded."""
    family, heads = config["model_type"], int(config["num_attention_heads"])
    found: Settings = {}
    if family not in LATENT:
        found = {
            "num_query_groups": config["num_key_value_heads"],
            "kv_channels": config.get("head_dim") or int(config["hidden_size"]) // heads,
            "add_qkv_bias": family == "qwen2_moe",
            "qk_layernorm": family in WIDE_NORMS,
        }
    experts = config.get("num_experts") or config.get("num_local_experts")
    experts = experts or config.get("n_routed_experts")
    return found | _moe(config, int(experts)) if experts else found


def _moe(config: Config, experts: int) -> Settings:
    family, layers = config["model_type"], int(config["num_hidden_layers"])
    width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    dense = set(config.get("mlp_only_layers") or range(int(config.get("first_k_dense_replace", 0))))
    found: Settings = {
        "num_moe_experts": experts,
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": width,
        "moe_layer_freq": [int(layer not in dense) for layer in range(layers)] if dense else 1,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "allgather",
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_permute_fusion": False,
        # Mixtral weighs by a softmax over the chosen experts, the others by one over all.
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": family != "mixtral",
    }
    if family == "minimax_m2":
        found |= {
            "moe_router_score_function": "sigmoid",
            "moe_router_pre_softmax": False,
            "moe_router_enable_expert_bias": True,
        }
    if family == "qwen2_moe":
        found["moe_shared_expert_intermediate_size"] = config["shared_expert_intermediate_size"]
        found["moe_shared_expert_gate"] = True
    if family == "deepseek_v2":
        found["moe_shared_expert_intermediate_size"] = int(config["n_shared_experts"]) * width
        found["moe_router_topk_scaling_factor"] = config["routed_scaling_factor"]
    return found


def rotary_percent(config: Config) -> float | None:
    """The share of a head that RoPE turns, where the family says it in its own way."""
    if config["model_type"] == "minimax_m2":
        return int(config["rotary_dim"]) / int(config["head_dim"])
    return None


# --- layer specs ---------------------------------------------------------------------------------


def adapt(config: Config, spec: object) -> None:
    """Put modules into a layer or block spec that megatron-core's own lacks for this family."""
    if config["model_type"] not in WIDE_NORMS:
        return
    for layer in getattr(spec, "layer_specs", [spec]):
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm = _wide_norm("num_attention_heads")
        attention.k_layernorm = _wide_norm("num_query_groups")


def _wide_norm(count: str) -> type:
    """A norm over all heads at once: `weight [heads * head_dim]`, `x [s, b, heads, head_dim]`."""
    from megatron.core.extensions.transformer_engine import TENorm

    class WideNorm(torch.nn.Module):
        def __new__(
            cls, hidden_size: int, config: TransformerConfig, eps: float
        ) -> torch.nn.Module:
            norm = TENorm(config, hidden_size * getattr(config, count), eps)
            narrow = norm.forward
            norm.forward = lambda x: narrow(x.flatten(-2)).view(x.shape)
            return norm

    return WideNorm


# --- walk ----------------------------------------------------------------------------------------


def layer(config: Config, hf: Tensors, p: str, q: str) -> Tensors:
    """One layer: HF prefix `p` to megatron prefix `q`; takes its tensors out of `hf`."""
    family = config["model_type"]
    out = _latent(hf, p, q) if family in LATENT else _attention(config, hf, p, q)
    block = f"{p}block_sparse_moe." if family in ("mixtral", "minimax_m2") else f"{p}mlp."
    norm = hf.pop(f"{p}post_attention_layernorm.weight")
    if f"{block}gate.weight" in hf:
        out[f"{q}pre_mlp_layernorm.weight"] = norm
        return out | _experts(hf, block, f"{q}mlp.")
    out[f"{q}mlp.linear_fc1.layer_norm_weight"] = norm
    return out | _gated(hf, block, f"{q}mlp.")


def _attention(config: Config, hf: Tensors, p: str, q: str) -> Tensors:
    a, b = f"{p}self_attn.", f"{q}self_attention."
    out = {
        f"{b}linear_qkv.layer_norm_weight": hf.pop(f"{p}input_layernorm.weight"),
        f"{b}linear_proj.weight": hf.pop(f"{a}o_proj.weight"),
    }
    for kind in ("weight", "bias"):
        if f"{a}qkv_proj.{kind}" in hf:
            heads, groups = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
            fused = hf.pop(f"{a}qkv_proj.{kind}")
            dim = fused.shape[0] // (heads + 2 * groups)
            parts = fused.split([heads * dim, groups * dim, groups * dim])
        elif f"{a}q_proj.{kind}" in hf:
            parts = tuple(hf.pop(f"{a}{name}_proj.{kind}") for name in "qkv")
        else:
            continue
        out[f"{b}linear_qkv.{kind}"] = _by_group(config, parts)
    for part in "qk":
        if f"{a}{part}_norm.weight" in hf:
            out[f"{b}{part}_layernorm.weight"] = hf.pop(f"{a}{part}_norm.weight")
    return out


def _by_group(config: Config, parts: tuple[Tensor, ...]) -> Tensor:
    groups, rest = int(config["num_key_value_heads"]), parts[0].shape[1:]
    split = [part.reshape(groups, -1, *rest) for part in parts]
    return torch.cat(split, dim=1).reshape(-1, *rest)


def _latent(hf: Tensors, p: str, q: str) -> Tensors:
    a, b = f"{p}self_attn.", f"{q}self_attention."
    names = {
        "q_proj.weight": "linear_q_proj.weight",
        "q_a_proj.weight": "linear_q_down_proj.weight",
        "q_a_layernorm.weight": "linear_q_up_proj.layer_norm_weight",
        "q_b_proj.weight": "linear_q_up_proj.weight",
        "kv_a_proj_with_mqa.weight": "linear_kv_down_proj.weight",
        "kv_a_layernorm.weight": "linear_kv_up_proj.layer_norm_weight",
        "kv_b_proj.weight": "linear_kv_up_proj.weight",
        "o_proj.weight": "linear_proj.weight",
    }
    out = {f"{q}input_layernorm.weight": hf.pop(f"{p}input_layernorm.weight")}
    return out | {
        b + ours: hf.pop(a + theirs) for theirs, ours in names.items() if a + theirs in hf
    }


def _experts(hf: Tensors, block: str, q: str) -> Tensors:
    router = hf.pop(f"{block}gate.weight")
    out = {f"{q}router.weight": router}
    if f"{block}e_score_correction_bias" in hf:
        out[f"{q}router.expert_bias"] = hf.pop(f"{block}e_score_correction_bias").float()
    each = [_gated(hf, f"{block}experts.{e}.", "") for e in range(router.shape[0])]
    for name in ("linear_fc1.weight", "linear_fc2.weight"):
        out[f"{q}experts.experts.{name}"] = torch.stack([expert[name] for expert in each])
    for shared in ("shared_experts.", "shared_expert."):
        if f"{block}{shared}down_proj.weight" in hf:
            out |= _gated(hf, f"{block}{shared}", f"{q}shared_experts.")
    if f"{block}shared_expert_gate.weight" in hf:
        out[f"{q}shared_experts.gate_weight"] = hf.pop(f"{block}shared_expert_gate.weight")
    return out


def _gated(hf: Tensors, p: str, q: str) -> Tensors:
    """gate `[F, H]` over up `[F, H]` as `linear_fc1 [2F, H]`, and down `[H, F]`."""
    if f"{p}gate_up_proj.weight" in hf:
        first = hf.pop(f"{p}gate_up_proj.weight")
        return {
            f"{q}linear_fc1.weight": first,
            f"{q}linear_fc2.weight": hf.pop(f"{p}down_proj.weight"),
        }
    gate, up, down = ("w1", "w3", "w2") if f"{p}w1.weight" in hf else (
        "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    return {
        f"{q}linear_fc1.weight": torch.cat(
            [hf.pop(f"{p}{gate}.weight"), hf.pop(f"{p}{up}.weight")]
        ),
        f"{q}linear_fc2.weight": hf.pop(f"{p}{down}.weight"),
    }
