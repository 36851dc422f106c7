"""Releases that transformers does not read as they are, and how they read as what it has.

Kimi-K2's config.json names `DeepseekV3ForCausalLM`. MiMo-7B's own code (`modeling_mimo.py`) is
Qwen2's but for the MTP layers. Ling 2.0's (`modeling_bailing_moe_v2.py`) computes what GLM-4.5's
class does: grouped-query attention with norms on q and k and RoPE on a share of each head, then
DeepSeek-V3's router and experts; only names differ, and q, k and v lie in one tensor. Of
MiMo-V2-Flash transformers reads neither which layers slide nor RoPE's bases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class SameModel:
    """What transformers calls a model, and how config and weights of a release read as that."""

    model_type: str
    config: Callable[[Config], Config] = dict
    tensors: Callable[[Config, Tensors], Tensors] = lambda _, tensors: tensors


def _ling_config(config: Config) -> Config:
    return config | {
        "attention_bias": bool(config.get("use_qkv_bias")),
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": config.get("num_shared_experts") or 0,
        # Its router always divides by the sum where it picks more than one expert.
        "norm_topk_prob": config["num_experts_per_tok"] > 1,
        "use_qk_norm": config.get("use_qk_norm", True),
    }


_LING = (
    ("model.word_embeddings.", "model.embed_tokens."),
    (".attention.dense.", ".self_attn.o_proj."),
    (".attention.query_layernorm.", ".self_attn.q_norm."),
    (".attention.key_layernorm.", ".self_attn.k_norm."),
    (".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"),
)


def _ling_tensors(config: Config, tensors: Tensors) -> Tensors:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    found: Tensors = {}
    for name, tensor in tensors.items():
        layer, fused, kind = name.partition(".attention.query_key_value.")
        if fused:
            dim = tensor.shape[0] // (heads + 2 * groups)
            parts = torch.split(tensor, [heads * dim, groups * dim, groups * dim])
            for letter, part in zip("qkv", parts, strict=True):
                found[f"{layer}.self_attn.{letter}_proj.{kind}"] = part
        else:
            found[_ling_name(name)] = tensor
    return found


def _ling_name(name: str) -> str:
    for theirs, ours in _LING:
        name = name.replace(theirs, ours)
    return name


def _mimo_v2_config(config: Config) -> Config:
    """The release's own lists and bases, which transformers has as defaults and does not read."""
    share = config.get("partial_rotary_factor", 0.334)
    bases = {
        "full_attention": config.get("rope_theta", 5000000.0),
        "sliding_attention": config.get("swa_rope_theta", 10000.0),
    }
    rope = {
        kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
        for kind, base in bases.items()
    }
    found: Config = {"rope_parameters": rope}
    if "hybrid_layer_pattern" in config:
        kinds = ("full_attention", "sliding_attention")
        found["layer_types"] = [kinds[sliding] for sliding in config["hybrid_layer_pattern"]]
    if "moe_layer_freq" in config:
        words = ("dense", "sparse")
        found["mlp_layer_types"] = [words[sparse] for sparse in config["moe_layer_freq"]]
    kept = {key: value for key, value in config.items() if key != "rope_scaling"}
    return found | kept | {"rms_norm_eps": config.get("layernorm_epsilon", 1e-5)}


_SAME = {
    "kimi_k2": SameModel("deepseek_v3"),
    "mimo": SameModel("qwen2"),
    "mimo_v2_flash": SameModel("mimo_v2_flash", _mimo_v2_config),
    "bailing_moe_v2": SameModel("glm4_moe", _ling_config, _ling_tensors),
}


def same_model(model_type: str) -> SameModel:
    """The model that transformers has for a release: itself, or another's that is the same."""
    return _SAME.get(model_type, SameModel(model_type))
