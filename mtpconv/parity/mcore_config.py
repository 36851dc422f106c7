"""Megatron-LM arguments to megatron-core's TransformerConfig and GPTModel arguments.

A checkpoint's own arguments (`common.pt`) decide where it has them, because a training job would
run with those; the family's translation of config.json gives the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from mtpconv.convert.inert import Inert
from mtpconv.convert.mcore import McoreCheckpoint
from mtpconv.errors import FormatError
from mtpconv.mappings.megatron_args import Args


@dataclass(frozen=True, slots=True)
class Settings:
    """What GPTModel is built from: its config object, and its own keyword arguments."""

    config: Any
    model: dict[str, Any]


# Of these None is an answer: the job ran without.
_SWITCHES = ("window_size", "rotary_seq_len_interpolation_factor")


def effective_args(expected: Args, checkpoint: McoreCheckpoint) -> Args:
    """The family's arguments, each replaced by the value the checkpoint was saved with."""
    stored = {name: checkpoint.argument(name) for name in expected}
    found = expected | {
        name: value
        for name, value in stored.items()
        if value is not None and not isinstance(value, Inert)
    }
    args = (checkpoint.common or {}).get("args")
    stated = {name: args.get(name, ()) for name in _SWITCHES} if isinstance(args, Inert) else {}
    return found | {name: None for name, value in stated.items() if value is None}


# Megatron-LM's argument -> the config field (`core_transformer_config_from_args`).
_RENAMED = {
    "apply_layernorm_1p": "layernorm_zero_centered_gamma",
    "norm_epsilon": "layernorm_epsilon",
    "num_experts": "num_moe_experts",
}
# What GPTModel reads off its config, which has no such fields: training code sets them.
_YARN = "yarn_"
# Arguments of GPTModel itself.
_MODEL = {
    "hybrid_layer_pattern",
    "max_position_embeddings",
    "vocab_size",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "untie_embeddings_and_output_weights",
    "use_rope_scaling",
    "rope_scaling_factor",
    "rotary_seq_len_interpolation_factor",
}
# Arguments that say what others say, or what older releases always do.
_IMPLIED = {
    "group_query_attention",
    "multi_latent_attention",
    "swiglu",
    "squared_relu",
    "quick_geglu",
    "bf16",
    "dsa_indexer_rope_interleaved",
}


def settings(args: Args, vocab: int, dtype: torch.dtype) -> Settings:
    """Build the config. `vocab` is the number of embedding rows in the checkpoint.

    Raises FormatError (`parity/too-old`) if the installed megatron-core lacks an argument that the
    model needs, or refuses one.
    """
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    mla = bool(args.get("multi_latent_attention"))
    kind = MLATransformerConfig if mla else TransformerConfig
    known = {field.name for field in fields(kind)}
    chosen: dict[str, Any] = {}
    for name, value in args.items():
        field = _RENAMED.get(name, name)
        if field in known:
            chosen[field] = value
        elif name.startswith(_YARN) or name in _MODEL | _IMPLIED:
            continue
        elif value not in (None, False):
            raise too_old(f"has no '{name}'")
    chosen |= _activation(args)
    chosen |= _numerics(dtype) | _PLACEMENT
    if chosen.get("num_moe_experts"):
        chosen |= {
            "moe_token_dispatcher_type": "allgather",
            "moe_router_load_balancing_type": "none",
            "moe_permute_fusion": False,
            "moe_layer_freq": _frequency(chosen.get("moe_layer_freq", 1)),
        }
    if args.get("experimental_attention_variant") == "dsa":
        chosen["dsa_indexer_loss_coeff"] = 0.0
    try:
        config = kind(**{name: value for name, value in chosen.items() if name in known})
    except (AssertionError, TypeError, ValueError) as error:
        raise too_old(f"refuses the model's arguments ({error})") from error
    for name in (name for name in args if name.startswith(_YARN)):
        setattr(config, name, args[name])
    return Settings(config, _model_arguments(args, vocab))


def _activation(args: Args) -> dict[str, Any]:
    """The activation that the arguments mean: SwiGLU, gpt-oss' own, Gemma's GeLU, or relu²."""
    if args.get("swiglu"):
        return {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    if args.get("quick_geglu"):
        from megatron.core.fusions.fused_bias_geglu import quick_gelu

        return {"gated_linear_unit": True, "activation_func": quick_gelu}
    if args.get("gated_linear_unit"):
        return {"activation_func": partial(torch.nn.functional.gelu, approximate="tanh")}
    if args.get("squared_relu"):
        from megatron.core.activations import squared_relu

        return {"activation_func": squared_relu}
    return {}


def too_old(what: str) -> FormatError:
    """The error (`parity/too-old`) that the installed megatron-core lacks something."""
    import megatron.core

    message = f"megatron-core {megatron.core.__version__} {what}"
    return FormatError("parity/too-old", message, "mtpconv families says which release is needed")


def _model_arguments(args: Mapping[str, Any], vocab: int) -> dict[str, Any]:
    found = {
        "vocab_size": vocab,
        "max_sequence_length": args["max_position_embeddings"],
        "share_embeddings_and_output_weights": not args["untie_embeddings_and_output_weights"],
        "position_embedding_type": args["position_embedding_type"],
        "rotary_percent": args["rotary_percent"],
        "rotary_base": args["rotary_base"],
    }
    if args.get("is_hybrid_model"):
        return found | {"hybrid_layer_pattern": args["hybrid_layer_pattern"]}
    return found | {
        "seq_len_interpolation_factor": args.get("rotary_seq_len_interpolation_factor"),
        "rope_scaling": bool(args.get("use_rope_scaling")),
        "rope_scaling_factor": args.get("rope_scaling_factor", 8.0),
    }


def _frequency(layers: Any) -> Any:
    """A pattern of layers; all ones is what `1` means, which keeps a homogeneous model so."""
    return 1 if isinstance(layers, list) and all(value == 1 for value in layers) else layers


def _numerics(dtype: torch.dtype) -> dict[str, Any]:
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


_PLACEMENT: dict[str, Any] = {
    "use_cpu_initialization": False,
    "init_model_with_meta_device": True,
    "perform_initialization": False,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "pipeline_dtype": torch.bfloat16,
}
