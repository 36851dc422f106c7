"""The oracle's view of the families without MTP: settings, a walk over names, layer specs.

Written from transformers' code without looking at the package under test, like `translate.py` and
`walk.py`, which call this module for the families in `FAMILIES`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from mtpconv.parity import own_norms

Config = dict[str, object]
Settings = dict[str, object]
Tensors = dict[str, Tensor]

FAMILIES = (
    "mistral", "mixtral", "qwen2_moe", "deepseek_v2", "olmoe", "minimax_m2", "phi3", "gemma2",
    "gemma3_text", "glm4", "gpt_oss",
)  # fmt: skip
LATENT = ("deepseek_v2",)
WIDE_NORMS = ("olmoe", "minimax_m2")
GEMMA = ("gemma2", "gemma3_text")


# --- settings ------------------------------------------------------------------------------------


def settings(config: Config) -> Settings:
    """What a family adds to the common TransformerConfig; latent attention excluded."""
    family, heads = config["model_type"], int(config["num_attention_heads"])
    found: Settings = {}
    if family not in LATENT:
        found = {
            "num_query_groups": config["num_key_value_heads"],
            "kv_channels": config.get("head_dim") or int(config["hidden_size"]) // heads,
            "add_qkv_bias": family in ("qwen2_moe", "glm4", "gpt_oss"),
            "qk_layernorm": family in (*WIDE_NORMS, "gemma3_text"),
            "rotary_interleaved": family == "glm4",
        }
    if family in GEMMA:
        found |= {
            "activation_func": partial(torch.nn.functional.gelu, approximate="tanh"),
            "layernorm_zero_centered_gamma": True,
            "softmax_scale": float(config["query_pre_attn_scalar"]) ** -0.5,
        }
    if family == "gpt_oss":
        from megatron.core.fusions.fused_bias_geglu import quick_gelu

        found |= {
            "activation_func": quick_gelu,
            "activation_func_clamp_value": 7.0,
            "add_bias_linear": True,
            "glu_linear_offset": 1.0,
            "softmax_type": "learnable",
            # transformers counts the token itself, megatron those before it
            "window_size": (int(config["sliding_window"]) - 1, 0),
            "window_attn_skip_freq": 2,
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
        "moe_router_pre_softmax": family not in ("mixtral", "gpt_oss"),
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
    family, layers = config["model_type"], own_norms.layer_specs(spec)
    if family in WIDE_NORMS:
        own_norms.norm_all_heads(layers)
    elif family in GEMMA:
        own_norms.norm_projections(layers)
    elif family == "glm4":
        own_norms.norm_outputs(layers, "post_self_attn_layernorm", "post_mlp_layernorm")
    elif family == "gpt_oss":
        # megatron-core's own attention with sinks and windows, not the stand-in for TE's.
        from megatron.core.transformer.dot_product_attention import DotProductAttention

        for layer in layers:
            layer.submodules.self_attention.submodules.core_attention = DotProductAttention


def finish(config: Config, model: torch.nn.Module) -> None:
    """What a family does in its forward beyond the layers: Gemma scales its embedding."""
    if config["model_type"] in GEMMA:
        scale = int(config["hidden_size"]) ** 0.5
        model.embedding.register_forward_hook(lambda module, args, output: output * scale)


# --- walk ----------------------------------------------------------------------------------------


def layer(config: Config, hf: Tensors, p: str, q: str) -> Tensors:
    """One layer: HF prefix `p` to megatron prefix `q`; takes its tensors out of `hf`."""
    family = config["model_type"]
    out = _latent(hf, p, q) if family in LATENT else _attention(config, hf, p, q)
    block = f"{p}block_sparse_moe." if family in ("mixtral", "minimax_m2") else f"{p}mlp."
    norm = hf.pop(f"{p}post_attention_layernorm.weight")
    if family in GEMMA:
        out[f"{q}self_attention.linear_proj.post_layernorm.weight"] = norm
        after = hf.pop(f"{p}post_feedforward_layernorm.weight")
        out[f"{q}mlp.linear_fc2.post_layernorm.weight"] = after
        norm = hf.pop(f"{p}pre_feedforward_layernorm.weight")
    if family == "glm4":
        for name in ("self_attention.post_self_attn_layernorm", "mlp.post_mlp_layernorm"):
            out[f"{q}{name}.weight"] = hf.pop(f"{p}{name.split('.')[1]}.weight")
    if family == "gpt_oss":
        out[f"{q}pre_mlp_layernorm.weight"] = norm
        return out | _fused_experts(hf, block, f"{q}mlp.")
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
    for theirs, ours in (("o_proj.bias", "linear_proj.bias"),
                         ("sinks", "core_attention.softmax_offset")):  # fmt: skip
        if a + theirs in hf:
            out[b + ours] = hf.pop(a + theirs)
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


def _fused_experts(hf: Tensors, p: str, q: str) -> Tensors:
    """gpt-oss: `[E, H, 2F]` with gate in even columns and up in odd ones, and `[E, F, H]`."""
    out = {f"{q}router.{kind}": hf.pop(f"{p}router.{kind}") for kind in ("weight", "bias")}
    p, q = f"{p}experts.", f"{q}experts.experts."
    for theirs, ours in (
        ("gate_up_proj", "linear_fc1.weight"),
        ("gate_up_proj_bias", "linear_fc1.bias"),
    ):
        both = hf.pop(f"{p}{theirs}")
        out[q + ours] = torch.cat([both[..., 0::2], both[..., 1::2]], dim=-1)
    out[f"{q}linear_fc1.weight"] = out[f"{q}linear_fc1.weight"].transpose(1, 2).contiguous()
    out[f"{q}linear_fc2.weight"] = hf.pop(f"{p}down_proj").transpose(1, 2).contiguous()
    return out | {f"{q}linear_fc2.bias": hf.pop(f"{p}down_proj_bias")}


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
