"""Sizes of attention and experts, read from a config: the keys families share."""

from dataclasses import replace

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import Gqa, Mla
from mtpconv.mappings.config import Config, integer


def gqa_sizes(config: Config, *, qkv_bias: bool, qk_norm: bool, head_dim: int | None = None) -> Gqa:
    """`head_dim` is what the family assumes where the key is absent (else hidden / heads)."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    groups = integer(config, "num_key_value_heads", heads)
    if heads % groups:
        what = f"config.json: {heads} attention heads do not divide into {groups} KV heads"
        raise ConfigError("config/bad-value", what)
    head_dim = integer(config, "head_dim", head_dim or hidden // heads)
    return Gqa(hidden, heads, groups, head_dim, qkv_bias, qk_norm)


def wide_norm_sizes(config: Config, *, qkv_bias: bool) -> Gqa:
    """An attention that norms q over all its heads at once, and k likewise (OLMoE, MiniMax-M2)."""
    return replace(gqa_sizes(config, qkv_bias=qkv_bias, qk_norm=True), wide_norm=True)


def mla_sizes(config: Config) -> Mla:
    """DeepSeek's keys; `q_lora_rank` null means an undivided `q_proj`."""
    q_lora = config.get("q_lora_rank")
    return Mla(
        hidden=integer(config, "hidden_size"),
        heads=integer(config, "num_attention_heads"),
        q_lora=None if q_lora is None else integer(config, "q_lora_rank"),
        kv_lora=integer(config, "kv_lora_rank"),
        nope_dim=integer(config, "qk_nope_head_dim"),
        rope_dim=integer(config, "qk_rope_head_dim"),
        v_dim=integer(config, "v_head_dim"),
    )
