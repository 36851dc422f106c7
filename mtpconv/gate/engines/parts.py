"""Blocks of an MTP layer as serving engines name them, in the checkpoint's own spelling."""

from collections.abc import Iterable, Mapping
from typing import Any

from mtpconv.mappings.config import Config, integer
from mtpconv.mappings.spec import TensorSpec

Names = dict[str, bool]
"""Tensor name -> whether the engine builds that module in the checkpoint's quantised form."""

PACKED = ("F8_E4M3", "F8_E5M2", "I8", "U8")
"""dtypes whose values mean nothing without a scale."""

Observed = Mapping[str, TensorSpec]


def text_config(config: Config) -> dict[str, Any]:
    """The keys of the language model, which a multimodal config keeps in `text_config`."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else dict(config)


def plain(prefix: str, *modules: str) -> Names:
    """Weights the engine never quantises: norms, routers, a plain `eh_proj`."""
    return {f"{prefix}{module}.weight": False for module in modules}


def linear(prefix: str, *modules: str) -> Names:
    """Weights of linear layers that the engine builds as its quantisation config says."""
    return {f"{prefix}{module}.weight": True for module in modules}


def mla(prefix: str, config: Config) -> Names:
    """Latent attention; without `q_lora_rank` the query projection is undivided."""
    p = f"{prefix}self_attn."
    query = linear(p, "q_proj")
    if config.get("q_lora_rank") is not None:
        query = linear(p, "q_a_proj", "q_b_proj") | plain(p, "q_a_layernorm")
    rest = linear(p, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    return query | rest | plain(p, "kv_a_layernorm")


def indexer(prefix: str) -> Names:
    """The sparse-attention indexer."""
    p = f"{prefix}self_attn.indexer."
    norm = {f"{p}k_norm.weight": False, f"{p}k_norm.bias": False}
    return linear(p, "wq_b", "wk") | plain(p, "weights_proj") | norm


def gqa(prefix: str, *, bias: bool = False, norms: bool = False) -> Names:
    """Attention with separate projections."""
    p = f"{prefix}self_attn."
    names = linear(p, "q_proj", "k_proj", "v_proj", "o_proj")
    if bias:
        names |= {f"{p}{part}_proj.bias": False for part in "qkv"}
    return names | (plain(p, "q_norm", "k_norm") if norms else {})


def mlp(prefix: str) -> Names:
    """A gated MLP."""
    return linear(prefix, "gate_proj", "up_proj", "down_proj")


GATED = ("gate_proj", "up_proj", "down_proj")


def experts(prefix: str, count: int, parts: Iterable[str] = GATED) -> Names:
    """Every part of every routed expert."""
    return {f"{prefix}{e}.{part}.weight": True for e in range(count) for part in parts}


def deepseek_moe(prefix: str, config: Config) -> Names:
    """Router with its bias, routed and shared experts, as DeepSeek-V3 spells them."""
    p = f"{prefix}mlp."
    names = plain(p, "gate") | {f"{p}gate.e_score_correction_bias": False}
    names |= experts(f"{p}experts.", integer(config, "n_routed_experts"))
    return names | (mlp(f"{p}shared_experts.") if config.get("n_shared_experts") else {})


def layer_norms(prefix: str) -> Names:
    """The two norms of a decoder layer."""
    return plain(prefix, "input_layernorm", "post_attention_layernorm")


def like_layer(prefix: str, model: str, observed: Observed, within: str = "") -> Names:
    """Whatever the layer `model` of this checkpoint holds below `within`, under another prefix."""
    head = model + within
    return {
        prefix + name[len(model) :]: observed[name].dtype in PACKED
        for name in observed
        if name.startswith(head) and name.endswith((".weight", ".bias", "_bias"))
    }
