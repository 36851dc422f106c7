"""Qwen3.5 and 3.6, dense and MoE: Qwen3-Next's language model beside a vision tower.

Facts from the releases' headers (27B, 35B-A3B) and transformers' `modeling_qwen3_5.py` and
`modeling_qwen3_5_moe.py`: the language model lies under `model.language_model.` (under `model.`
in text-only exports), MTP under `mtp.` at the top, its sizes in `text_config`; decoder experts are
fused while the MTP layer's may be either. megatron-core's GPT model has no vision tower, so that
part is carried as it is.
"""

from mtpconv.mappings.config import Config
from mtpconv.mappings.families.qwen3_next import (
    hybrid_args,
    hybrid_rules,
    moe_args,
    moe_sizes,
)
from mtpconv.mappings.megatron_args import Args
from mtpconv.mappings.rule import Carry, Request, Row

VISION = ("model.visual.", "visual.")
LANGUAGE = "model.language_model."


def rules(request: Request) -> list[Row]:
    """Rules of a dense qwen3_5 checkpoint."""
    return hybrid_rules(request, _prefix(request), None) + _vision(request)


def moe_rules(request: Request) -> list[Row]:
    """Rules of a qwen3_5_moe checkpoint."""
    moe = moe_sizes(request.config)
    return hybrid_rules(request, _prefix(request), moe) + _vision(request)


def _prefix(request: Request) -> str:
    """What stands in front of the language model's names, as the tensors at hand have it."""
    return "model." if "model.embed_tokens.weight" in request.observed else LANGUAGE


def _vision(request: Request) -> list[Row]:
    why = "part of the vision tower, which megatron-core's GPT model does not have"
    return [Carry(name, why) for name in request.observed if name.startswith(VISION)]


def args(config: Config) -> Args:
    """Megatron-LM arguments of a qwen3_5 model's text part."""
    return hybrid_args(config)


def moe_model_args(config: Config) -> Args:
    """Megatron-LM arguments of a qwen3_5_moe model's text part."""
    return hybrid_args(config) | moe_args(config)
