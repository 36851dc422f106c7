"""Config to Megatron-LM arguments: the parts families share.

Keys are the attribute names of Megatron-LM's parsed arguments, as a training job stores them in
`common.pt`.
"""

from collections.abc import Sequence
from typing import Any

from mtpconv.mappings.blocks import Gqa, Mla, Moe
from mtpconv.mappings.config import Config, flag, integer, number, rope

Args = dict[str, Any]


def common_args(config: Config, *, tied_by_default: bool = False) -> Args:
    """What every decoder-only model with RMSNorm, RoPE and SwiGLU has."""
    settings = rope(config)
    args: Args = {
        "num_layers": integer(config, "num_hidden_layers"),
        "hidden_size": integer(config, "hidden_size"),
        "num_attention_heads": integer(config, "num_attention_heads"),
        "ffn_hidden_size": integer(config, "intermediate_size"),
        "max_position_embeddings": integer(config, "max_position_embeddings", 2048),
        "vocab_size": integer(config, "vocab_size"),
        "position_embedding_type": "rope",
        "rotary_base": number(settings, "rope_theta", 10000.0),
        "rotary_percent": _rotary_percent(config, settings),
        "normalization": "RMSNorm",
        "norm_epsilon": number(config, "rms_norm_eps", 1e-6),
        "swiglu": True,
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": not flag(
            config, "tie_word_embeddings", tied_by_default
        ),
        "bf16": True,
    }
    if settings["rope_type"] == "yarn" and config.get("kv_lora_rank") is None:
        args |= _yarn_args(settings)
    if settings["rope_type"] not in ("default", "yarn", "deepseek_yarn"):
        args["use_rope_scaling"] = settings["rope_type"] == "llama3"
        args["rope_scaling_factor"] = number(settings, "factor", 1.0)
    linear = settings["rope_type"] == "linear"
    args["rotary_seq_len_interpolation_factor"] = number(settings, "factor") if linear else None
    return args


def _rotary_percent(config: Config, settings: Config) -> float:
    return number(settings, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))


def _yarn_args(settings: Config) -> Args:
    """YaRN of a model without latent attention: megatron-core gives it options of its own."""
    return {
        "position_embedding_type": "yarn",
        "yarn_rotary_scaling_factor": number(settings, "factor"),
        "yarn_original_max_position_embeddings": integer(
            settings, "original_max_position_embeddings", 4096
        ),
        "yarn_beta_fast": number(settings, "beta_fast", 32.0),
        "yarn_beta_slow": number(settings, "beta_slow", 1.0),
        "yarn_mscale": settings.get("mscale"),
        "yarn_mscale_all_dim": settings.get("mscale_all_dim"),
        "yarn_correction_range_round_to_int": flag(settings, "truncate", True),
    }


def gqa_args(sizes: Gqa) -> Args:
    """Arguments of a grouped-query attention."""
    return {
        "group_query_attention": sizes.groups != sizes.heads,
        "num_query_groups": sizes.groups,
        "kv_channels": sizes.head_dim,
        "add_qkv_bias": sizes.qkv_bias,
        "qk_layernorm": sizes.qk_norm,
    }


def mla_args(config: Config, sizes: Mla) -> Args:
    """Arguments of a latent attention, YaRN included where the config has it."""
    settings = rope(config)
    args: Args = {
        "multi_latent_attention": True,
        "q_lora_rank": sizes.q_lora,
        "kv_lora_rank": sizes.kv_lora,
        "qk_head_dim": sizes.nope_dim,
        "qk_pos_emb_head_dim": sizes.rope_dim,
        "v_head_dim": sizes.v_dim,
        "kv_channels": sizes.v_dim,
        "qk_layernorm": True,
        "add_qkv_bias": False,
        "rope_type": "rope",
        # megatron-core scales the softmax by these even without YaRN: 0 switches that off.
        "mscale": 1.0,
        "mscale_all_dim": 0.0,
    }
    if settings["rope_type"] in ("yarn", "deepseek_yarn"):
        args |= {
            "rope_type": "yarn",
            "rotary_scaling_factor": number(settings, "factor"),
            "original_max_position_embeddings": integer(
                settings, "original_max_position_embeddings", 4096
            ),
            "beta_fast": number(settings, "beta_fast", 32.0),
            "beta_slow": number(settings, "beta_slow", 1.0),
            "mscale": number(settings, "mscale", 1.0),
            "mscale_all_dim": number(settings, "mscale_all_dim", 0.0),
        }
    return args


def expert_args(moe: Moe, sparse: Sequence[bool] = ()) -> Args:
    """Sizes of experts, and which layers hold them (`sparse` empty: all)."""
    args: Args = {
        "num_experts": moe.experts,
        "moe_ffn_hidden_size": moe.width,
        "moe_shared_expert_intermediate_size": moe.shared or None,
        "moe_router_enable_expert_bias": moe.router_bias,
        "moe_grouped_gemm": True,
    }
    return args | ({"moe_layer_freq": [int(layer) for layer in sparse]} if sparse else {})


def sigmoid_moe_args(config: Config, moe: Moe, sparse: Sequence[bool] = ()) -> Args:
    """Experts behind DeepSeek-V3's router: sigmoid scores, a bias for the choice only, groups."""
    groups = integer(config, "n_group", 1)
    return expert_args(moe, sparse) | {
        "moe_router_topk": integer(config, "num_experts_per_tok"),
        "moe_router_score_function": "sigmoid",
        "moe_router_dtype": "fp32",
        "moe_router_pre_softmax": False,
        "moe_router_topk_scaling_factor": number(config, "routed_scaling_factor", 1.0),
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": integer(config, "topk_group", 1) if groups > 1 else None,
    }


def softmax_moe_args(config: Config, moe: Moe, sparse: Sequence[bool] = ()) -> Args:
    """Experts behind Mixtral's router: softmax scores, the best few, no bias and no groups."""
    return expert_args(moe, sparse) | {
        "moe_router_topk": integer(config, "num_experts_per_tok"),
        "moe_router_score_function": "softmax",
        # Without renormalisation the weights are those of a softmax over all experts.
        "moe_router_pre_softmax": not flag(config, "norm_topk_prob"),
    }


def window_args(config: Config, full: list[bool] | None = None) -> Args:
    """Sliding-window attention on every layer, or on those that are not `full`.

    transformers counts the token itself (`sliding_window` keys in all), TE those before it. A model
    without a window says so, since a job may have one all the same.
    """
    if config.get("sliding_window") is None:
        return {"window_size": None}
    args: Args = {"window_size": (integer(config, "sliding_window") - 1, 0)}
    if full is not None:
        args["window_attn_skip_freq"] = [int(not layer) for layer in full]
    return args


def mtp_args(layers: int) -> Args:
    """Arguments of the MTP block; the key is absent-valued (None) in a job without MTP."""
    return {"mtp_num_layers": layers or None}
