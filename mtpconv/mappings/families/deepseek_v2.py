"""DeepSeek-V2, V2.5, V2-Lite and Coder-V2: V3's latent attention, a softmax router, no MTP.

Facts from transformers' `modeling_deepseek_v2.py` and `configuration_deepseek_v2.py`: no router
bias; the weights of the chosen experts are not renormalised. V2 chooses groups of experts by their
best expert; megatron-core has groups too, but rates them by the sum of their best few.
"""

from dataclasses import replace

from mtpconv.mappings.blocks import Moe, mla
from mtpconv.mappings.config import Config, integer, number
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families import deepseek_v3
from mtpconv.mappings.megatron_args import Args, common_args, mla_args, softmax_moe_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import mla_sizes


def rules(request: Request) -> list[Row]:
    """Rules of a deepseek_v2 checkpoint."""
    config = request.config
    sizes = mla_sizes(config)
    deepseek_v3.require_query_norm(request, sizes)
    sparse = sparse_layers(config)
    return moe_model(request, lambda hf, mcore, _: mla(hf, mcore, sizes), moe_sizes(config), sparse)


def sparse_layers(config: Config) -> list[bool]:
    """For each layer whether it holds experts; V2's default is that all do."""
    dense = integer(config, "first_k_dense_replace", 0, least=0)
    return deepseek_v3.sparse_layers({**config, "first_k_dense_replace": dense})


def moe_sizes(config: Config) -> Moe:
    """V3's experts without the router bias."""
    return replace(deepseek_v3.moe_sizes(config), router_bias=False)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a deepseek_v2 model."""
    grouped = config.get("topk_method") == "group_limited_greedy"
    return (
        common_args(config)
        | mla_args(config, mla_sizes(config))
        | softmax_moe_args(config, moe_sizes(config), sparse_layers(config))
        | {
            "moe_router_topk_scaling_factor": number(config, "routed_scaling_factor", 1.0),
            "moe_router_num_groups": integer(config, "n_group") if grouped else None,
            "moe_router_group_topk": integer(config, "topk_group") if grouped else None,
        }
    )
