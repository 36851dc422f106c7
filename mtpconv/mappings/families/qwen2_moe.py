"""Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2's attention, experts and a gated shared expert.

Facts from transformers' `modeling_qwen2_moe.py` and `configuration_qwen2_moe.py`: q, k and v have
biases unless `qkv_bias` is false; the shared expert has a width of its own and a gate of one row;
which layers are sparse is Qwen3-MoE's rule.
"""

from dataclasses import replace

from mtpconv.mappings.blocks import Gqa, Moe, MoeNames, gqa
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families import qwen3_moe
from mtpconv.mappings.families.qwen3_moe import sparse_layers
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, softmax_moe_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes

NAMES = MoeNames(shared="shared_expert.", shared_gate="shared_expert_gate.weight")
"""The Qwen families' spelling of a shared expert."""


def rules(request: Request) -> list[Row]:
    """Rules of a qwen2_moe checkpoint."""
    config = request.config
    sizes = _attention(config)
    return moe_model(
        request,
        lambda hf, mcore, _: gqa(hf, mcore, sizes),
        moe_sizes(config),
        sparse_layers(config),
    )


def moe_sizes(config: Config) -> Moe:
    """Qwen2's experts, with one shared expert behind a gate of its own."""
    return replace(
        qwen3_moe.moe_sizes(config),
        shared=integer(config, "shared_expert_intermediate_size"),
        names=NAMES,
    )


def args(config: Config) -> Args:
    """Megatron-LM arguments of a qwen2_moe model."""
    return (
        common_args(config)
        | gqa_args(_attention(config))
        | softmax_moe_args(config, moe_sizes(config), sparse_layers(config))
        | {"moe_shared_expert_gate": True}
    )


def _attention(config: Config) -> Gqa:
    return gqa_sizes(config, qkv_bias=flag(config, "qkv_bias", True), qk_norm=False)
