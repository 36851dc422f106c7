"""Values of a config.json, read strictly: a wrong or missing key is an error that names it."""

from collections.abc import Mapping
from typing import Any

from mtpconv.errors import ConfigError, Contradiction

Config = Mapping[str, Any]

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


def integer(config: Config, key: str, default: int | None = None, *, least: int = 1) -> int:
    """`config[key]` as an int >= `least`; `default` where the key is absent or null.

    Raises ConfigError if there is neither, or the value is no such integer.
    """
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError("config/missing-key", f"config.json has no '{key}'", "add it")
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            "config/bad-value", f"config.json: '{key}' is {value!r}, not an int >= {least}"
        )
    return value


def number(config: Config, key: str, default: float | None = None) -> float:
    """`config[key]` as a float. Raises ConfigError if it is absent or no number."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError("config/missing-key", f"config.json has no '{key}'", "add it")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError("config/bad-value", f"config.json: '{key}' is {value!r}, not a number")
    return float(value)


def flag(config: Config, key: str, default: bool = False) -> bool:
    """`config[key]` as a bool. Raises ConfigError for anything else."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(
            "config/bad-value", f"config.json: '{key}' is {value!r}, not true or false"
        )
    return value


def rope(config: Config) -> dict[str, Any]:
    """RoPE settings from `rope_theta` + `rope_scaling` (transformers 4) or `rope_parameters` (5).

    Raises Contradiction if both are there and do not agree.
    """
    old = dict(config.get("rope_scaling") or {})
    if config.get("rope_theta") is not None:
        old["rope_theta"] = config["rope_theta"]
    if "type" in old:
        old.setdefault("rope_type", old.pop("type"))
    new = dict(config.get("rope_parameters") or {})
    if "type" in new:
        new.setdefault("rope_type", new.pop("type"))
    for key in old.keys() & new.keys():
        if old[key] != new[key]:
            raise Contradiction(
                "config/rope-schema",
                f"config.json: {key} is {old[key]!r} in rope_theta/rope_scaling"
                f" and {new[key]!r} in rope_parameters",
                "keep the one the model was trained with",
            )
    merged = {**old, **new}
    merged.setdefault("rope_type", "default")
    return merged
