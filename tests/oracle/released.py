"""Families with names of their own, turned into one that the oracle's walk and model know.

By regular expressions and plain torch, so nothing is shared with the package: a checkpoint becomes
the same checkpoint as glm4_moe or qwen2 would have spelled it.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from tests.oracle.translate import Config

Tensors = dict[str, Tensor]


def spelled_plainly(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """The same model under a family and names that `build_model` and `expected` know."""
    return _SPELLERS[str(config["model_type"])](config, tensors)


def _renamed(tensors: Tensors, rules: list[tuple[str, str]]) -> Tensors:
    out: Tensors = {}
    for released, tensor in tensors.items():
        name = released
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if name in out:
            raise ValueError(f"two tensors are called {name}")
        out[name] = tensor
    return out


def _as_glm4(config: Config) -> Config:
    return config | {
        "model_type": "glm4_moe",
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": config["num_shared_experts"],
        "n_group": config.get("n_group", 1),
        "topk_group": config.get("topk_group", 1),
        "attention_bias": config.get("use_qkv_bias", False),
        "use_qk_norm": config.get("use_qk_norm", config.get("qk_norm", True)),
        "routed_scaling_factor": config.get(
            "routed_scaling_factor", config.get("router_scaling_factor")
        ),
    }


def _mimo(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    layers = int(config["num_hidden_layers"])
    rules = [
        (f"^model\\.mtp_layers\\.{depth}\\.", f"model.layers.{layers + depth}.")
        for depth in range(int(config["num_nextn_predict_layers"]))
    ]
    rules += [
        (r"\.token_layernorm\.", ".enorm."),
        (r"\.hidden_layernorm\.", ".hnorm."),
        (r"\.final_layernorm\.", ".shared_head.norm."),
        (r"\.input_proj\.", ".eh_proj."),
    ]
    out = _renamed(tensors, rules)
    for name, tensor in out.items():
        if name.endswith(".eh_proj.weight"):
            hidden, embedded = tensor.chunk(2, dim=1)
            out[name] = torch.cat([embedded, hidden], dim=1)
    return config | {"model_type": "qwen2"}, out


def _bailing(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    rules = [
        (r"word_embeddings", "embed_tokens"),
        (r"\.attention\.dense\.", ".self_attn.o_proj."),
        (r"\.attention\.(q)uery_layernorm\.", r".self_attn.\1_norm."),
        (r"\.attention\.(k)ey_layernorm\.", r".self_attn.\1_norm."),
        (r"\.gate\.expert_bias$", ".gate.e_score_correction_bias"),
        (r"\.final_layernorm\.", ".shared_head.norm."),
    ]
    dim = int(config["head_dim"])
    q, kv = (int(config[f"num_{kind}_heads"]) * dim for kind in ("attention", "key_value"))
    out: Tensors = {}
    for name, tensor in _renamed(tensors, rules).items():
        if "query_key_value" not in name:
            out[name] = tensor
            continue
        for letter, part in zip("qkv", tensor.split([q, kv, kv]), strict=True):
            place = name.replace("attention.query_key_value", f"self_attn.{letter}_proj")
            out[place] = part
    return _as_glm4(config), out


def _hy_v3(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    rules = [
        (r"\.router\.gate\.", ".gate."),
        (r"\.mlp\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
        (r"\.shared_mlp\.", ".shared_experts."),
        (r"\.final_layernorm\.", ".shared_head.norm."),
    ]
    return _as_glm4(config), _renamed(tensors, rules)


def _exaone(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    last = f"model.layers.{config['num_hidden_layers']}."
    rules = [
        (r"\.mlp\.e_score_correction_bias$", ".mlp.gate.e_score_correction_bias"),
        (r"^mtp\.layers\.0\.", last),
        (r"^mtp\.pre_fc_norm_embedding\.", f"{last}enorm."),
        (r"^mtp\.pre_fc_norm_hidden\.", f"{last}hnorm."),
        (r"^mtp\.fc\.", f"{last}eh_proj."),
        (r"^mtp\.norm\.", f"{last}shared_head.norm."),
    ]
    return _as_glm4(config), _renamed(tensors, rules)


_SPELLERS = {
    "mimo": _mimo,
    "bailing_moe_v2": _bailing,
    "hy_v3": _hy_v3,
    "exaone_moe": _exaone,
}
