"""GLM-4.5, 4.5-Air, 4.6 and 4.7: grouped-query attention, DeepSeek-style experts, MTP.

Facts from the releases' headers and transformers' `modeling_glm4_moe.py`: the first
`first_k_dense_replace` layers are dense; q/k norms only if `use_qk_norm`; MTP layer k is stored as
decoder layer `num_hidden_layers + k`, with or without copies of embedding and head.
"""

from mtpconv.mappings.blocks import (
    Gqa,
    dense_mlp,
    gqa,
    moe_mlp,
    mtp_wrapper,
    rotary_buffers,
)
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.families.deepseek_v3 import moe_sizes
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, sigmoid_router_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes
from mtpconv.mappings.trunk import trunk


def rules(request: Request) -> list[Row]:
    """Rules of a glm4_moe checkpoint, MTP layers included."""
    config = request.config
    sizes, moe = _attention(config), moe_sizes(config)
    mtp = trailing_prefixes(config, request.mtp_layers)
    table = trunk(request, mtp)
    layers = []
    dense = integer(config, "first_k_dense_replace", 1, least=0)
    for layer in range(integer(config, "num_hidden_layers")):
        hf, mcore = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        layers.append(hf)
        table += gqa(hf, mcore, sizes)
        if layer < dense:
            table += dense_mlp(hf, mcore, sizes.hidden, integer(config, "intermediate_size"))
        else:
            table += moe_mlp(hf, mcore, moe)
    for depth, hf in enumerate(mtp):
        mcore = f"mtp.layers.{depth}."
        table += mtp_wrapper(hf, mcore, sizes.hidden)
        table += gqa(hf, f"{mcore}transformer_layer.", sizes)
        table += moe_mlp(hf, f"{mcore}transformer_layer.", moe)
    return table + rotary_buffers(request, layers + mtp)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a glm4_moe model."""
    moe = moe_sizes(config)
    layers = integer(config, "num_hidden_layers")
    dense = integer(config, "first_k_dense_replace", 1, least=0)
    return (
        common_args(config)
        | gqa_args(_attention(config))
        | sigmoid_router_args(config, moe.experts)
        | {
            "moe_layer_freq": [int(layer >= dense) for layer in range(layers)],
            "moe_shared_expert_intermediate_size": moe.shared or None,
        }
    )


def _attention(config: Config) -> Gqa:
    bias, norm = flag(config, "attention_bias"), flag(config, "use_qk_norm")
    return gqa_sizes(config, qkv_bias=bias, qk_norm=norm, head_dim=128)
