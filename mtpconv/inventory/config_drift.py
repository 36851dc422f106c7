"""Two configs of one model: which keys say something else, spellings of transformers 4 and 5 alike.

transformers 5 writes `rope_parameters` for `rope_theta` and `rope_scaling`, and `dtype` for
`torch_dtype`; a key that is null says as much as one that is absent.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mtpconv.errors import ConfigError
from mtpconv.inventory.findings import Finding, Severity
from mtpconv.mappings.config import rope

_BOOKKEEPING = {"transformers_version", "_name_or_path", "use_cache", "auto_map", "architectures"}
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
_ABSENT = "absent"


def config_drift(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Finding]:
    """One finding for each key that differs, named as `a.b` where it is nested.

    A changed or lost key is an error; an added one, or one that no model reads, is information.
    """
    left, right = _flat(_spelled_alike(ours)), _flat(_spelled_alike(theirs))
    for key in [*left, *(key for key in right if key not in left)]:
        one, two = left.get(key), right.get(key)
        if one == two and isinstance(one, bool) == isinstance(two, bool):
            continue
        severity: Severity = "error"
        if one is None or is_bookkeeping(key):
            severity = "info"
        yield Finding(
            "config/drift", severity, f"config.json: {key} is {_text(one)} in A, {_text(two)} in B",
            expected=_text(one), actual=_text(two),
        )  # fmt: skip


def is_bookkeeping(key: str) -> bool:
    """Whether no model is built from this key."""
    return key.partition(".")[0] in _BOOKKEEPING


def _spelled_alike(config: Mapping[str, Any]) -> dict[str, Any]:
    body = {key: value for key, value in config.items() if value is not None}
    if "torch_dtype" in body:
        body.setdefault("dtype", body.pop("torch_dtype"))
    try:
        settings = rope(config)
    except (ConfigError, TypeError, ValueError):
        return body
    for key in _ROPE:
        body.pop(key, None)
    if settings != {"rope_type": "default"}:
        body["rope"] = settings
    return body


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as `a.b` keys; lists and plain values as they are."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[f"{prefix}{key}"] = value
    return found


def _text(value: object) -> str:
    return _ABSENT if value is None else repr(value)
