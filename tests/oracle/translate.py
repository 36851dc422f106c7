"""HF config -> megatron TransformerConfig, written without looking at the package under test.

One function per concern, six families: llama, qwen2, qwen3, qwen3_moe, glm4_moe, deepseek_v3. It
says what a training job's arguments would say; the layout and the logits then come from megatron
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.oracle import hybrid, plain

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

Config = dict[str, object]
Settings = dict[str, object]


DSA = ("glm_moe_dsa", "deepseek_v32")
LATENT = ("deepseek_v3", "glm4_moe_lite", *DSA)


def transformer_config(
    config: Config,
    *,
    device: str = "meta",
    dtype: torch.dtype = torch.bfloat16,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
) -> TransformerConfig:
    """The megatron config of a model and of one rank's share of it; nothing is fused."""
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    family = str(config["model_type"])
    if family in hybrid.FAMILIES:
        settings = _size(config) | _numerics(dtype) | _placement(device) | _parallel(tp, ep, pp)
        return TransformerConfig(**settings | hybrid.settings(config))
    if family in plain.FAMILIES:
        # Families with another activation set it themselves.
        settings = _size(config | {"hidden_act": "silu"}) | _numerics(dtype) | _placement(device)
        settings |= _parallel(tp, ep, pp)
        settings |= plain.settings(config)
        if family in plain.LATENT:
            return MLATransformerConfig(**settings | _mla(config))
        return TransformerConfig(**settings)
    settings = _size(config) | _numerics(dtype) | _placement(device) | _parallel(tp, ep, pp)
    settings |= {"mtp_num_layers": mtp_layers(config) or None}
    if family in ("glm4_moe", *LATENT):
        settings |= _moe_sigmoid(config)
    elif family == "qwen3_moe":
        settings |= _moe_softmax(config)
    elif family not in ("llama", "qwen2", "qwen3"):
        raise ValueError(f"the oracle does not know family {family!r}")
    if family in DSA:
        settings |= _dsa(config)
    if family in LATENT:
        return MLATransformerConfig(**settings | _mla(config))
    return TransformerConfig(**settings | _gqa(config))


def mtp_layers(config: Config) -> int:
    """How many MTP layers the config announces."""
    return int(config.get("num_nextn_predict_layers") or 0)


def rope(config: Config) -> Settings:
    """RoPE settings from transformers 5's `rope_parameters`, else from the keys of version 4."""
    new = config.get("rope_parameters")
    if isinstance(new, dict):
        return new
    old = config.get("rope_scaling")
    scaling = dict(old) if isinstance(old, dict) else {"type": "default"}
    return {"rope_theta": config["rope_theta"], "rope_type": scaling.pop("type", None)} | scaling


def rotary_percent(config: Config) -> float:
    """The share of a head's dimensions that RoPE turns."""
    own = plain.rotary_percent(config)
    if own is not None:
        return own
    return float(
        rope(config).get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    )


def _size(config: Config) -> Settings:
    from torch.nn.functional import silu

    if config["hidden_act"] != "silu":
        raise ValueError(f"the oracle knows only silu, not {config['hidden_act']!r}")
    return {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": config["num_attention_heads"],
        "layernorm_epsilon": config["rms_norm_eps"],
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": silu,
        "add_bias_linear": False,
    }


def _numerics(dtype: torch.dtype) -> Settings:
    return {
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "gradient_accumulation_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
    }


def _placement(device: str) -> Settings:
    on_cpu = device == "cpu"
    return {
        "use_cpu_initialization": on_cpu,
        "init_model_with_meta_device": not on_cpu,
        # the weights come from a checkpoint
        "perform_initialization": False,
    }


def _parallel(tp: int, ep: int, pp: int) -> Settings:
    return {
        "tensor_model_parallel_size": tp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": expert_tensor_parallel(tp, ep),
        "pipeline_model_parallel_size": pp,
        "pipeline_dtype": torch.bfloat16,
        # Megatron wants it for MoE under TP; it changes how activations travel, never the weights.
        "sequence_parallel": tp > 1,
    }


