"""MiniMax-M2, M2.1, M2.5, M2.7 (bf16): full-width q/k norms, Mixtral's names, a router bias.

Facts from transformers' `modeling_minimax_m2.py` and `conversion_mapping.py` and the releases'
config.json: `q_norm` is as wide as all q heads together; RoPE turns `rotary_dim` of a head; the
router is DeepSeek-V3's without groups or scaling, its bias beside the gate, not below it. The
config counts MTP modules (`num_mtp_modules`) that no release stores. megatron-core builds norms
one head wide; Megatron-Bridge (`minimax_m2_provider.py`) puts wide ones under the same two names.
"""

from dataclasses import replace

from mtpconv.mappings.blocks import Gqa, Moe, gqa
from mtpconv.mappings.config import Config, flag, integer, number
from mtpconv.mappings.decoder import moe_model
from mtpconv.mappings.families import mixtral
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, sigmoid_moe_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes, wide_norm_sizes


def rules(request: Request) -> list[Row]:
    """Rules of a minimax_m2 checkpoint."""
    config = request.config
    sizes = _attention(config)
    sparse = [True] * integer(config, "num_hidden_layers")
    return moe_model(request, lambda hf, mcore, _: gqa(hf, mcore, sizes), moe_sizes(config), sparse)


def moe_sizes(config: Config) -> Moe:
    """Mixtral's experts, with a router bias."""
    return replace(mixtral.moe_sizes(config), router_bias=flag(config, "use_routing_bias", True))


def args(config: Config) -> Args:
    """Megatron-LM arguments of a minimax_m2 model."""
    sizes = _attention(config)
    found = common_args(config) | gqa_args(sizes) | sigmoid_moe_args(config, moe_sizes(config))
    if config.get("rotary_dim") is not None:
        found["rotary_percent"] = number(config, "rotary_dim") / sizes.head_dim
    return found


def _attention(config: Config) -> Gqa:
    if not flag(config, "use_qk_norm", True):
        return gqa_sizes(config, qkv_bias=False, qk_norm=False)
    return wide_norm_sizes(config, qkv_bias=False)
