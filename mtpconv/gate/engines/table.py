"""One row a family: what vLLM's and SGLang's MTP loaders ask of a checkpoint.

Read off the loaders of vLLM 0.33.0 and SGLang 0.5.23. They hardly ever complain: a tensor that is
not there stays as the allocator left it, and drafting goes on at no use. So a row states every
name, and `check.py` demands each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mtpconv.gate.engines.parts import (
    Names,
    Observed,
    deepseek_moe,
    experts,
    gqa,
    indexer,
    layer_norms,
    like_layer,
    linear,
    mla,
    mlp,
    plain,
)
from mtpconv.mappings.config import Config, integer

Engine = Literal["vllm", "sglang"]

TITLES: dict[Engine, str] = {"vllm": "vLLM", "sglang": "SGLang"}

FLAGS: dict[Engine, str] = {
    "vllm": '--speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'',
    "sglang": "--speculative-algorithm NEXTN",
}
"""What turns MTP on; both draft one token a step or a few, from the model's own checkpoint."""


@dataclass(frozen=True, slots=True)
class Loader:
    """How an engine finds a family's MTP layers.

    `absent` is what it does without the config key: takes `one` layer, stops with an `error`, stays
    `off`, or never looks (`unread`). `layers` are those it runs (None: as many as the key says).
    `one` means it stops unless the key is 1; `fused` that it reads experts joined in one tensor;
    `folds` that further layers overwrite the first; `exact` that a tensor it has no parameter for
    stops it.
    """

    absent: Literal["one", "error", "off", "unread"]
    layers: int | None = None
    one: bool = False
    fused: bool = False
    folds: bool = False
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Serving:
    """A family's MTP as the engines see it.

    `key` announces the layers (None: nothing does); `prefix` begins the names of layer k; `names`
    are all tensors that layer k needs. `released` is the number of layers where no key tells.
    """

    key: str | None
    prefix: Callable[[Config, int], str]
    names: Callable[[Config, Observed, int], Names]
    vllm: Loader | None
    sglang: Loader | None
    released: int = 1

    def loader(self, engine: Engine) -> Loader | None:
        """The row of one engine (None: it has no MTP loader for the family)."""
        return self.vllm if engine == "vllm" else self.sglang


# --- prefixes ------------------------------------------------------------------------------------


def _trailing(config: Config, k: int) -> str:
    return f"model.layers.{integer(config, 'num_hidden_layers') + k}."


def _qwen(_: Config, k: int) -> str:
    return f"mtp.layers.{k}."


def _mimo(_: Config, k: int) -> str:
    return f"model.mtp_layers.{k}."


def _mimo_v2(_: Config, k: int) -> str:
    return f"model.mtp.layers.{k}."


def _ernie(_: Config, k: int) -> str:
    return f"model.mtp_block.{k}."


def _v4(_: Config, k: int) -> str:
    return f"mtp.{k}."


# --- names of layer k ----------------------------------------------------------------------------


def _wrapper(prefix: str, norm: str = "shared_head.norm") -> Names:
    return plain(prefix, "enorm", "hnorm", "eh_proj", norm)


def _deepseek(config: Config, _: Observed, k: int) -> Names:
    p = _trailing(config, k)
    return _wrapper(p) | layer_norms(p) | mla(p, config) | deepseek_moe(p, config)


def _deepseek_dsa(config: Config, observed: Observed, k: int) -> Names:
    return _deepseek(config, observed, k) | indexer(_trailing(config, k))


def _glm4_moe(config: Config, _: Observed, k: int) -> Names:
    p = _trailing(config, k)
    bias, norms = bool(config.get("attention_bias")), bool(config.get("use_qk_norm"))
    attention = gqa(p, bias=bias, norms=norms)
    return _wrapper(p) | layer_norms(p) | attention | deepseek_moe(p, config)


def _glm4_moe_lite(config: Config, observed: Observed, k: int) -> Names:
    # The one family whose loader takes the embedding from the layer's own copy.
    return _deepseek(config, observed, k) | plain(_trailing(config, k), "embed_tokens")


