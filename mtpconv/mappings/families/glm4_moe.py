"""GLM-4.5, 4.5-Air, 4.6 and 4.7: grouped-query attention, DeepSeek-style experts, MTP.

Facts from the releases' headers and transformers' `modeling_glm4_moe.py`: the first
`first_k_dense_replace` layers are dense; q/k norms only if `use_qk_norm`; MTP layer k is stored as
decoder layer `num_hidden_layers + k`, with or without copies of embedding and head.
"""

from mtpconv.mappings.blocks import Gqa, gqa
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families.deepseek_v3 import moe_sizes
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, sigmoid_moe_args
from mtpconv.mappings.mtp import trailing_prefixes
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes


def rules(request: Request) -> list[Row]:
    """Rules of a glm4_moe checkpoint, MTP layers included."""
    config = request.config
    sizes, moe = _attention(config), moe_sizes(config)
    mtp = trailing_prefixes(config, request.mtp_layers)
    return moe_model(
        request, lambda hf, mcore, _: gqa(hf, mcore, sizes), moe, sparse_layers(config), mtp
    )


def sparse_layers(config: Config) -> list[bool]:
    """For each layer whether it holds experts: all but the first few."""
    dense = integer(config, "first_k_dense_replace", 1, least=0)
    return [layer >= dense for layer in range(integer(config, "num_hidden_layers"))]


def args(config: Config) -> Args:
    """Megatron-LM arguments of a glm4_moe model."""
    return (
        common_args(config)
        | gqa_args(_attention(config))
        | sigmoid_moe_args(config, moe_sizes(config), sparse_layers(config))
    )


def _attention(config: Config) -> Gqa:
    bias, norm = flag(config, "attention_bias"), flag(config, "use_qk_norm")
    return gqa_sizes(config, qkv_bias=bias, qk_norm=norm, head_dim=128)
