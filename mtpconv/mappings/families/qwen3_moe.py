"""Qwen3-MoE: Qwen3's attention, experts without a shared one, no MTP.

Facts from transformers' `modeling_qwen3_moe.py` and `configuration_qwen3_moe.py`: a layer is sparse
unless it is listed in `mlp_only_layers` or falls between `decoder_sparse_step`s.
"""

from mtpconv.mappings.blocks import Moe, gqa
from mtpconv.mappings.config import Config, integer, listed
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families.llama import qwen3_sizes
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, softmax_moe_args
from mtpconv.mappings.rule import Request, Row


def sparse_layers(config: Config) -> list[bool]:
    """For each layer whether it holds experts."""
    dense = set(listed(config, "mlp_only_layers"))
    step = integer(config, "decoder_sparse_step", 1)
    layers = range(integer(config, "num_hidden_layers"))
    return [layer not in dense and (layer + 1) % step == 0 for layer in layers]


def rules(request: Request) -> list[Row]:
    """Rules of a qwen3_moe checkpoint."""
    config = request.config
    sizes = qwen3_sizes(config)
    return moe_model(
        request,
        lambda hf, mcore, _: gqa(hf, mcore, sizes),
        moe_sizes(config),
        sparse_layers(config),
    )


def moe_sizes(config: Config) -> Moe:
    """Qwen3's experts; there is no shared one."""
    hidden, width = integer(config, "hidden_size"), integer(config, "moe_intermediate_size")
    return Moe(hidden, expert_count(config), width)


def args(config: Config) -> Args:
    """Megatron-LM arguments of a qwen3_moe model."""
    return (
        common_args(config)
        | gqa_args(qwen3_sizes(config))
        | softmax_moe_args(config, moe_sizes(config), sparse_layers(config))
    )


def expert_count(config: Config) -> int:
    """`num_experts`, or `num_local_experts` as transformers 5 also writes it."""
    return integer(config, "num_experts", config.get("num_local_experts"))