def expert_tensor_parallel(tp: int, ep: int) -> int:
    """Experts are cut over EP ranks if there are any, else as the rest is over TP ranks."""
    return 1 if ep > 1 else tp


def _gqa(config: Config) -> Settings:
    family, heads = config["model_type"], int(config["num_attention_heads"])
    has_norm = family in ("qwen3", "qwen3_moe") or bool(config.get("use_qk_norm"))
    return {
        "num_query_groups": config["num_key_value_heads"],
        "kv_channels": config.get("head_dim") or int(config["hidden_size"]) // heads,
        # Qwen2's bias is part of the architecture, its config has no key for it.
        "add_qkv_bias": family == "qwen2" or bool(config.get("attention_bias")),
        "qk_layernorm": has_norm,
    }


def _mla(config: Config) -> Settings:
    settings = {
        "num_query_groups": config["num_attention_heads"],
        "kv_channels": config["v_head_dim"],
        "q_lora_rank": config["q_lora_rank"],
        "kv_lora_rank": config["kv_lora_rank"],
        "qk_head_dim": config["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": config["qk_rope_head_dim"],
        "v_head_dim": config["v_head_dim"],
        "qk_layernorm": True,
        "rotary_interleaved": False,
        "rotary_base": rope(config)["rope_theta"],
    }
    values = rope(config)
    if values["rope_type"] != "yarn":
        # Megatron scales the softmax by YaRN's factor even without YaRN, unless this is zero.
        return settings | {"rope_type": "rope", "mscale_all_dim": 0.0}
    return settings | {
        "rope_type": "yarn",
        "rotary_scaling_factor": values["factor"],
        "original_max_position_embeddings": values["original_max_position_embeddings"],
        "beta_fast": values["beta_fast"],
        "beta_slow": values["beta_slow"],
        "mscale": values["mscale"],
        "mscale_all_dim": values["mscale_all_dim"],
    }


def _moe(config: Config, experts: int, dense: set[int]) -> Settings:
    layers = int(config["num_hidden_layers"])
    return {
        "num_moe_experts": experts,
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        # A list makes megatron name the layers one by one; a job writes one only if it must.
        "moe_layer_freq": [int(layer not in dense) for layer in range(layers)] if dense else 1,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "allgather",
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_permute_fusion": False,
    }


def _moe_sigmoid(config: Config) -> Settings:
    experts = int(config["n_routed_experts"])
    shared = int(config["n_shared_experts"] or 0) * int(config["moe_intermediate_size"])
    settings = _moe(config, experts, set(range(int(config["first_k_dense_replace"])))) | {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_topk_scaling_factor": config["routed_scaling_factor"],
        "moe_shared_expert_intermediate_size": shared or None,
    }
    if int(config["n_group"]) > 1:
        settings |= {
            "moe_router_num_groups": config["n_group"],
            "moe_router_group_topk": config["topk_group"],
        }
    return settings


def _moe_softmax(config: Config) -> Settings:
    if config["decoder_sparse_step"] != 1:
        raise ValueError("the oracle knows only decoder_sparse_step 1")
    return _moe(config, int(config["num_experts"]), set(config["mlp_only_layers"])) | {
        "moe_router_score_function": "softmax",
        # softmax over the chosen experts is what normalising the chosen probabilities comes to
        "moe_router_pre_softmax": not config["norm_topk_prob"],
    }


def _dsa(config: Config) -> dict[str, object]:
    """DeepSeek sparse attention; indexers that layers share exist from megatron-core 0.19 on."""
    settings: dict[str, object] = {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": config["index_n_heads"],
        "dsa_indexer_head_dim": config["index_head_dim"],
        "dsa_indexer_topk": config["index_topk"],
        "dsa_indexer_loss_coeff": 0.0,
    }
    if config.get("indexer_types"):
        settings["dsa_indexer_topk_freq"] = config["index_topk_freq"]
        settings["dsa_indexer_skip_topk_offset"] = config["index_skip_topk_offset"]
    return settings
