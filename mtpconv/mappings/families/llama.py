"""Llama and the two dense Qwens that follow its names.

Facts from transformers' `modeling_llama.py`, `modeling_qwen2.py`, `modeling_qwen3.py`: Qwen2 always
has q/k/v biases, Qwen3 norms q and k per head and takes biases by `attention_bias`.
"""

from mtpconv.mappings.blocks import Gqa, dense_mlp, gqa, rotary_buffers
from mtpconv.mappings.config import Config, flag, integer
from mtpconv.mappings.megatron_args import Args, common_args, gqa_args, window_args
from mtpconv.mappings.rule import Request, Row
from mtpconv.mappings.sizes import gqa_sizes
from mtpconv.mappings.trunk import trunk


def llama_sizes(config: Config) -> Gqa:
    """Llama's attention; `attention_bias` gives q, k and v a bias."""
    return gqa_sizes(config, qkv_bias=flag(config, "attention_bias"), qk_norm=False)


def qwen2_sizes(config: Config) -> Gqa:
    """Qwen2's attention: q/k/v bias always."""
    return gqa_sizes(config, qkv_bias=True, qk_norm=False)


def qwen3_sizes(config: Config) -> Gqa:
    """Qwen3's attention: head_dim 128 by default, norms on q and k."""
    bias = flag(config, "attention_bias")
    return gqa_sizes(config, qkv_bias=bias, qk_norm=True, head_dim=128)


def dense_rules(request: Request, sizes: Gqa) -> list[Row]:
    """Every layer the same: attention and a dense MLP."""
    config = request.config
    width = integer(config, "intermediate_size")
    rules = trunk(request, [])
    layers = []
    for layer in range(integer(config, "num_hidden_layers")):
        hf, mcore = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        layers.append(hf)
        rules += gqa(hf, mcore, sizes)
        rules += dense_mlp(hf, mcore, sizes.hidden, width)
    return rules + rotary_buffers(request, layers)


def llama_rules(request: Request) -> list[Row]:
    """Rules of a llama checkpoint."""
    return dense_rules(request, llama_sizes(request.config))


def qwen2_rules(request: Request) -> list[Row]:
    """Rules of a qwen2 checkpoint."""
    return dense_rules(request, qwen2_sizes(request.config))


def qwen3_rules(request: Request) -> list[Row]:
    """Rules of a qwen3 checkpoint."""
    return dense_rules(request, qwen3_sizes(request.config))


def llama_args(config: Config) -> Args:
    """Megatron-LM arguments of a llama model."""
    return common_args(config) | gqa_args(llama_sizes(config))


def qwen2_args(config: Config) -> Args:
    """Megatron-LM arguments of a qwen2 model."""
    return common_args(config) | gqa_args(qwen2_sizes(config)) | _qwen_window(config)


def qwen3_args(config: Config) -> Args:
    """Megatron-LM arguments of a qwen3 model."""
    return common_args(config) | gqa_args(qwen3_sizes(config)) | _qwen_window(config)


def _qwen_window(config: Config) -> Args:
    """A window where it is in use, on the layers from `max_window_layers` on.

    As transformers' Qwen2Config and Qwen3Config say; in every release it is switched off.
    """
    if not flag(config, "use_sliding_window"):
        return {}
    first = integer(config, "max_window_layers", 28, least=0)
    return window_args(config, [n < first for n in range(integer(config, "num_hidden_layers"))])
