"""OLMoE: llama's attention with q and k normed at full width, experts on every layer.

Facts from transformers' `modeling_olmoe.py` and `configuration_olmoe.py`: `q_norm` is as wide as
all q heads together, `k_norm` as all KV heads; experts have the width `intermediate_size`, and no
layer a shared one. megatron-core builds norms one head wide; Megatron-Bridge (`olmoe_provider.py`)
replaces them by wide ones under the same two names.
"""

from mtpconv.mappings.blocks import Gqa, Moe, gqa
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families.qwen3_moe import expert_count
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, softmax_moe_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import wide_norm_sizes


def rules(request: Request) -> list[Row]:
    """Rules of an olmoe checkpoint."""
    config = request.config
    sizes = _attention(config)
    sparse = [True] * integer(config, "num_hidden_layers")
    return moe_model(request, lambda hf, mcore, _: gqa(hf, mcore, sizes), moe_sizes(config), sparse)


def moe_sizes(config: Config) -> Moe:
    """OLMoE's experts."""
    hidden, width = integer(config, "hidden_size"), integer(config, "intermediate_size")
    return Moe(hidden, expert_count(config), width)


def args(config: Config) -> Args:
    """Megatron-LM arguments of an olmoe model."""
    return (
        common_args(config)
        | gqa_args(_attention(config))
        | softmax_moe_args(config, moe_sizes(config))
    )


def _attention(config: Config) -> Gqa:
    return wide_norm_sizes(config, qkv_bias=flag(config, "attention_bias"))