def _mimo_7b(config: Config, _: Observed, k: int) -> Names:
    p = _mimo(config, k)
    wrapper = plain(p, "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
    return wrapper | layer_norms(p) | gqa(p, bias=True) | mlp(f"{p}mlp.")


def _mimo_v2_layer(config: Config, observed: Observed, k: int) -> Names:
    p = _mimo_v2(config, k)
    names = _wrapper(p, "final_layernorm") | plain(p, "input_layernorm", "pre_mlp_layernorm")
    attention = gqa(p)
    # V2.5 stores the three joined; both engines read either form.
    apart = any(f"{p}self_attn.{part}_proj.weight" in observed for part in "qkv")
    if not apart and config.get("model_type") != "mimo_v2_flash":
        attention = linear(f"{p}self_attn.", "qkv_proj") | plain(f"{p}self_attn.", "o_proj")
    if config.get("add_swa_attention_sink_bias"):
        attention[f"{p}self_attn.attention_sink_bias"] = False
    return names | attention | mlp(f"{p}mlp.")


def _qwen_shared(_: Config) -> Names:
    norms = plain("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return linear("mtp.", "fc") | norms


def _qwen_moe(config: Config, _: Observed, k: int) -> Names:
    p = _qwen(config, k)
    m = f"{p}mlp."
    names = _qwen_shared(config) | layer_norms(p) | gqa(p, norms=True)
    names |= plain(m, "gate", "shared_expert_gate") | mlp(f"{m}shared_expert.")
    return names | experts(f"{m}experts.", integer(config, "num_experts"))


def _qwen_dense(config: Config, _: Observed, k: int) -> Names:
    p = _qwen(config, k)
    return _qwen_shared(config) | layer_norms(p) | gqa(p, norms=True) | mlp(f"{p}mlp.")


def _ling(config: Config, _: Observed, k: int) -> Names:
    p = _trailing(config, k)
    names = _wrapper(p, "final_layernorm") | layer_norms(p)
    names |= linear(f"{p}attention.", "query_key_value", "dense")
    if config.get("use_qk_norm", True):
        names |= plain(f"{p}attention.", "query_layernorm", "key_layernorm")
    m = f"{p}mlp."
    names |= plain(m, "gate") | {f"{m}gate.expert_bias": False}
    names |= experts(f"{m}experts.", integer(config, "num_experts"))
    return names | (mlp(f"{m}shared_experts.") if config.get("num_shared_experts") else {})


def _hy_v3(config: Config, _: Observed, k: int) -> Names:
    p = _trailing(config, k)
    m = f"{p}mlp."
    names = _wrapper(p, "final_layernorm") | layer_norms(p) | gqa(p, norms=True)
    names |= plain(m, "router.gate") | {f"{m}expert_bias": False} | mlp(f"{m}shared_mlp.")
    return names | experts(f"{m}experts.", integer(config, "num_experts"))


def _ernie_layer(config: Config, _: Observed, k: int) -> Names:
    p = _ernie(config, k)
    outer = ("mtp_emb_norm", "mtp_hidden_norm", "mtp_linear_proj")
    names = plain("model.", *(f"{name}.{k}" for name in outer))
    return names | layer_norms(p) | gqa(p, bias=bool(config.get("use_bias"))) | mlp(f"{p}mlp.")


def _longcat(config: Config, _: Observed, k: int) -> Names:
    p = _mimo_v2(config, k)
    names = plain(p, "enorm.m", "hnorm.m") | linear(p, "eh_proj") | layer_norms(p)
    names |= mla(p, config) | mlp(f"{p}transformer_layer.mlp.")
    return names | plain("model.mtp.", "norm", "embed_tokens")


def _step(config: Config, observed: Observed, k: int) -> Names:
    p = _trailing(config, k)
    head = f"{p}transformer.shared_head."
    names = plain(p, "enorm", "hnorm") | linear(p, "eh_proj") | plain(head, "norm", "output")
    attention = like_layer(p, "model.layers.0.", observed, "self_attn.")
    return names | layer_norms(p) | attention | mlp(f"{p}mlp.")


def mtp_pattern(config: Config) -> str:
    """Nemotron's MTP block types in order: `*` attention, `E` experts."""
    pattern = config.get("mtp_hybrid_override_pattern")
    kinds = config.get("mtp_layers_block_type")
    if isinstance(pattern, str) and pattern:
        return pattern
    if isinstance(kinds, list) and kinds:
        return "".join("*" if kind == "attention" else "E" for kind in kinds)
    return "*E"


def _nemotron(config: Config, observed: Observed, k: int) -> Names:
    pattern = mtp_pattern(config)
    decoder = _nemotron_decoder(config)
    names: Names = {}
    for j, kind in enumerate(pattern):
        p = f"mtp.layers.{k * len(pattern) + j}."
        names |= plain(p, "norm")
        if j == 0:
            names |= plain(p, "enorm", "hnorm") | linear(p, "eh_proj")
        if j == len(pattern) - 1:
            names |= plain(p, "final_layernorm")
        if kind in decoder:
            # The block is the decoder's own of that kind; only its place is different.
            model = f"backbone.layers.{decoder.index(kind)}."
            names |= like_layer(p, model, observed, "mixer.")
        if kind == "E":
            parts = ("up_proj", "down_proj")
            names |= experts(f"{p}mixer.experts.", integer(config, "n_routed_experts"), parts)
    return names


def _nemotron_decoder(config: Config) -> str:
    pattern, kinds = config.get("hybrid_override_pattern"), config.get("layers_block_type")
    if isinstance(pattern, str):
        return pattern
    letters = {"attention": "*", "moe": "E", "mamba": "M", "mlp": "-"}
    return "".join(letters.get(str(kind), "?") for kind in kinds or ())


def _nemotron_prefix(config: Config, k: int) -> str:
    return f"mtp.layers.{k * len(mtp_pattern(config))}."


def _v4_layer(config: Config, _: Observed, k: int) -> Names:
    p = _v4(config, k)
    norms = ("enorm", "hnorm", "norm", "attn_norm", "ffn_norm", "attn.kv_norm", "attn.q_norm")
    names = plain(p, *norms) | linear(p, "e_proj", "h_proj")
    names |= linear(f"{p}attn.", "wkv", "wo_a", "wo_b", "wq_a", "wq_b")
    names |= {f"{p}attn.attn_sink": False, f"{p}ffn.gate.bias": False}
    names |= plain(f"{p}ffn.", "gate")
    for place in ("attn", "ffn", "head"):
        names |= {f"{p}hc_{place}_{part}": False for part in ("base", "fn", "scale")}
    parts = ("w1", "w2", "w3")
    names |= experts(f"{p}ffn.experts.", integer(config, "n_routed_experts"), parts)
    return names | linear(f"{p}ffn.shared_experts.", *parts)


# --- the table -----------------------------------------------------------------------------------

_NEXTN = "num_nextn_predict_layers"
_ONE = Loader("one")
_STRICT = Loader("error")
_SGL = Loader("error", layers=1, one=True)
_SGL_DEEPSEEK = Loader("error", layers=1, one=True, fused=True)
_DEEPSEEK = Loader("one", exact=True)
_FORCED = Loader("unread", layers=1)

_QWEN_VLLM = Loader("one", fused=True)
_MIMO_V2 = Serving(
    None, _mimo_v2, _mimo_v2_layer, Loader("unread", layers=1), Loader("unread", layers=3), 3
)
_STEP = Serving(_NEXTN, _trailing, _step, Loader("error", exact=True), Loader("error"), 3)

TABLE: dict[str, Serving] = {
    "deepseek_v3": Serving(_NEXTN, _trailing, _deepseek, _DEEPSEEK, _SGL_DEEPSEEK),
    "deepseek_v32": Serving(_NEXTN, _trailing, _deepseek_dsa, _DEEPSEEK, _SGL_DEEPSEEK),
    "glm_moe_dsa": Serving(_NEXTN, _trailing, _deepseek_dsa, _DEEPSEEK, _SGL_DEEPSEEK),
    "glm4_moe": Serving(_NEXTN, _trailing, _glm4_moe, _ONE, _SGL),
    "glm4_moe_lite": Serving(_NEXTN, _trailing, _glm4_moe_lite, _STRICT, _SGL),
    "mimo": Serving(_NEXTN, _mimo, _mimo_7b, _STRICT, Loader("unread", layers=1, folds=True)),
    "mimo_v2_flash": _MIMO_V2,
    "mimo_v2": _MIMO_V2,
    "qwen3_next": Serving(_NEXTN, _qwen, _qwen_moe, _QWEN_VLLM, _FORCED),
    "qwen3_5_moe": Serving(
        "mtp_num_hidden_layers", _qwen, _qwen_moe, _QWEN_VLLM, Loader("unread", 1, fused=True)
    ),
    "qwen3_5": Serving("mtp_num_hidden_layers", _qwen, _qwen_dense, _ONE, _FORCED),
    "bailing_moe_v2": Serving(_NEXTN, _trailing, _ling, None, _SGL),
    "hy_v3": Serving(_NEXTN, _trailing, _hy_v3, _STRICT, _FORCED),
    "ernie4_5_moe": Serving(_NEXTN, _ernie, _ernie_layer, _STRICT, Loader("error", layers=1)),
    "longcat_flash": Serving(
        _NEXTN, _mimo_v2, _longcat, Loader("one", layers=1), Loader("unread", layers=1)
    ),
    "step3p5": _STEP,
    "step3p7": _STEP,
    "nemotron_h": Serving(
        _NEXTN, _nemotron_prefix, _nemotron, Loader("off", layers=1, one=True), _FORCED
    ),
    "exaone_moe": Serving(_NEXTN, _qwen, _qwen_dense, _ONE, _FORCED),
    "deepseek_v4": Serving(_NEXTN, _v4, _v4_layer, _ONE, _FORCED),
}
"""By `model_type`. A family that is not here has no MTP, or none whose loader we have read."""
