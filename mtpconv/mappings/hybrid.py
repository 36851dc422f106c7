"""A GPT model's rows under the names of megatron-core's HybridModel, MTP layers included.

Facts from megatron-core 0.19's `models/hybrid/` and `multi_token_prediction.py`: attention and MLP
are layers of their own, numbered through (`decoder.layers.{2n}` and `{2n + 1}`), the norm behind
the decoder is called `final_norm`, and an MTP layer is a stack `mtp_model_layer.layers.{0, 1}`.
Which kind of layer stands where, a pattern says: `*` attention, `G` gated delta net, `-` MLP, `E`
experts, MTP stacks behind slashes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mtpconv.errors import ConfigError
from mtpconv.mappings.rule import Row, Rule

FINAL_NORM = "decoder.final_norm.weight"
SINCE = (0, 19)
"""The megatron-core release from which on HybridModel is what new jobs train."""

_GPT_NORM = "decoder.final_layernorm.weight"
_ATTENTION = ("input_layernorm", "self_attention")
_MLP = ("pre_mlp_layernorm", "mlp")
_LATENT = (".linear_kv_down_proj.", ".linear_q_down_proj.", ".linear_q_proj.")


def is_hybrid(names: Iterable[str]) -> bool:
    """Whether logical Megatron names are a HybridModel's."""
    return FINAL_NORM in names


def as_hybrid(rows: list[Row]) -> list[Row]:
    """The rows with HybridModel's names; a family that has no others comes back as it is.

    Raises ConfigError for a model HybridModel's own layers cannot hold.
    """
    if is_hybrid(name for row in rows if isinstance(row, Rule) for name in row.mcore):
        return rows
    return [
        replace(row, mcore=tuple(map(hybrid_name, row.mcore))) if isinstance(row, Rule) else row
        for row in rows
    ]


def hybrid_name(name: str) -> str:
    """A logical GPT name as HybridModel has it. Raises ConfigError if it has no such module."""
    if name == _GPT_NORM:
        return FINAL_NORM
    parts = name.split(".")
    if parts[:2] == ["decoder", "layers"]:
        layer = 2 * int(parts[2]) + _half(name, parts[3])
        return ".".join(["decoder", "layers", str(layer), *parts[3:]])
    if parts[:2] == ["mtp", "layers"] and parts[3] == "transformer_layer":
        half = _half(name, parts[4])
        return ".".join([*parts[:3], "mtp_model_layer", "layers", str(half), *parts[4:]])
    return name


def _half(name: str, module: str) -> int:
    """0 for a part of the attention layer, 1 for one of the MLP layer."""
    if module in _MLP:
        return 1
    if module not in _ATTENTION or any(part in name for part in _LATENT):
        raise ConfigError(
            "target/no-hybrid",
            f"HybridModel has no {name}: its latent attention and its layers lack norms that this"
            " model has",
            "--mcore-model gpt",
        )
    return 0


def hybrid_args(rows: list[Row], mtp_layers: int) -> Mapping[str, Any]:
    """Megatron-LM arguments that differ from the GPT model's, for rows from `as_hybrid`."""
    names = [name for row in rows if isinstance(row, Rule) for name in row.mcore]
    kinds: dict[int, str] = {}
    inner: dict[int, str] = {}
    for name in names:
        parts = name.split(".")
        if parts[:2] == ["decoder", "layers"]:
            _note(kinds, int(parts[2]), parts[3:])
        elif parts[3:5] == ["mtp_model_layer", "layers"] and parts[2] == "0":
            _note(inner, int(parts[5]), parts[6:])
    stack = "".join(inner[place] for place in sorted(inner))
    decoder = "".join(kinds[layer] for layer in sorted(kinds))
    return {
        "is_hybrid_model": True,
        "num_layers": len(kinds),
        "hybrid_layer_pattern": "/".join([decoder, *[stack] * mtp_layers]),
        "moe_layer_freq": 1,
        "linear_attention_freq": None,
        "experimental_attention_variant": None,
    }


def _note(kinds: dict[int, str], layer: int, module: list[str]) -> None:
    """Set the letter of a layer by one of its modules."""
    if module[0] in _ATTENTION:
        kinds[layer] = "G" if "in_proj" in module else kinds.get(layer, "*")
    else:
        kinds[layer] = "E" if "experts" in module else kinds.get(layer, "-")
