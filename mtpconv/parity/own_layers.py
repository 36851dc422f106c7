"""Families that stock GPTModel cannot build or run, and what parity puts into it so that it can.

A training job needs the same from its own layer spec (Megatron-Bridge's, or mcore-bridge's for
`glm4`); names and formulas are those. The report says of every such model that it was run so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtpconv.errors import FormatError
from mtpconv.mappings.config import Config
from mtpconv.mappings.registry import Family
from mtpconv.parity import own_gemma, own_mtp, own_norms


@dataclass(frozen=True, slots=True)
class OwnLayers:
    """Changes to a model: to its layer specs before it is built, to the model after.

    `mtp` changes the spec of the MTP block; it is given megatron's own config and the HF one.
    """

    specs: Callable[[list[Any], Config], None] = lambda _layers, _config: None
    model: Callable[[Any, Config], None] = lambda _model, _config: None
    mtp: Callable[[Any, Any, Config], None] = lambda _block, _settings, _config: None


def _wide_norms(layers: list[Any], config: Config) -> None:
    if config.get("use_qk_norm", True):
        own_norms.norm_all_heads(layers)


def _glm4(layers: list[Any], _: Config) -> None:
    own_norms.norm_outputs(layers, "post_self_attn_layernorm", "post_mlp_layernorm")


def _gemma(layers: list[Any], config: Config) -> None:
    own_norms.norm_projections(layers)
    cap = config.get("attn_logit_softcapping")
    if cap is not None:
        for layer in layers:
            attention = own_gemma.capped_attention(float(cap))
            layer.submodules.self_attention.submodules.core_attention = attention


def _gemma_model(model: Any, config: Config) -> None:
    own_gemma.scale_embedding(model, config)
    cap = config.get("final_logit_softcapping")
    if cap is not None:
        own_gemma.cap_logits(model, float(cap))


def _gemma3_model(model: Any, config: Config) -> None:
    _gemma_model(model, config)
    own_gemma.turn_locally(model, own_gemma.local_base(config))


def _exaone_mtp(block: Any, settings: Any, config: Config) -> None:
    kinds = config.get("mtp_layer_types") or ["full_attention"]
    own_mtp.dense(block, settings, windowed=kinds[0] == "sliding_attention")


_GEMMA3 = OwnLayers(_gemma, _gemma3_model)
OWN_LAYERS: dict[str, OwnLayers] = {
    "olmoe": OwnLayers(_wide_norms),
    "minimax_m2": OwnLayers(_wide_norms),
    "glm4": OwnLayers(_glm4),
    "gemma2": OwnLayers(_gemma, _gemma_model),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "exaone_moe": OwnLayers(mtp=_exaone_mtp),
}


def own_layers(family: Family) -> OwnLayers | None:
    """What the family needs beyond stock GPTModel (None: nothing).

    Raises FormatError (`target/no-model`) where more is lacking than is put in here.
    """
    if family.gap and family.model_type not in OWN_LAYERS:
        what = f"no released megatron-core can build this model, so it cannot be run: {family.gap}"
        mend = "roundtrip --check compares every byte without running it"
        raise FormatError("target/no-model", what, mend)
    return OWN_LAYERS.get(family.model_type)
