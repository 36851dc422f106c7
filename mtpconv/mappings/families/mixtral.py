"""Mixtral: Mistral's attention, and experts called `block_sparse_moe` with w1, w2 and w3.

Facts from transformers' `modeling_mixtral.py` and its `conversion_mapping.py`: w1 is the gate, w3
the up and w2 the down projection; every layer has experts of width `intermediate_size`; the router
is a softmax over the chosen experts.
"""

from mtpconv.mappings.blocks import Moe, MoeNames, gqa
from mtpconv.mappings.config import Config, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families.mistral import mistral_sizes
from mtpconv.mappings.megatron_args import (
    Args,
    common_args,
    gqa_args,
    softmax_moe_args,
    window_args,
)
from mtpconv.mappings.rule import Request, Row

NAMES = MoeNames(
    block="block_sparse_moe.",
    router_bias="e_score_correction_bias",
    projections=("w1", "w3", "w2"),
)
"""Mixtral's spelling, which MiniMax-M2 took over (and added a router bias to)."""


def rules(request: Request) -> list[Row]:
    """Rules of a mixtral checkpoint."""
    config = request.config
    sizes = mistral_sizes(config)
    sparse = [True] * integer(config, "num_hidden_layers")
    return moe_model(request, lambda hf, mcore, _: gqa(hf, mcore, sizes), moe_sizes(config), sparse)


def moe_sizes(config: Config) -> Moe:
    """Mixtral's experts; there is no shared one."""
    hidden, width = integer(config, "hidden_size"), integer(config, "intermediate_size")
    return Moe(hidden, expert_count(config), width, names=NAMES)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a mixtral model."""
    return (
        common_args(config)
        | gqa_args(mistral_sizes(config))
        | softmax_moe_args(config, moe_sizes(config))
        | {"moe_router_pre_softmax": False}
        | window_args(config)
    )


def expert_count(config: Config) -> int:
    """`num_local_experts`; transformers 5 takes `num_experts` for the same."""
    return integer(config, "num_local_experts", config.get("num_experts"))
