"""Mistral 7B and the dense models that follow it: llama's names, no biases, a sliding window.

Facts from transformers' `modeling_mistral.py` and `configuration_mistral.py`: no projection has a
bias, `head_dim` may differ from hidden / heads (Mistral Nemo), `sliding_window` is null since v0.2.
"""

from mtpconv.mappings.blocks import Gqa
from mtpconv.mappings.config import Config
from mtpconv.mappings.families.llama import dense_rules
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, window_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes


def rules(request: Request) -> list[Row]:
    """Rules of a mistral checkpoint."""
    return dense_rules(request, mistral_sizes(request.config))


def args(config: Config) -> Args:
    """Megatron-LM arguments of a mistral model."""
    return common_args(config) | gqa_args(mistral_sizes(config)) | window_args(config)


def mistral_sizes(config: Config) -> Gqa:
    """Mistral's attention: neither biases nor norms."""
    return gqa_sizes(config, qkv_bias=False, qk_norm=False)
