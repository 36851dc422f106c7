"""Qwen3-Next: gated delta nets, gated attention every few layers, experts, MTP under `mtp.`.

Facts from the release's header (80B-A3B) and transformers' `modeling_qwen3_next.py`: no config key
announces the MTP layer; all norms but the delta net's own are centred on zero, on both sides.
"""

from dataclasses import replace

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Gqa, Moe, MtpNames, dense_mlp, moe_mlp, mtp_wrapper
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.families import qwen3_moe
from mtpconv.mappings.families.qwen2_moe import NAMES
from mtpconv.mappings.families.qwen3_moe import sparse_layers
from mtpconv.mappings.gated_delta import (
    delta_net,
    delta_net_sizes,
    gated_gqa,
    linear_layers,
)
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, softmax_moe_args
from mtpconv.mappings.mtp import numbered_depth
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes
from mtpconv.mappings.trunk import trunk

MTP_NAMES = MtpNames("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")


def rules(request: Request) -> list[Row]:
    """Rules of a qwen3_next checkpoint, the MTP layer included."""
    return hybrid_rules(request, "model.", moe_sizes(request.config))


def hybrid_rules(request: Request, prefix: str, moe: Moe | None) -> list[Row]:
    """Rules of a language model whose names begin with `prefix` (`moe` None: dense layers)."""
    config = request.config
    table = trunk(request, mtp_prefixes(config, request.mtp_layers), prefix=prefix)
    linear, sparse = linear_layers(config), sparse_layers(config)
    sizes = delta_net_sizes(config) if any(linear) else None
    for layer, is_linear in enumerate(linear):
        hf, mcore = f"{prefix}layers.{layer}.", f"decoder.layers.{layer}."
        if is_linear and sizes is not None:
            table += delta_net(request, hf, mcore, sizes)
        else:
            table += gated_gqa(hf, mcore, attention_sizes(config))
        table += _mlp(request, hf, mcore, moe if sparse[layer] else None)
    for depth in range(request.mtp_layers):
        table += _mtp_layer(request, depth, moe)
    return table


def attention_sizes(config: Config) -> Gqa:
    """The attention's sizes; its head_dim is 256 by default."""
    return gqa_sizes(config, qkv_bias=False, qk_norm=True, head_dim=256)


def moe_sizes(config: Config) -> Moe:
    """Qwen's experts, with one shared expert behind a gate of its own."""
    shared = integer(config, "shared_expert_intermediate_size", 0, least=0)
    return replace(qwen3_moe.moe_sizes(config), shared=shared, names=NAMES)


def _mlp(request: Request, hf: str, mcore: str, moe: Moe | None) -> list[Row]:
    """Experts or a dense MLP."""
    if moe is None:
        config = request.config
        hidden, width = integer(config, "hidden_size"), integer(config, "intermediate_size")
        return dense_mlp(hf, mcore, hidden, width)
    return moe_mlp(request, hf, mcore, moe)


def _mtp_layer(request: Request, depth: int, moe: Moe | None) -> list[Row]:
    """The wrapper's four tensors, without a layer number, and a layer with full attention."""
    if depth:
        what = "more than one MTP layer, which share one `mtp.fc`: no release has that"
        raise ConfigError("config/bad-value", what)
    hidden = integer(request.config, "hidden_size")
    hf, mcore = f"mtp.layers.{depth}.", f"mtp.layers.{depth}."
    return [
        *mtp_wrapper("mtp.", mcore, hidden, MTP_NAMES),
        *gated_gqa(hf, f"{mcore}transformer_layer.", attention_sizes(request.config)),
        *_mlp(request, hf, f"{mcore}transformer_layer.", moe),
    ]


def mtp_prefixes(config: Config, layers: int) -> list[str]:  # noqa: ARG001
    """The one prefix of all MTP tensors."""
    return ["mtp."] if layers else []


def mtp_depth(config: Config, name: str) -> int | None:  # noqa: ARG001
    """Depth of the MTP layer an HF tensor belongs to; the wrapper's tensors belong to layer 0."""
    return numbered_depth(name, ("mtp.layers.",), "mtp.")


def args(config: Config) -> Args:
    """Megatron-LM arguments of a qwen3_next model."""
    return hybrid_args(config) | moe_args(config)


def hybrid_args(config: Config) -> Args:
    """Arguments of the two kinds of attention, and of norms centred on zero."""
    values = dict(config)
    values.setdefault("intermediate_size", config.get("moe_intermediate_size"))
    sizes = delta_net_sizes(config)
    return (
        common_args(values)
        | gqa_args(attention_sizes(config))
        | {
            "apply_layernorm_1p": True,
            "attention_output_gate": True,
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": [int(is_linear) for is_linear in linear_layers(config)],
            "linear_conv_kernel_dim": sizes.kernel,
            "linear_key_head_dim": sizes.key_dim,
            "linear_value_head_dim": sizes.value_dim,
            "linear_num_key_heads": sizes.key_heads,
            "linear_num_value_heads": sizes.value_heads,
        }
    )


def moe_args(config: Config) -> Args:
    """Arguments of Qwen's experts; a softmax over the chosen ones renormalises their weights."""
    moe = moe_sizes(config)
    renormalised = {"norm_topk_prob": flag(config, "norm_topk_prob", True)}
    return softmax_moe_args({**config, **renormalised}, moe, sparse_layers(config)) | {
        "moe_shared_expert_gate": bool(moe.shared)
    }
