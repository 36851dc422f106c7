"""Values of a config.json, read strictly: a wrong or missing key is an error that names it."""

import math
from collections.abc import Mapping
from typing import Any

from mtpconv.errors import ConfigError, Contradiction, brief

Config = Mapping[str, Any]

LARGEST_SIZE = 2**31
"""Of any one number in a config."""
MOST_LAYERS = 2_000

TEXT = "text_config"
"""Where a model with a vision tower keeps the language model's keys."""


def flat(config: Config) -> dict[str, Any]:
    """`config` with the keys of its `text_config`, if it has one, on top.

    `model_type`, `architectures` and `tie_word_embeddings` stay those of the whole model.
    """
    text = config.get(TEXT)
    if not isinstance(text, Mapping):
        return dict(config)
    own = ("model_type", "architectures", "tie_word_embeddings")
    return {**config, **text, **{key: config[key] for key in own if key in config}}


def lookup(config: Config, key: str) -> Any:
    """The value of a dotted key; its last part counts too where the dictionary before it is absent.

    None where there is neither.
    """
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return config.get(key.rpartition(".")[2]) if value is None else value


def spelled(config: Config, key: str) -> str:
    """A dotted key as this config has it: its last part alone where `lookup` falls back to that."""
    value: Any = config
    *path, last = key.split(".")
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    nested = isinstance(value, Mapping)
    return key if nested and (last in value or last not in config) else last


def with_changes(config: Config, changes: Config) -> dict[str, Any]:
    """`config` with keys set (None: removed), dotted ones inside the dictionaries they name."""
    changed = dict(config)
    for key, value in changes.items():
        head, _, rest = key.partition(".")
        inner = changed.get(head)
        if rest and isinstance(inner, Mapping):
            changed[head] = with_changes(inner, {rest: value})
        elif value is None:
            changed.pop(rest or head, None)
        else:
            changed[rest or head] = value
    return changed


def integer(
    config: Config,
    key: str,
    default: int | None = None,
    *,
    least: int = 1,
    most: int = LARGEST_SIZE,
) -> int:
    """`config[key]` as an int from `least` to `most`; `default` where the key is absent or null.

    Raises ConfigError if there is neither, or the value is no such integer, or past all measure.
    """
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError("config/missing-key", f"config.json has no '{key}'", "add it")
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            "config/bad-value", f"config.json: '{key}' is {brief(value)}, not an int >= {least}"
        )
    if value > most:
        raise ConfigError(
            "config/bad-value", f"config.json: '{key}' is {brief(value)}, more than any model has"
        )
    return value


_MOST_MTP = 64
_MOST_REPEATS = 100_000
_LAYERS = ("num_hidden_layers", "num_layers")
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_REPEATED = (
    "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "zero_expert_num",
    "num_attention_heads", "num_key_value_heads", "swa_num_attention_heads",
    "swa_num_key_value_heads", "num_sliding_attention_heads", "linear_num_key_heads",
    "linear_num_value_heads", "mamba_num_heads", "n_groups", "index_n_heads", "o_groups",
)  # fmt: skip
_LISTS = (
    "layer_types", "mlp_layer_types", "layers_block_type", "hybrid_override_pattern",
    "mtp_hybrid_override_pattern", "mtp_layers_block_type", "indexer_types",
    "hybrid_layer_pattern", "moe_layer_freq",
)  # fmt: skip


def require_bounded(config: Config) -> None:
    """Raise ConfigError (`config/bad-value`) for numbers a model is not to be expanded from.

    Rules have concrete names, so layers times experts (or heads, where rows are reordered head by
    head) is memory and time. The largest release has 61 layers of 384 experts: a quarter of this.
    """
    layers = max(_counted(config, key, MOST_LAYERS) for key in _LAYERS)
    layers += max(_counted(config, key, _MOST_MTP) for key in _MTP)
    for key in _REPEATED:
        _counted(config, key, _MOST_REPEATS // max(1, layers))
    for key in _LISTS:
        value = config.get(key)
        if isinstance(value, list | str) and len(value) > MOST_LAYERS + _MOST_MTP:
            what = f"config.json: '{key}' lists {len(value):,} layers, more than any model has"
            raise ConfigError("config/bad-value", what)


def _counted(config: Config, key: str, most: int) -> int:
    value = config.get(key)
    if type(value) is not int:
        return 0  # whoever needs the key says what is wrong with it
    if value > most:
        what = f"config.json: '{key}' is {brief(value)}, more than any model has"
        raise ConfigError("config/bad-value", what, f"at most {most:,} here")
    return value


def number(config: Config, key: str, default: float | None = None) -> float:
    """`config[key]` as a float. Raises ConfigError if it is absent or no finite number."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError("config/missing-key", f"config.json has no '{key}'", "add it")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        what = f"config.json: '{key}' is {brief(value)}, not a number"
        raise ConfigError("config/bad-value", what)
    return float(value)


def positive(config: Config, key: str, default: float | None = None) -> float:
    """`config[key]` as a float above zero. Raises ConfigError for anything else."""
    value = number(config, key, default)
    if value <= 0:
        raise ConfigError("config/bad-value", f"config.json: '{key}' is {value}, not above zero")
    return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def flag(config: Config, key: str, default: bool = False) -> bool:
    """`config[key]` as a bool. Raises ConfigError for anything else."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(
            "config/bad-value", f"config.json: '{key}' is {brief(value)}, not true or false"
        )
    return value


def table(config: Config, key: str) -> dict[str, Any]:
    """`config[key]` as an object (empty where absent or null). Raises ConfigError otherwise."""
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError("config/bad-value", f"config.json: '{key}' is {brief(value)}, no object")
    return dict(value)


def listed(config: Config, key: str) -> list[Any]:
    """`config[key]` as a list of texts and numbers (empty where absent or null).

    Raises ConfigError for anything else.
    """
    value = config.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, str | int) for each in value):
        what = f"config.json: '{key}' is {brief(value)}, no list of words or numbers"
        raise ConfigError("config/bad-value", what)
    return value


def rope(config: Config) -> dict[str, Any]:
    """RoPE settings from `rope_theta` + `rope_scaling` (transformers 4) or `rope_parameters` (5).

    Raises Contradiction if both are there and do not agree.
    """
    old = table(config, "rope_scaling")
    if config.get("rope_theta") is not None:
        old["rope_theta"] = config["rope_theta"]
    if "type" in old:
        old.setdefault("rope_type", old.pop("type"))
    new = table(config, "rope_parameters")
    if "type" in new:
        new.setdefault("rope_type", new.pop("type"))
    for key in old.keys() & new.keys():
        if old[key] != new[key]:
            raise Contradiction(
                "config/rope-schema",
                f"config.json: {key} is {brief(old[key])} in rope_theta/rope_scaling"
                f" and {brief(new[key])} in rope_parameters",
                "keep the one the model was trained with",
            )
    merged = {**old, **new}
    merged.setdefault("rope_type", "default")
    return merged
