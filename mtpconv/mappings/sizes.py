"""Sizes of attention and experts, read from a config: the keys families share."""

from dataclasses import replace

from mtpconv.errors import ConfigError
from mtpconv.mappings.blocks import DEEPSEEK_MOE, Gqa, Mla, Moe, MoeNames
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


def expert_sizes(
    config: Config,
    *,
    experts: str = "num_experts",
    shared: str = "num_shared_experts",
    shared_default: int = 1,
    router_bias: bool = True,
    names: MoeNames = DEEPSEEK_MOE,
) -> Moe:
    """Experts as DeepSeek has them, counted by the key `experts`; the `shared` ones are one MLP."""
    width = integer(config, "moe_intermediate_size")
    return Moe(
        hidden=integer(config, "hidden_size"),
        experts=integer(config, experts),
        width=width,
        shared=integer(config, shared, shared_default, least=0) * width,
        router_bias=router_bias,
        names=names,
    )


LISTED_MTP = 3
"""No release lists more MTP layers than this beside its decoder layers."""


def layer_kinds(config: Config, key: str) -> list[str] | None:
    """One word for each decoder layer; None where `key` is absent or null.

    A list may go on with a word for each MTP layer; those are left out. They stay in the config
    where the MTP layers do not (`--no-mtp`, other programs), so what it declares does not bind
    them. Raises ConfigError for a list of any other length.
    """
    values, layers = config.get(key), integer(config, "num_hidden_layers")
    if values is None:
        return None
    mtp = max(LISTED_MTP, integer(config, "num_nextn_predict_layers", 0, least=0))
    if not isinstance(values, list) or not layers <= len(values) <= layers + mtp:
        what = f"config.json: '{key}' does not list one value for each of {layers} layers"
        raise ConfigError("config/bad-value", what)
    return values[:layers]


def sparse_layers(config: Config, *, dense: int) -> list[bool]:
    """For each decoder layer whether it holds experts.

    `mlp_layer_types` says so layer by layer; without it the first `first_k_dense_replace` layers
    are dense (`dense` of them where that key is absent too).
    """
    kinds = layer_kinds(config, "mlp_layer_types")
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    first = integer(config, "first_k_dense_replace", dense, least=0)
    return [layer >= first for layer in range(integer(config, "num_hidden_layers"))]
